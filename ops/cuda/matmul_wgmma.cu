// Matrix products of bf16 on the tensor cores of compute capability 9.0: one warp brings tiles of A and B to shared memory by TMA, several stages ahead, two warp
// groups multiply them by wgmma, each 64 rows. Blocks walk over tiles of C, so that the next tile's operands come while sums are written.
// Each element of C is summed in f32 over ascending k, sixteen steps by an instruction, whatever the sizes: its bits depend on its row and column alone.
#include <hopper.h>

#include <algorithm>

#include "ops/cuda/matmul.h"
#include "ops/cuda/matmul_epilogue.h"
#include "ops/cuda/tensor_maps.h"
#include "runtime/cuda/launch.h"

namespace quire {
namespace {

constexpr int rows = 128, steps = 64, stages = 4;
constexpr int swizzled = 64;                       // elements of a row of a tile in shared memory: 128 bytes
constexpr int square_bytes = swizzled * swizzled * 2;
constexpr int consumers = 2;                       // warp groups
constexpr int consumer_warps = consumers * 4, threads = (consumer_warps + 1) * 32;
constexpr int64_t most_coordinate = (int64_t{1} << 31) - 256;  // TMA's are int

template <int columns>
constexpr int stage_bytes = (rows + columns) * steps * 2;
template <int columns>
constexpr int shared_bytes = 1024 + stages * stage_bytes<columns> + 2 * 8 * stages;

/// Where a block's stages and their barriers lie, and which stage is next.
template <int columns>
struct Pipeline {
  uint32_t base, barriers;
  uint32_t stage = 0;
  int turn = 0;  ///< 0 and 1 by turns, each time the stages have been gone through
  __device__ explicit Pipeline(uint32_t shared) : base((shared + 1023) & ~1023u), barriers(base + stages * stage_bytes<columns>) {}
  __device__ uint32_t a() const { return base + stage * stage_bytes<columns>; }
  __device__ uint32_t b() const { return a() + rows * steps * 2; }
  __device__ uint32_t full() const { return barriers + 8 * stage; }
  __device__ uint32_t empty() const { return barriers + 8 * stages + 8 * stage; }
  __device__ void next() {
    if (++stage == stages) stage = 0, turn ^= 1;
  }
};

/// The walk over tiles of C that producer and consumers make alike.
struct Walk {
  int64_t down, across, rounds;  ///< tiles, and stages of k in each
};

/// Brings `size` rows of A or columns of B from `first` on and 64 steps to shared memory. `deep`: lines in memory run along k.
template <bool deep, int size>
__device__ inline void load_tile(uint32_t to, const CUtensorMap* map, int first, int step, uint32_t barrier) {
  if constexpr (deep) {
    gpu::tma_load_2d(to, map, step, first, barrier);
  } else {
#pragma unroll
    for (int part = 0; part < size / swizzled; ++part) gpu::tma_load_2d(to + part * square_bytes, map, first + part * swizzled, step, barrier);
  }
}

template <bool a_deep, bool b_deep, int columns>
__device__ inline void produce(const CUtensorMap* a, const CUtensorMap* b, Walk walk, Pipeline<columns> at) {
  for (int64_t tile = blockIdx.x; tile < walk.down * walk.across; tile += gridDim.x) {
    const TilePlace place = tile_place(tile, walk.down, walk.across);
    const int row = static_cast<int>(place.row * rows), column = static_cast<int>(place.column * columns);
    for (int64_t round = 0; round < walk.rounds; ++round, at.next()) {
      gpu::mbar_wait(at.empty(), at.turn ^ 1);
      gpu::mbar_expect_tx(at.full(), stage_bytes<columns>);
      load_tile<a_deep, rows>(at.a(), a, row, static_cast<int>(round * steps), at.full());
      load_tile<b_deep, columns>(at.b(), b, column, static_cast<int>(round * steps), at.full());
    }
  }
}

template <bool a_deep, bool b_deep, int columns>
__device__ inline void multiply_stage(const Pipeline<columns>& at, int group, float (&sum)[columns / 2]) {
  const uint32_t a = at.a() + group * (a_deep ? 64 * 128 : square_bytes), b = at.b();
#pragma unroll
  for (int part = 0; part < steps / 16; ++part) {
    const uint64_t left = a_deep ? gpu::tile_desc(a + part * 32) : gpu::transposed_tile_desc(a + part * 2048, square_bytes);
    const uint64_t right = b_deep ? gpu::tile_desc(b + part * 32) : gpu::transposed_tile_desc(b + part * 2048, square_bytes);
    if constexpr (columns == 128) gpu::wgmma_m64n128k16<!a_deep, !b_deep>(sum, left, right, 1);
    else gpu::wgmma_m64n256k16<!a_deep, !b_deep>(sum, left, right, 1);
  }
}

template <bool a_deep, bool b_deep, int columns>
__device__ inline void consume(const MatmulResult& c, Walk walk, Pipeline<columns> at) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, group = warp / 4;
  for (int64_t tile = blockIdx.x; tile < walk.down * walk.across; tile += gridDim.x) {
    float sum[columns / 2] = {};
    uint32_t before = 0;  // the barrier of the stage that the products under way read
    for (int64_t round = 0; round < walk.rounds; ++round, at.next()) {
      if (!gpu::planted("matmul.missing_wait")) gpu::mbar_wait(at.full(), at.turn);
      gpu::wgmma_fence();
      multiply_stage<a_deep, b_deep, columns>(at, group, sum);
      gpu::wgmma_commit();
      if (!gpu::planted("matmul.early_release")) gpu::wgmma_wait<1>();
      if (lane == 0 && round > 0) gpu::mbar_arrive(before);
      before = at.empty();
    }
    gpu::wgmma_wait<0>();
    gpu::wgmma_settle(sum);
    if (lane == 0 && walk.rounds > 0) gpu::mbar_arrive(before);
    const TilePlace place = tile_place(tile, walk.down, walk.across);
    const int64_t row = place.row * rows + warp * 16 + lane / 4, column = place.column * columns + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < columns / 8; ++j) {
      write_pair(c, row, column + j * 8, sum[4 * j], sum[4 * j + 1]);
      write_pair(c, row + 8, column + j * 8, sum[4 * j + 2], sum[4 * j + 3]);
    }
  }
}

