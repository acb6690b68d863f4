// A warp finds the boundaries of a tile's tokens. For .cu files alone.
#pragma once
#include <gpu.h>

#include "ops/boundary_table.h"

namespace quire::cuda_kernel {

__device__ inline TileBoundaries tile_without_tokens() { return {0x7fffffff, -1, 0x7fffffff, -1}; }

/// Of the tile and a token; one that no run covers (start -1) changes nothing.
__device__ inline TileBoundaries with_token(const TileBoundaries& tile, int32_t global, int32_t start) {
  if (start < 0) return tile;
  return {min(tile.first_start, start), max(tile.last_start, start), min(tile.first_global, global), max(tile.last_global, global)};
}

/// Of the parts that the lanes of a warp have, in every lane.
__device__ inline TileBoundaries over_warp(TileBoundaries tile) {
  constexpr unsigned lanes = 0xffffffffu;
  for (int distance = 16; distance > 0; distance /= 2) {
    tile.first_start = min(tile.first_start, __shfl_xor_sync(lanes, tile.first_start, distance));
    tile.last_start = max(tile.last_start, __shfl_xor_sync(lanes, tile.last_start, distance));
    tile.first_global = min(tile.first_global, __shfl_xor_sync(lanes, tile.first_global, distance));
    tile.last_global = max(tile.last_global, __shfl_xor_sync(lanes, tile.last_global, distance));
  }
  return tile;
}

}  // namespace quire::cuda_kernel
