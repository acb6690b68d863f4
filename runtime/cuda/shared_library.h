// A library that is loaded when it is first asked for, so that programs start without it.
#pragma once
#include <string>
#include <vector>

namespace quire {

class SharedLibrary {
 public:
  /// Loads the first of `names` that is found, on the loader's path or in the toolkit that this was built with. Throws UnsupportedError naming the library,
  /// what it is needed for, where it was looked for, and what can be done instead.
  SharedLibrary(const std::vector<std::string>& names, const std::string& purpose, const std::string& otherwise = "cpu");
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;
  /// Throws UnsupportedError where the library has no such function: it is too old.
  void* symbol(const char* name) const;
  template <class Function> Function* function(const char* name) const { return reinterpret_cast<Function*>(symbol(name)); }

 private:
  std::string name_, purpose_, otherwise_;
  void* handle_ = nullptr;
};

/// Throws the errors that `SharedLibrary` throws.
[[noreturn]] void library_is_missing(const std::string& name, const std::string& purpose, const std::string& reasons, const std::string& otherwise);
[[noreturn]] void library_is_too_old(const std::string& name, const std::string& purpose, const char* lacks, const std::string& otherwise);

}  // namespace quire
