// Bugs that tests plant. On a GPU there is none: the emulation under tests/ has the other twin.
#pragma once
#include <cuda_runtime_api.h>

namespace gpu {

__host__ __device__ constexpr bool planted(const char*) { return false; }

}  // namespace gpu
