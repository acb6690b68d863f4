// A folder of its own for a test, removed with everything in it.
#pragma once
#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace quire::test {

class Scratch {
 public:
  Scratch() : root_((std::filesystem::temp_directory_path() / "quire-test-XXXXXX").string()) {
    if (::mkdtemp(root_.data()) == nullptr) throw std::runtime_error("no temporary folder");
    root_ = std::filesystem::canonical(root_).string();
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string path(const std::string& name = {}) const { return name.empty() ? root_ : root_ + "/" + name; }

 private:
  std::string root_;
};

}  // namespace quire::test