template <bool a_deep, bool b_deep, int columns>
__global__ void __launch_bounds__(threads, 1) multiply_wgmma(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, MatmulResult c, Walk walk) {
  DYNAMIC_SMEM(shared);
  Pipeline<columns> pipeline(gpu::smem_addr(shared));
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      gpu::mbar_init(pipeline.barriers + 8 * stage, 1);
      gpu::mbar_init(pipeline.barriers + 8 * stages + 8 * stage, consumer_warps);
    }
    gpu::mbar_fence_init();
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < consumer_warps) consume<a_deep, b_deep, columns>(c, walk, pipeline);
  else if (threadIdx.x % 32 == 0) produce<a_deep, b_deep, columns>(&a, &b, walk, pipeline);
}

CUtensorMap map_of(Rank& rank, const MatmulOperand& operand, int box_lines) {
  return tensor_map(rank, operand.data, operand.lines, operand.columns, operand.stride, box_lines);
}

template <bool a_deep, bool b_deep, int columns>
void run(Rank& rank, const MatmulArgs& args) {
  const CUtensorMap a = map_of(rank, left_operand(args), a_deep ? rows : steps), b = map_of(rank, right_operand(args), b_deep ? columns : steps);
  const Walk walk{(args.m + rows - 1) / rows, (args.n + columns - 1) / columns, (args.k + steps - 1) / steps};
  const int64_t blocks = std::min<int64_t>(walk.down * walk.across, multiprocessors_of(rank));
  gpu::launch(multiply_wgmma<a_deep, b_deep, columns>, dim3(static_cast<unsigned>(blocks)), dim3(threads), shared_bytes<columns>, stream_of(rank), a, b, result_of(args), walk);
}

template <bool a_deep, bool b_deep>
void run_width(Rank& rank, const MatmulArgs& args) {
  if (args.n <= 128) run<a_deep, b_deep, 128>(rank, args);
  else run<a_deep, b_deep, 256>(rank, args);
}

bool fits_maps(const MatmulOperand& operand) {
  return is_aligned(operand.data, operand.stride, DType::bf16, 16) && operand.lines < most_coordinate && operand.columns < most_coordinate;
}

}  // namespace

bool matmul_wgmma_can_run(const MatmulArgs& args) {
  return args.type == DType::bf16 && matmul_type_can_run(args) && fits_maps(left_operand(args)) && fits_maps(right_operand(args));
}

void matmul_wgmma(Rank& rank, const MatmulArgs& args) {
  require_capability_90(rank, "wgmma");  // no other has the instructions that this file is compiled to
  if (args.m == 0 || args.n == 0 || args.k == 0) return matmul_mma(rank, args);  // maps of nothing are none
  count_flops(rank, 2 * args.m * args.n * args.k);
  const bool a_deep = args.a_col == 1, b_deep = args.b_col != 1;
  if (a_deep) return b_deep ? run_width<true, true>(rank, args) : run_width<true, false>(rank, args);
  return b_deep ? run_width<false, true>(rank, args) : run_width<false, false>(rank, args);
}

}  // namespace quire
