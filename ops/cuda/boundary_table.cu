// The table of boundaries: a warp has one tile of 64 tokens, finds the first run that reaches into it, and spreads the tile's runs over its tokens.
#include <gpu.h>

#include "ops/cuda/boundary_search.h"
#include "ops/cuda/tile_boundaries.cuh"

namespace quire {
namespace {

constexpr int warps = 4, tile = static_cast<int>(boundary_tile);
constexpr uint32_t all_lanes = 0xffffffffu;

struct Token { int32_t global, start; };
__device__ Token token_of(const DocumentRun* runs, int32_t run, int32_t token) {
  if (run < 0) return {-1, -1};
  const DocumentRun r = runs[run];
  return token < r.local + r.length ? Token{r.global + (token - r.local), r.start} : Token{-1, -1};
}

__global__ void __launch_bounds__(32 * warps) fill_table(const DocumentRun* runs, int32_t runs_count, int32_t tokens, int32_t* global, int32_t* start, TileBoundaries* tiles) {
  DYNAMIC_SMEM(shared);
  const int lane = threadIdx.x % 32;
  const int64_t index = int64_t{blockIdx.x} * warps + threadIdx.x / 32, begin = index * tile;
  if (begin >= tokens) return;
  // The last run that begins at or before each token of the tile, by marks where runs begin.
  int32_t* const marks = reinterpret_cast<int32_t*>(shared) + threadIdx.x / 32 * tile;
  marks[lane] = marks[lane + 32] = -1;
  __syncwarp();
  const int32_t first = first_run_beyond([&](int32_t run) { return int64_t{runs[run].local} + runs[run].length; }, runs_count, begin);
  bool more = true;
  for (int32_t run = first + lane; more; run += 32) {
    const bool here = run < runs_count && runs[run].local < begin + tile;
    if (here) marks[runs[run].local < begin ? 0 : runs[run].local - begin] = run;
    more = __all_sync(all_lanes, here);
  }
  __syncwarp();
  int32_t run[2] = {marks[2 * lane], 0};
  run[1] = max(run[0], marks[2 * lane + 1]);
  int32_t before = run[1];
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(all_lanes, before, step);
    if (lane >= step) before = max(before, other);
  }
  before = __shfl_up_sync(all_lanes, before, 1);
  if (lane == 0) before = -1;

  TileBoundaries all = cuda_kernel::tile_without_tokens();
  for (int i = 0; i < 2; ++i) {
    const auto token = static_cast<int32_t>(begin + 2 * lane + i);
    if (token >= tokens) continue;
    const Token t = token_of(runs, max(before, run[i]), token);
    global[token] = t.global;
    start[token] = t.start;
    all = cuda_kernel::with_token(all, t.global, t.start);
  }
  all = cuda_kernel::over_warp(all);
  if (lane == 0) tiles[index] = all;
}

}  // namespace

void boundary_table(const DocumentRun* runs, int64_t runs_count, int64_t tokens, int32_t* global, int32_t* start, TileBoundaries* tiles, cudaStream_t stream) {
  if (tokens == 0) return;
  const int64_t blocks = (tokens + warps * tile - 1) / (warps * tile);
  gpu::launch(fill_table, dim3(static_cast<unsigned>(blocks)), dim3(32 * warps), warps * tile * sizeof(int32_t), stream, runs, static_cast<int32_t>(runs_count),
              static_cast<int32_t>(tokens), global, start, tiles);
}

}  // namespace quire
