// What the hand-written matrix products share on the device: the order of tiles, and how sums become C.
#pragma once
#include <gpu.h>

#include <cstdint>

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

/// C [m, n] as it is written.
template <class T>
struct MatmulResult {
  T* data;
  int64_t row;  ///< elements between rows
  int64_t m, n;
  bool accumulate;
  bool pairs;   ///< two elements at an even column lie aligned for one access
};

/// c[row, column] and the next = or += the sums, where they are inside.
__device__ inline void write_pair(const MatmulResult<float>& c, int64_t row, int64_t column, float first, float second) {
  if (row >= c.m || column >= c.n) return;
  float* const to = c.data + row * c.row + column;
  if (c.pairs && column + 1 < c.n) {
    float2* const both = reinterpret_cast<float2*>(to);
    float2 value = make_float2(first, second);
    if (c.accumulate) {
      const float2 before = *both;
      value = make_float2(before.x + first, before.y + second);
    }
    *both = value;
    return;
  }
  to[0] = c.accumulate ? to[0] + first : first;
  if (column + 1 < c.n) to[1] = c.accumulate ? to[1] + second : second;
}
__device__ inline void write_pair(const MatmulResult<gpu::bf16>& c, int64_t row, int64_t column, float first, float second) {
  if (row >= c.m || column >= c.n) return;
  gpu::bf16* const to = c.data + row * c.row + column;
  if (c.pairs && column + 1 < c.n) {
    uint32_t* const both = reinterpret_cast<uint32_t*>(to);
    if (c.accumulate) {
      const uint32_t before = *both;
      *both = gpu::pack_bf16(gpu::bf16_low(before) + first, gpu::bf16_high(before) + second);
    } else {
      *both = gpu::pack_bf16(first, second);
    }
    return;
  }
  to[0] = gpu::from_float<gpu::bf16>(c.accumulate ? gpu::to_float(to[0]) + first : first);
  if (column + 1 < c.n) to[1] = gpu::from_float<gpu::bf16>(c.accumulate ? gpu::to_float(to[1]) + second : second);
}

}  // namespace quire
