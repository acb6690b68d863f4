// Cross-entropy of rows of logits on CUDA devices, with z-loss (Chowdhery et al., 2022: z_weight * lse^2). A block per row.
#include "ops/cuda/elementwise.h"

namespace quire {
namespace {

using namespace cuda_kernel;

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// Threads of a row's block: by the vocabulary alone.
unsigned threads_of(int64_t vocabulary) {
  return static_cast<unsigned>(std::clamp<int64_t>(divided_up(vocabulary, 4 * warp_size) * warp_size, warp_size, 1024));
}

/// Sum of e^x, by its largest terms, e^0 each and counted apart, so that log1p keeps the digits of a sum that is all but 1.
struct Exponentials {
  float most = minus_infinity;  ///< the largest x
  float tops = 0;               ///< how many are as large
  float rest = 0;               ///< sum of e^(x - most) of all others; NaN where one is NaN
  __device__ void raise_to(float larger) {
    if (!(larger > most)) return;
    rest = (tops + rest) * expf(most - larger);
    tops = 0;
    most = larger;
  }
  __device__ void add(float x) {
    if (x == most) tops += 1;
    else rest += expf(x - most);
  }
};

__device__ inline float block_most(float value, float* shared) {
  for (int distance = warp_size / 2; distance > 0; distance /= 2) value = fmaxf(value, __shfl_xor_sync(all_lanes, value, distance));
  __syncthreads();
  if (threadIdx.x % warp_size == 0) shared[threadIdx.x / warp_size] = value;
  __syncthreads();
  float most = shared[0];
  for (unsigned warp = 1; warp < blockDim.x / warp_size; ++warp) most = fmaxf(most, shared[warp]);
  return most;
}

__global__ void cross_entropy_forward(const CrossEntropyForwardArgs args, bool vectors) {
  DYNAMIC_SMEM(memory);
  float* const shared = reinterpret_cast<float*>(memory);
  constexpr int n = 4;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const float* const x = static_cast<const float*>(args.logits) + row * args.vocabulary;
    Exponentials sum;
    for (int64_t i = threadIdx.x * n; i < args.vocabulary; i += blockDim.x * n) {
      const int64_t count = args.vocabulary - i;
      float v[n];
      load(x + i, count, vectors, v);
      float most = v[0];
#pragma unroll
      for (int k = 1; k < n; ++k)
        if (k < count) most = fmaxf(most, v[k]);
      sum.raise_to(most);
#pragma unroll
      for (int k = 0; k < n; ++k)
        if (k < count) sum.add(v[k]);
    }
    const float most = block_most(sum.most, shared);
    sum.raise_to(most);
    const float tops = block_sum(sum.tops, shared), rest = block_sum(sum.rest, shared);
    if (threadIdx.x == 0) {
      const float log_sum = log1pf(tops - 1 + rest), lse = most + log_sum;
      const int32_t target = args.targets[row];
      static_cast<float*>(args.lse)[row] = lse;
      // (most - x) + log_sum keeps the digits that lse - x would lose where the logits are large.
      static_cast<float*>(args.nll)[row] = target == ignored_target ? 0.0f : (most - x[target]) + log_sum + static_cast<float>(args.z_weight) * lse * lse;
    }
  }
}

/// A thread reads what it writes, and nothing else: dlogits may be the logits.
template <class T>
__global__ void cross_entropy_backward(const CrossEntropyBackwardArgs args, bool vectors) {
  constexpr int n = vector_values<T>;
  const float scale = static_cast<float>(*args.scale);
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const float* const x = static_cast<const float*>(args.logits) + row * args.vocabulary;
    T* const dx = static_cast<T*>(args.dlogits) + row * args.vocabulary;
    const int32_t target = args.targets[row];
    const bool ignored = target == ignored_target;
    const float lse = ignored ? 0.0f : static_cast<const float*>(args.lse)[row];
    const float weight = 1.0f + 2.0f * static_cast<float>(args.z_weight) * lse;
    for (int64_t i = threadIdx.x * n; i < args.vocabulary; i += blockDim.x * n) {
      const int64_t count = args.vocabulary - i;
      float v[n] = {};
      if (!ignored) {
        load(x + i, count, vectors, v);
#pragma unroll
        for (int k = 0; k < n; ++k) {
          const float softmax = expf(v[k] - lse) * weight;
          v[k] = scale * (i + k == target ? softmax - 1.0f : softmax);
        }
      }
      store_rounded(v, dx + i, count, vectors);
    }
  }
}

void forward(Rank& rank, const CrossEntropyForwardArgs& args) {
  if (args.rows == 0) return;
  gpu::launch(cross_entropy_forward, dim3(blocks_of(rank, args.rows)), dim3(threads_of(args.vocabulary)), 32 * sizeof(float), stream_of(rank), args,
              in_vectors(args.logits) && args.vocabulary % 4 == 0);
}

void backward(Rank& rank, const CrossEntropyBackwardArgs& args) {
  if (args.rows == 0) return;
  by_model_type(args.type, [&](auto t) {
    using T = decltype(t);
    gpu::launch(cross_entropy_backward<T>, dim3(blocks_of(rank, args.rows)), dim3(threads_of(args.vocabulary)), 0, stream_of(rank), args,
                in_vectors(args.logits, args.dlogits) && args.vocabulary % vector_values<T> == 0);
  });
}

}  // namespace

template <>
KernelList<CrossEntropyForwardArgs> cuda_kernels<CrossEntropyForwardArgs>() {
  static constexpr Kernel<CrossEntropyForwardArgs> list[] = {{"vector", of_model_type<CrossEntropyForwardArgs>, forward}};
  return list;
}

template <>
KernelList<CrossEntropyBackwardArgs> cuda_kernels<CrossEntropyBackwardArgs>() {
  static constexpr Kernel<CrossEntropyBackwardArgs> list[] = {{"vector", of_model_type<CrossEntropyBackwardArgs>, backward}};
  return list;
}

}  // namespace quire
