// Attention's row loops: delta of the backward pass, and merging of partial results. A warp has one head of one token.
#include <gpu.h>

#include "ops/cuda/attention_calls.h"

namespace quire::attention {
namespace {

constexpr int warps = 8;
constexpr uint32_t all_lanes = 0xffffffffu;

template <class T>
__global__ void __launch_bounds__(32 * warps) products(const T* out, const T* dout, int64_t rows, int64_t width, float* delta) {
  const int64_t row = int64_t{blockIdx.x} * warps + threadIdx.x / 32;
  if (row >= rows) return;
  float sum = 0;
  for (int64_t i = threadIdx.x % 32; i < width; i += 32) sum += gpu::to_float(out[row * width + i]) * gpu::to_float(dout[row * width + i]);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(all_lanes, sum, step);
  if (threadIdx.x % 32 == 0) delta[row] = sum;
}

__global__ void __launch_bounds__(32 * warps) merge(const int32_t* start, int64_t tokens, int64_t heads, int64_t width, float* out1, float* lse1, const float* out2,
                                                    const float* lse2) {
  const int64_t row = int64_t{blockIdx.x} * warps + threadIdx.x / 32;
  if (row >= tokens * heads || start[row / heads] < 0) return;
  const int lane = threadIdx.x % 32;
  const float first = lse1[row], second = lse2[row];
  __syncwarp();  // all have read what one writes
  if (second == -INFINITY) return;
  float* const out = out1 + row * width;
  const float* const other = out2 + row * width;
  if (first == -INFINITY) {
    for (int64_t i = lane; i < width; i += 32) out[i] = other[i];
    if (lane == 0) lse1[row] = second;
    return;
  }
  const float most = fmaxf(first, second), a = expf(first - most), b = expf(second - most), sum = a + b;
  for (int64_t i = lane; i < width; i += 32) out[i] = out[i] * (a / sum) + other[i] * (b / sum);
  if (lane == 0) lse1[row] = most + logf(sum);
}

dim3 blocks_for(int64_t rows) { return dim3(static_cast<unsigned>((rows + warps - 1) / warps)); }

}  // namespace

void row_products(const void* out, const void* dout, bool bf16, int64_t rows, int64_t head_dim, float* delta, cudaStream_t stream) {
  if (rows == 0) return;
  if (bf16) gpu::launch(products<gpu::bf16>, blocks_for(rows), dim3(32 * warps), 0, stream, static_cast<const gpu::bf16*>(out), static_cast<const gpu::bf16*>(dout), rows, head_dim, delta);
  else gpu::launch(products<float>, blocks_for(rows), dim3(32 * warps), 0, stream, static_cast<const float*>(out), static_cast<const float*>(dout), rows, head_dim, delta);
}

void merge_rows(const int32_t* start, int64_t tokens, int64_t heads, int64_t head_dim, float* out1, float* lse1, const float* out2, const float* lse2, cudaStream_t stream) {
  if (tokens * heads == 0) return;
  gpu::launch(merge, blocks_for(tokens * heads), dim3(32 * warps), 0, stream, start, tokens, heads, head_dim, out1, lse1, out2, lse2);
}

}  // namespace quire::attention
