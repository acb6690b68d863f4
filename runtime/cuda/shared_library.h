// A library that is loaded when it is first asked for, so that programs start without it.
#pragma once
#include <string>
#include <vector>

namespace quire {

class SharedLibrary {
 public:
  /// Loads the first of `names` that is found, on the loader's path or in the toolkit that this was built with. Throws UnsupportedError naming the library and
  /// what it is needed for.
  SharedLibrary(const std::vector<std::string>& names, const std::string& purpose);
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;
  /// Throws UnsupportedError where the library has no such function: it is too old.
  void* symbol(const char* name) const;
  template <class Function> Function* function(const char* name) const { return reinterpret_cast<Function*>(symbol(name)); }

 private:
  std::string name_, purpose_;
  void* handle_ = nullptr;
};

}  // namespace quire
