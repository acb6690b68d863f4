#include "runtime/cuda/shared_library.h"

#include <dlfcn.h>

#include "runtime/error.h"

namespace quire {

SharedLibrary::SharedLibrary(const std::vector<std::string>& names, const std::string& purpose) : purpose_(purpose) {
  std::string reasons;
  for (const std::string& folder : {std::string(), std::string(QUIRE_CUDA_TOOLKIT "/lib64/"), std::string(QUIRE_CUDA_TOOLKIT "/lib/")})
    for (const std::string& name : names) {
      handle_ = ::dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) {
        name_ = folder + name;
        return;
      }
      if (const char* reason = ::dlerror(); reason != nullptr) reasons += (reasons.empty() ? "" : "; ") + std::string(reason);
    }
  fail<UnsupportedError>("cuda", "{}, needed for {}, can not be loaded ({}); allowed: its folder in LD_LIBRARY_PATH, or cpu", names.front(), purpose, reasons);
}

void* SharedLibrary::symbol(const char* name) const {
  void* const address = ::dlsym(handle_, name);
  if (address == nullptr) fail<UnsupportedError>("cuda", "{}, needed for {}, has no {}: it is too old; allowed: a newer one in LD_LIBRARY_PATH, or cpu", name_, purpose_, name);
  return address;
}

}  // namespace quire
