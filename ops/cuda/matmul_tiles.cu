// Matrix products by multiply-adds in f32, tile by tile from shared memory. Each element of C is one chain of additions in ascending k that starts at zero.
#include <gpu.h>

#include <algorithm>

#include "ops/cuda/matmul.h"
#include "ops/cuda/matmul_epilogue.h"
#include "runtime/cuda/launch.h"

namespace quire {
namespace {

constexpr int side = 64;               // rows and columns of a tile of C
constexpr int steps = 16;              // of k in shared memory at once
constexpr int threads = 256;           // each computes 4 x 4 elements
constexpr int per_thread = side * steps / threads;
constexpr int pitch = side + 4;        // elements between steps in shared memory: a multiple of 16 bytes, and few steps share a bank
constexpr int64_t most_blocks = 1 << 30;

template <class T>
struct Operand {
  const T* data;
  int64_t row, step;      ///< elements between rows of A (columns of B), and between steps of k
  int64_t rows;
  bool steps_contiguous;  ///< neighbouring threads then read neighbouring steps, else neighbouring rows
};

/// Where in the tile the thread's element i lies.
struct Place {
  int row, step;
};
__device__ inline Place place_of(bool steps_contiguous, int i) {
  const int thread = static_cast<int>(threadIdx.x);
  if (steps_contiguous) return {thread / steps + i * (threads / steps), thread % steps};
  return {thread % side, thread / side + i * (threads / side)};
}

/// This thread's part of rows [first, first + side) and steps [step, step + steps); zeros outside.
template <class T>
__device__ inline void read_part(const Operand<T>& from, int64_t first, int64_t step, int64_t k, float (&part)[per_thread]) {
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const Place at = place_of(from.steps_contiguous, i);
    const int64_t row = first + at.row, p = step + at.step;
    part[i] = row < from.rows && p < k ? gpu::to_float(from.data[row * from.row + p * from.step]) : 0.0f;
  }
}
__device__ inline void store_part(float* to, bool steps_contiguous, const float (&part)[per_thread]) {
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const Place at = place_of(steps_contiguous, i);
    to[at.step * pitch + at.row] = part[i];
  }
}

__device__ inline void multiply_add(const float* a, const float* b, float (&sum)[4][4]) {
#pragma unroll
  for (int p = 0; p < steps; ++p) {
    float left[4], right[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) left[i] = a[p * pitch + i];
#pragma unroll
    for (int j = 0; j < 4; ++j) right[j] = b[p * pitch + j];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[i][j] += left[i] * right[j];
  }
}

template <class T>
__global__ void __launch_bounds__(threads) multiply_tiles(Operand<T> a, Operand<T> b, MatmulResult c, int64_t k, int64_t down, int64_t across) {
  DYNAMIC_SMEM(shared);
  float* const a_tile = reinterpret_cast<float*>(shared);
  float* const b_tile = a_tile + steps * pitch;
  const int top = static_cast<int>(threadIdx.x) / 16 * 4, left = static_cast<int>(threadIdx.x) % 16 * 4;
  for (int64_t tile = blockIdx.x; tile < down * across; tile += gridDim.x) {
    const TilePlace place = tile_place(tile, down, across);
    const int64_t first_row = place.row * side, first_column = place.column * side;
    float sum[4][4] = {}, a_part[per_thread], b_part[per_thread];
    read_part(a, first_row, 0, k, a_part);
    read_part(b, first_column, 0, k, b_part);
    for (int64_t step = 0; step < k; step += steps) {
      __syncthreads();  // what was there has been read
      store_part(a_tile, a.steps_contiguous, a_part);
      store_part(b_tile, b.steps_contiguous, b_part);
      __syncthreads();
      read_part(a, first_row, step + steps, k, a_part);
      read_part(b, first_column, step + steps, k, b_part);
      multiply_add(a_tile + top, b_tile + left, sum);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      write_pair(c, first_row + top + i, first_column + left, sum[i][0], sum[i][1]);
      write_pair(c, first_row + top + i, first_column + left + 2, sum[i][2], sum[i][3]);
    }
  }
}

template <class T>
void run(Rank& rank, const MatmulArgs& args) {
  const Operand<T> a{static_cast<const T*>(args.a), args.a_row, args.a_col, args.m, args.a_col == 1};
  const Operand<T> b{static_cast<const T*>(args.b), args.b_col, args.b_row, args.n, args.b_row == 1};
  const int64_t down = (args.m + side - 1) / side, across = (args.n + side - 1) / side;
  gpu::launch(multiply_tiles<T>, dim3(static_cast<unsigned>(std::min(down * across, most_blocks))), dim3(threads), 2 * steps * pitch * sizeof(float), stream_of(rank), a, b, result_of(args),
              args.k, down, across);
}

}  // namespace

void matmul_tiles(Rank& rank, const MatmulArgs& args) {
  count_flops(rank, 2 * args.m * args.n * args.k);
  if (args.m == 0 || args.n == 0) return;
  if (args.type == DType::f32) run<float>(rank, args);
  else run<gpu::bf16>(rank, args);
}

}  // namespace quire
