// Calls of CUDA libraries, checked.
#pragma once
#include <cuda_runtime_api.h>

namespace quire {

/// Throws DeviceError with the call's name unless it went well.
void check_cuda(cudaError_t status, const char* call);

}  // namespace quire
