// Matrix products of bf16 on tensor cores by mma.sync, which all devices from compute capability 8.0 on have. Tiles of A and B come to shared memory by
// asynchronous copies, several steps ahead; rows that do not lie on multiples of 16 bytes, and the ends of rows, are read element by element instead.
// Each element of C is summed in f32 over ascending k, sixteen steps by an instruction, whatever the sizes: its bits depend on its row and column alone.
#include <gpu.h>

#include <algorithm>

#include "ops/cuda/matmul.h"
#include "ops/cuda/matmul_epilogue.h"
#include "runtime/cuda/launch.h"

namespace quire {
namespace {

constexpr int side = 128;      // rows and columns of a tile of C
constexpr int steps = 32;      // of k in a stage
constexpr int stages = 4;
constexpr int threads = 256;   // 2 x 4 warps, each with 64 x 32 elements of the tile
constexpr int warp_rows = 64, warp_columns = 32;
constexpr int row_fragments = warp_rows / 16, column_pairs = warp_columns / 16;
constexpr int tile_bytes = side * steps * 2;
constexpr int64_t most_blocks = 1 << 30;

/// A or B in memory: lines of contiguous elements. A line is a row of A or column of B with its steps of k, or the other way round.
struct Operand {
  const gpu::bf16* data;
  int64_t lines, columns, stride;
  bool aligned;  ///< every line begins on a multiple of 16 bytes
};

/// A tile of an operand in shared memory: its lines, cut into chunks of eight elements, which are swizzled so that eight chunks that one matrix load reads lie in
/// different banks. `deep`: lines run along k.
template <bool deep>
struct TileLayout {
  static constexpr int lines = deep ? side : steps, chunks = (deep ? steps : side) / 8;
  __device__ static uint32_t offset(int line, int chunk) {
    return static_cast<uint32_t>(line * chunks + (deep ? chunk ^ (line >> 1 & 3) : chunk ^ (line & 7))) * 16;
  }
};

/// The chunk at a line and column, element by element; zeros outside.
__device__ inline void read_chunk(const Operand& from, int64_t line, int64_t column, uint32_t* to) {
#pragma unroll 1  // rare, and its registers are needed elsewhere
  for (int pair = 0; pair < 4; ++pair) {
    float value[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t at = column + 2 * pair + i;
      value[i] = line < from.lines && at < from.columns ? gpu::to_float(from.data[line * from.stride + at]) : 0.0f;
    }
    to[pair] = gpu::pack_bf16(value[0], value[1]);
  }
}

/// Starts to bring the tile at (first of the rows of A or columns of B, step of k) to `tile`.
template <bool deep>
__device__ inline void start_tile(const Operand& from, int64_t first, int64_t step, unsigned char* tile) {
  using Layout = TileLayout<deep>;
#pragma unroll
  for (int i = 0; i < Layout::lines * Layout::chunks / threads; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * threads, line = index / Layout::chunks, chunk = index % Layout::chunks;
    const int64_t from_line = (deep ? first : step) + line, column = (deep ? step : first) + chunk * 8;
    unsigned char* const to = tile + Layout::offset(line, chunk);
    const bool outside = from_line >= from.lines || column >= from.columns;
    if (from.aligned && (outside || column + 8 <= from.columns)) gpu::cp_async16(gpu::smem_addr(to), outside ? from.data : from.data + from_line * from.stride + column, outside ? 0 : 16);
    else read_chunk(from, from_line, column, reinterpret_cast<uint32_t*>(to));
  }
}

/// The fragment of 16 rows of A at `row` and 16 steps at `step` of the tile.
template <bool deep>
__device__ inline void load_a(uint32_t tile, int row, int step, uint32_t (&to)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, line = lane % 8;
  if constexpr (deep) gpu::ldmatrix_x4(to, tile + TileLayout<true>::offset(row + (matrix & 1) * 8 + line, step / 8 + (matrix >> 1)));
  else gpu::ldmatrix_x4_trans(to, tile + TileLayout<false>::offset(step + (matrix >> 1) * 8 + line, row / 8 + (matrix & 1)));
}
/// The fragments of 16 columns of B at `column`: registers 0 and 1 of the first eight, 2 and 3 of the others.
template <bool deep>
__device__ inline void load_b(uint32_t tile, int column, int step, uint32_t (&to)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, line = lane % 8;
  if constexpr (deep) gpu::ldmatrix_x4(to, tile + TileLayout<true>::offset(column + (matrix >> 1) * 8 + line, step / 8 + (matrix & 1)));
  else gpu::ldmatrix_x4_trans(to, tile + TileLayout<false>::offset(step + (matrix & 1) * 8 + line, column / 8 + (matrix >> 1)));
}

using Sums = float[row_fragments][2 * column_pairs][4];

template <bool a_deep, bool b_deep>
__device__ inline void multiply_stage(uint32_t a_tile, uint32_t b_tile, int warp_row, int warp_column, Sums& sum) {
#pragma unroll
  for (int step = 0; step < steps; step += 16) {
    uint32_t a[4], b[column_pairs][4];
#pragma unroll
    for (int j = 0; j < column_pairs; ++j) load_b<b_deep>(b_tile, warp_column + j * 16, step, b[j]);
    const int second = gpu::planted("matmul.wrong_fragment") ? 1 : 2;
#pragma unroll
    for (int i = 0; i < row_fragments; ++i) {
      load_a<a_deep>(a_tile, warp_row + i * 16, step, a);
#pragma unroll
      for (int j = 0; j < column_pairs; ++j) {
        gpu::mma_16816(sum[i][2 * j], a, b[j][0], b[j][3 - second]);
        gpu::mma_16816(sum[i][2 * j + 1], a, b[j][second], b[j][3]);
      }
    }
  }
}

__device__ inline void write_sums(const MatmulResult& c, int64_t first_row, int64_t first_column, const Sums& sum) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = first_row + lane / 4, column = first_column + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < row_fragments; ++i)
#pragma unroll
    for (int j = 0; j < 2 * column_pairs; ++j) {
      write_pair(c, row + i * 16, column + j * 8, sum[i][j][0], sum[i][j][1]);
      write_pair(c, row + i * 16 + 8, column + j * 8, sum[i][j][2], sum[i][j][3]);
    }
}

