#include "runtime/cuda/errors.h"

#include "runtime/error.h"

namespace quire {

void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // so that it is told once, unless it stays
  fail<DeviceError>("cuda", "{}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace quire

namespace gpu {

void throw_launch_error(cudaError_t status, const char* kernel) { quire::check_cuda(status, kernel); }

}  // namespace gpu
