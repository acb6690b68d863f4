// Which CUDA devices there are, or why there is none.
#include <cuda_runtime_api.h>

#include "runtime/accelerator.h"
#include "runtime/cuda/emulated.h"
#include "runtime/cuda/versions.h"
#include "runtime/error.h"

namespace quire {

CudaAvailability cuda_availability() {
  CudaAvailability result{.emulated = cuda_is_emulated()};
  try {
    result.reason = version_problem(driver_version(), runtime_version());
  } catch (const DeviceError& error) {
    result.reason = error.what();
  }
  if (!result.reason.empty()) return result;
  const cudaError_t status = cudaGetDeviceCount(&result.devices);
  if (status == cudaSuccess && result.devices > 0) return result;
  cudaGetLastError();
  result.devices = 0;
  result.reason = status == cudaSuccess || status == cudaErrorNoDevice
                      ? "found: no CUDA device (CUDA_VISIBLE_DEVICES hides those that it does not name); needed: one"
                      : fmt::format("cudaGetDeviceCount: {} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
  return result;
}

}  // namespace quire
