// What the hand-written matrix products share on the device: the order of tiles, and how sums become C.
#pragma once
#include <gpu.h>

#include <cstdint>

#include "ops/cuda/matmul.h"

namespace quire {

/// Rows of tiles that are walked together, so that blocks at work at one time share panels of A and of B in the second level cache.
constexpr int64_t tiles_together = 8;

struct TilePlace {
  int64_t row, column;  ///< in tiles
};
/// The place of tile `index` of `down` x `across`: column by column through `tiles_together` rows, then the next rows.
__device__ inline TilePlace tile_place(int64_t index, int64_t down, int64_t across) {
  const int64_t band = index / (tiles_together * across), first = band * tiles_together;
  const int64_t rows = down - first < tiles_together ? down - first : tiles_together, within = index - first * across;
  return {first + within % rows, within / rows};
}

/// C [m, n] as it is written, f32 or bf16: its type is asked for at run time, by a branch that all threads take alike, for half as many kernels.
struct MatmulResult {
  void* data;
  int64_t row;  ///< elements between rows
  int64_t m, n;
  bool bf16, accumulate;
  bool pairs;   ///< two elements at an even column lie aligned for one access
};
inline MatmulResult result_of(const MatmulArgs& args) {
  return {args.c, args.c_row, args.m, args.n, args.c_type == DType::bf16, args.accumulate, is_aligned(args.c, args.c_row, args.c_type, 2 * size_of(args.c_type))};
}

__device__ inline void write_one(float* to, bool accumulate, float sum) { *to = accumulate ? *to + sum : sum; }
__device__ inline void write_one(gpu::bf16* to, bool accumulate, float sum) { *to = gpu::from_float<gpu::bf16>(accumulate ? gpu::to_float(*to) + sum : sum); }

/// c[row, column] and the next = or += the sums, where they are inside.
__device__ inline void write_pair(const MatmulResult& c, int64_t row, int64_t column, float first, float second) {
  if (row >= c.m || column >= c.n) return;
  const int64_t at = row * c.row + column;
  if (c.pairs && column + 1 < c.n) {
    if (c.bf16) {
      uint32_t* const both = reinterpret_cast<uint32_t*>(static_cast<gpu::bf16*>(c.data) + at);
      const uint32_t before = c.accumulate ? *both : 0;
      if (c.accumulate) first += gpu::bf16_low(before), second += gpu::bf16_high(before);
      *both = gpu::pack_bf16(first, second);
    } else {
      float2* const both = reinterpret_cast<float2*>(static_cast<float*>(c.data) + at);
      if (c.accumulate) first += both->x, second += both->y;
      *both = make_float2(first, second);
    }
    return;
  }
  const auto write = [&](auto* to) {
    write_one(to, c.accumulate, first);
    if (column + 1 < c.n) write_one(to + 1, c.accumulate, second);
  };
  if (c.bf16) write(static_cast<gpu::bf16*>(c.data) + at);
  else write(static_cast<float*>(c.data) + at);
}

}  // namespace quire
