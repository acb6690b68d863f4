#include "runtime/cuda/shared_library.h"

#include <dlfcn.h>

#include "runtime/error.h"

namespace quire {

SharedLibrary::SharedLibrary(const std::vector<std::string>& names, const std::string& purpose, const std::string& otherwise) : purpose_(purpose), otherwise_(otherwise) {
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
  library_is_missing(names.front(), purpose, reasons, otherwise);
}

void* SharedLibrary::symbol(const char* name) const {
  void* const address = ::dlsym(handle_, name);
  if (address == nullptr) library_is_too_old(name_, purpose_, name, otherwise_);
  return address;
}

}  // namespace quire
