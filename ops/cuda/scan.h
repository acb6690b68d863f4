// Prefix combinations over a block. For .cu files alone.
#pragma once
#include "ops/cuda/elementwise.h"

namespace quire::cuda_kernel {

/// Associative, with 0 as the neutral value (of values that are not negative).
struct Sum { template <class V> __device__ static V of(V a, V b) { return a + b; } };
struct Latest { template <class V> __device__ static V of(V a, V b) { return a < b ? b : a; } };

/// What the threads up to this one of a block of whole warps have, combined. `shared` has room for a value per warp, all of which stay until the next call: the
/// combination of them all is `block_total`.
template <class Combine, class V>
__device__ inline V block_scan(V value, V* shared) {
  const unsigned lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  for (unsigned distance = 1; distance < warp_size; distance *= 2) {
    const V before = __shfl_up_sync(all_lanes, value, distance);
    if (lane >= distance) value = Combine::of(before, value);
  }
  __syncthreads();  // nobody reads an earlier scan any more
  if (lane == warp_size - 1) shared[warp] = value;
  __syncthreads();
  V before = 0;
  for (unsigned w = 0; w < warp; ++w) before = Combine::of(before, shared[w]);
  return Combine::of(before, value);
}
template <class Combine, class V>
__device__ inline V block_total(const V* shared) {
  V total = 0;
  for (unsigned w = 0; w < blockDim.x / warp_size; ++w) total = Combine::of(total, shared[w]);
  return total;
}

}  // namespace quire::cuda_kernel
