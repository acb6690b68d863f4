// Rotary position embedding on CUDA devices: a block per token, so that a token's angles are read once for all of its heads.
#include "ops/cuda/elementwise.h"

namespace quire {
namespace {

using namespace cuda_kernel;

/// y may be x: a thread reads both halves of what it turns before it writes.
template <class T>
__global__ void rotate(const RotaryArgs args, bool vectors) {
  constexpr int n = vector_values<T>;
  const int64_t half = args.head_dim / 2, groups = divided_up(half, n), items = args.heads * groups;
  const float direction = args.inverse ? -1.0f : 1.0f;
  for (int64_t token = blockIdx.x; token < args.tokens; token += gridDim.x) {
    const int64_t position = args.positions[token];
    for (int64_t item = threadIdx.x; item < items; item += blockDim.x) {
      const int64_t head = item / groups, i = item % groups * n, count = half - i;
      float cosine[n], sine[n], first[n], second[n], turned[n];
      load(static_cast<const float*>(args.cosine) + position * half + i, count, vectors, cosine);
      load(static_cast<const float*>(args.sine) + position * half + i, count, vectors, sine);
      const int64_t at = (token * args.heads + head) * args.head_dim + i;
      const T* const x = static_cast<const T*>(args.x) + at;
      T* const y = static_cast<T*>(args.y) + at;
      load_wide(x, count, vectors, first);
      load_wide(x + half, count, vectors, second);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const float s = sine[k] * direction;
        turned[k] = first[k] * cosine[k] - second[k] * s;
        second[k] = second[k] * cosine[k] + first[k] * s;
      }
      store_rounded(turned, y, count, vectors);
      store_rounded(second, y + half, count, vectors);
    }
  }
}

void rotary(Rank& rank, const RotaryArgs& args) {
  if (args.tokens == 0 || args.heads == 0 || args.head_dim == 0) return;
  by_model_type(args.type, [&](auto t) {
    using T = decltype(t);
    const int64_t half = args.head_dim / 2, items = args.heads * divided_up(half, vector_values<T>);
    const unsigned threads = static_cast<unsigned>(std::min<int64_t>(block_threads, divided_up(items, warp_size) * warp_size));
    gpu::launch(rotate<T>, dim3(blocks_of(rank, args.tokens)), dim3(threads), 0, stream_of(rank), args,
                in_vectors(args.cosine, args.sine, args.x, args.y) && half % vector_values<T> == 0);
  });
}

bool even_head(const RotaryArgs& args) { return is_model_type(args.type) && args.head_dim % 2 == 0; }

}  // namespace

template <>
KernelList<RotaryArgs> cuda_kernels<RotaryArgs>() {
  static constexpr Kernel<RotaryArgs> list[] = {{"vector", even_head, rotary}};
  return list;
}

}  // namespace quire
