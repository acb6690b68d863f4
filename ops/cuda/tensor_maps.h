// Maps of matrices that TMA reads tiles of (internal to ops/cuda).
#pragma once
#include <cuda.h>

#include <cstdint>

#include "runtime/kernel.h"

namespace quire {

/// Throws UnsupportedError, naming the matrix product's kernel, unless the rank's device has compute capability 9.0.
void require_capability_90(Rank& rank, const char* kernel);

/// Of bf16 in `lines` runs of `columns` elements, `stride` elements apart, read in boxes of 64 elements (128 bytes, which are swizzled) of `box_lines` lines, with zeros
/// outside. The data and its lines begin on multiples of 16 bytes. Throws DeviceError.
CUtensorMap tensor_map(Rank& rank, const void* data, int64_t lines, int64_t columns, int64_t stride, int box_lines);

}  // namespace quire
