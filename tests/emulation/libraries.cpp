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
SharedLibrary::SharedLibrary(const std::vector<std::string>& names, const std::string& purpose) : name_(names.front()), purpose_(purpose) {
  if (emulation::settings().libraries && emulation::library_of(name_).present()) return;
  fail<UnsupportedError>("cuda", "{} is not found; it is needed for {}", name_, purpose);
}

void* SharedLibrary::symbol(const char* name) const {
  void* const function = emulation::library_of(name_).function(name);
  if (function == nullptr) fail<UnsupportedError>("cuda", "{} has no {}, which {} need; a newer library is needed", name_, name, purpose_);
  return function;
}

}  // namespace quire