template <bool a_deep, bool b_deep>
__global__ void __launch_bounds__(threads, 2) multiply_mma(Operand a, Operand b, MatmulResult c, int64_t k, int64_t down, int64_t across) {
  DYNAMIC_SMEM(shared);
  unsigned char* const a_tiles = shared;
  unsigned char* const b_tiles = shared + stages * tile_bytes;
  const uint32_t a_address = gpu::smem_addr(a_tiles), b_address = gpu::smem_addr(b_tiles);
  const int warp = static_cast<int>(threadIdx.x) / 32, warp_row = warp / 4 * warp_rows, warp_column = warp % 4 * warp_columns;
  const int64_t rounds = (k + steps - 1) / steps;
  for (int64_t tile = blockIdx.x; tile < down * across; tile += gridDim.x) {
    const TilePlace place = tile_place(tile, down, across);
    const int64_t first_row = place.row * side, first_column = place.column * side;
    const auto start_stage = [&](int64_t round) {
      const int stage = static_cast<int>(round % stages);
      if (round < rounds) {
        start_tile<a_deep>(a, first_row, round * steps, a_tiles + stage * tile_bytes);
        start_tile<b_deep>(b, first_column, round * steps, b_tiles + stage * tile_bytes);
      }
      gpu::cp_async_commit();  // empty groups too: the count of groups tells which stages are there
    };
    Sums sum = {};
    for (int64_t round = 0; round < stages - 1; ++round) start_stage(round);
    for (int64_t round = 0; round < rounds; ++round) {
      if (!gpu::planted("matmul.missing_wait")) gpu::cp_async_wait<stages - 2>();
      __syncthreads();  // all threads' copies of this round are there, and the stage before has been read
      start_stage(round + stages - 1);
      const int stage = static_cast<int>(round % stages);
      multiply_stage<a_deep, b_deep>(a_address + stage * tile_bytes, b_address + stage * tile_bytes, warp_row, warp_column, sum);
    }
    gpu::cp_async_wait<0>();
    __syncthreads();  // the next tile's copies may start
    write_sums(c, first_row + warp_row, first_column + warp_column, sum);
  }
}

Operand operand_of(const MatmulOperand& operand) {
  return {static_cast<const gpu::bf16*>(operand.data), operand.lines, operand.columns, operand.stride, is_aligned(operand.data, operand.stride, DType::bf16, 16)};
}

template <bool a_deep, bool b_deep>
void run(Rank& rank, const MatmulArgs& args) {
  const int64_t down = (args.m + side - 1) / side, across = (args.n + side - 1) / side;
  gpu::launch(multiply_mma<a_deep, b_deep>, dim3(static_cast<unsigned>(std::min(down * across, most_blocks))), dim3(threads), 2 * stages * tile_bytes, stream_of(rank),
              operand_of(left_operand(args)), operand_of(right_operand(args)), result_of(args), args.k, down, across);
}

}  // namespace

bool matmul_mma_can_run(const MatmulArgs& args) { return args.type == DType::bf16 && matmul_type_can_run(args); }

void matmul_mma(Rank& rank, const MatmulArgs& args) {
  count_flops(rank, 2 * args.m * args.n * args.k);
  if (args.m == 0 || args.n == 0) return;
  const bool a_deep = args.a_col == 1, b_deep = args.b_col != 1;
  if (a_deep) return b_deep ? run<true, true>(rank, args) : run<true, false>(rank, args);
  return b_deep ? run<false, true>(rank, args) : run<false, false>(rank, args);
}

}  // namespace quire
