// Sums of two arrays on CUDA devices.
#include "ops/cuda/elementwise.h"

namespace quire {
namespace {

using namespace cuda_kernel;

/// `into` may be `a` or `b`.
template <class T>
__global__ void add_arrays(int64_t count, const T* a, const T* b, T* into, bool vectors) {
  constexpr int n = vector_values<T>;
  for (int64_t i = first_of_grid<n>(); i < count; i += stride_of_grid<n>()) {
    Accumulated<T> x[n], y[n];
    load_wide(a + i, count - i, vectors, x);
    load_wide(b + i, count - i, vectors, y);
#pragma unroll
    for (int k = 0; k < n; ++k) x[k] += y[k];
    store_rounded(x, into + i, count - i, vectors);
  }
}

void sum(Rank& rank, const SumArgs& args) {
  if (args.count == 0) return;
  by_floating_type(args.type, [&](auto t) {
    using T = decltype(t);
    gpu::launch(add_arrays<T>, dim3(blocks_of(rank, divided_up(args.count, vector_values<T> * block_threads))), dim3(block_threads), 0,
        stream_of(rank), args.count,
                static_cast<const T*>(args.a), static_cast<const T*>(args.b), static_cast<T*>(args.into), in_vectors(args.a, args.b, args.into));
  });
}
void add(Rank& rank, const AddArgs& args) { sum(rank, {args.type, args.count, args.into, args.from, args.into}); }

}  // namespace

template <>
KernelList<AddArgs> cuda_kernels<AddArgs>() {
  static constexpr Kernel<AddArgs> list[] = {{"vector", of_floating_type<AddArgs>, add}};
  return list;
}

template <>
KernelList<SumArgs> cuda_kernels<SumArgs>() {
  static constexpr Kernel<SumArgs> list[] = {{"vector", of_floating_type<SumArgs>, sum}};
  return list;
}

}  // namespace quire
