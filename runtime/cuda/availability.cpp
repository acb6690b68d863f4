// Which CUDA devices there are, or why there is none.
#include <cuda_runtime_api.h>

#include "runtime/accelerator.h"
#include "runtime/error.h"

namespace quire {

CudaAvailability cuda_availability() {
  CudaAvailability result;
  const cudaError_t status = cudaGetDeviceCount(&result.devices);
  if (status == cudaSuccess && result.devices > 0) return result;
  cudaGetLastError();
  result.devices = 0;
  result.reason = status == cudaSuccess ? "this machine has no CUDA device" : fmt::format("cudaGetDeviceCount: {}", cudaGetErrorString(status));
  return result;
}

}  // namespace quire
