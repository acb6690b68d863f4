#include "runtime/cuda/versions.h"

#include <cuda_runtime_api.h>

#include "runtime/cuda/errors.h"
#include "runtime/cuda/shared_library.h"
#include "runtime/error.h"

namespace quire {

static_assert(CUDART_VERSION >= oldest_toolkit, "the toolkit's headers are older than 12.8");

int driver_version() {
  int version = 0;
  check_cuda(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  return version;
}

int runtime_version() {
  int version = 0;
  check_cuda(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return version;
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string library_version_text(size_t version) { return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100); }

std::string version_problem(int driver, int runtime) {
  if (runtime < oldest_toolkit) return fmt::format("found: CUDA runtime {}; needed: {} or newer", version_text(runtime), version_text(oldest_toolkit));
  if (driver == 0) return fmt::format("found: no CUDA driver; needed: one for CUDA {}.0 or newer, and a device", runtime / 1000);
  // Within a major version a newer runtime works with an older driver.
  if (driver / 1000 < runtime / 1000)
    return fmt::format("found: a driver for CUDA {}; needed: one for CUDA {}.0 or newer, as the runtime is {}", version_text(driver), runtime / 1000, version_text(runtime));
  return {};
}

void library_is_missing(const std::string& name, const std::string& purpose, const std::string& reasons, const std::string& otherwise) {
  fail<UnsupportedError>("cuda", "{}, needed for {}, can not be loaded ({}); allowed: its folder in LD_LIBRARY_PATH, or {}", name, purpose, reasons, otherwise);
}

void library_is_too_old(const std::string& name, const std::string& purpose, const char* lacks, const std::string& otherwise) {
  fail<UnsupportedError>("cuda", "{}, needed for {}, has no {}: it is too old; allowed: a newer one in LD_LIBRARY_PATH, or {}", name, purpose, lacks, otherwise);
}

}  // namespace quire
