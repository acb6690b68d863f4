#include "libraries.h"

#include "emulation.h"
#include "runtime/cuda/shared_library.h"
#include "runtime/error.h"

namespace emulation {

namespace {

/// The library whose file has this name, without one where there is none.
Library library_of(const std::string& file) {
  for (const Library& each : {cublaslt_library(), cudnn_library(), nccl_library()})
    if (file.rfind(each.prefix, 0) == 0) return each;
  return {"", [] { return false; }, [](const char*) -> void* { return nullptr; }};
}

}  // namespace

}  // namespace emulation

namespace quire {

// The emulated loader. `handle_` is never given to the system's.
SharedLibrary::SharedLibrary(const std::vector<std::string>& names, const std::string& purpose, const std::string& otherwise)
    : name_(names.front()), purpose_(purpose), otherwise_(otherwise) {
  const emulation::Settings settings = emulation::settings();
  const bool missing = !settings.libraries || (!settings.missing.empty() && name_.starts_with(settings.missing));
  if (!missing && emulation::library_of(name_).present()) return;
  library_is_missing(name_, purpose, name_ + ": the emulated machine has none", otherwise);
}

void* SharedLibrary::symbol(const char* name) const {
  void* const function = emulation::library_of(name_).function(name);
  if (function == nullptr) library_is_too_old(name_, purpose_, name, otherwise_);
  return function;
}

}  // namespace quire
