// Boundaries that were received, as they are computed with on CUDA devices, and the tiles of a table of them.
#include "ops/cuda/elementwise.h"
#include "ops/cuda/tile_boundaries.cuh"

namespace quire {
namespace {

using namespace cuda_kernel;

__global__ void accept(const ReceivedBoundariesArgs args) {
  for (int64_t i = first_of_grid<1>(); i < args.tokens_count; i += stride_of_grid<1>()) {
    const auto place = static_cast<int32_t>(i);
    int32_t index = args.indices != nullptr ? args.indices[i] : place, start = args.starts[i];
    const bool can_be = start >= 0 && start <= index && index < args.microbatch_tokens && index - start < args.most_positions;
    if (!can_be && !gpu::planted("received_boundaries.anything_accepted")) {
      index = args.expected_indices != nullptr ? args.expected_indices[i] : place;
      start = args.expected_starts[i];
    }
    args.global[i] = index;
    args.start[i] = start;
    if (args.positions != nullptr) args.positions[i] = index - start;
  }
}

void received_boundaries(Rank& rank, const ReceivedBoundariesArgs& args) {
  if (args.tokens_count == 0) return;
  gpu::launch(accept, dim3(blocks_of(rank, divided_up(args.tokens_count, block_threads))), dim3(block_threads), 0, stream_of(rank), args);
}

/// A warp per tile.
__global__ void fill_tiles(const BoundaryTilesArgs args, int64_t tiles) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  for (int64_t tile = first_of_grid<1>() / warp_size; tile < tiles; tile += stride_of_grid<1>() / warp_size) {
    TileBoundaries all = tile_without_tokens();
    for (int64_t i = tile * boundary_tile + lane; i < min(args.tokens_count, (tile + 1) * boundary_tile); i += warp_size) all = with_token(all, args.global[i], args.start[i]);
    all = over_warp(all);
    if (lane == 0) args.tiles[tile] = all;
  }
}

void boundary_tiles(Rank& rank, const BoundaryTilesArgs& args) {
  if (args.tokens_count == 0) return;
  const int64_t tiles = divided_up(args.tokens_count, boundary_tile);
  gpu::launch(fill_tiles, dim3(blocks_of(rank, divided_up(tiles, block_threads / warp_size))), dim3(block_threads), 0, stream_of(rank), args, tiles);
}

}  // namespace

template <>
KernelList<ReceivedBoundariesArgs> cuda_kernels<ReceivedBoundariesArgs>() {
  static constexpr Kernel<ReceivedBoundariesArgs> list[] = {{"tokens", always<ReceivedBoundariesArgs>, received_boundaries}};
  return list;
}

template <>
KernelList<BoundaryTilesArgs> cuda_kernels<BoundaryTilesArgs>() {
  static constexpr Kernel<BoundaryTilesArgs> list[] = {{"warps", always<BoundaryTilesArgs>, boundary_tiles}};
  return list;
}

}  // namespace quire
