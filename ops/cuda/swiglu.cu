// SwiGLU on CUDA devices (Shazeer, 2020): silu(gate) * up with silu(x) = x / (1 + e^-x).
#include "ops/cuda/elementwise.h"

namespace quire {
namespace {

using namespace cuda_kernel;

struct Logistic {
  float value;       ///< 1 / (1 + e^-x)
  float complement;  ///< 1 - value, without cancellation
};

/// Both from e^-|x|, which never overflows.
__device__ inline Logistic logistic(float x) {
  const float small = expf(-fabsf(x));
  const float larger = 1.0f / (1.0f + small), smaller = small * larger;
  return x < 0 ? Logistic{smaller, larger} : Logistic{larger, smaller};
}

template <class T>
__global__ void swiglu_forward(int64_t count, const T* gate, const T* up, T* y, bool vectors) {
  constexpr int n = vector_values<T>;
  for (int64_t i = first_of_grid<n>(); i < count; i += stride_of_grid<n>()) {
    float x[n], u[n];
    load_wide(gate + i, count - i, vectors, x);
    load_wide(up + i, count - i, vectors, u);
#pragma unroll
    for (int k = 0; k < n; ++k) x[k] = x[k] * logistic(x[k]).value * u[k];
    store_rounded(x, y + i, count - i, vectors);
  }
}

/// silu'(x) = s (1 + x (1 - s)) with s = 1 / (1 + e^-x).
template <class T>
__global__ void swiglu_backward(int64_t count, const T* gate, const T* up, const T* dy, T* dgate, T* dup, bool vectors) {
  constexpr int n = vector_values<T>;
  for (int64_t i = first_of_grid<n>(); i < count; i += stride_of_grid<n>()) {
    float x[n], u[n], gradient[n];
    load_wide(gate + i, count - i, vectors, x);
    load_wide(up + i, count - i, vectors, u);
    load_wide(dy + i, count - i, vectors, gradient);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const Logistic s = logistic(x[k]);
      u[k] = gradient[k] * u[k] * (s.value * (x[k] * s.complement + 1.0f));
      gradient[k] *= x[k] * s.value;
    }
    store_rounded(gradient, dup + i, count - i, vectors);
    store_rounded(u, dgate + i, count - i, vectors);
  }
}

template <class T> unsigned blocks(Rank& rank, int64_t count) { return blocks_of(rank, divided_up(count, vector_values<T> * block_threads)); }

void forward(Rank& rank, const SwigluForwardArgs& args) {
  if (args.count == 0) return;
  by_model_type(args.type, [&](auto t) {
    using T = decltype(t);
    gpu::launch(swiglu_forward<T>, dim3(blocks<T>(rank, args.count)), dim3(block_threads), 0, stream_of(rank), args.count, static_cast<const T*>(args.gate),
                static_cast<const T*>(args.up), static_cast<T*>(args.y), in_vectors(args.gate, args.up, args.y));
  });
}

void backward(Rank& rank, const SwigluBackwardArgs& args) {
  if (args.count == 0) return;
  by_model_type(args.type, [&](auto t) {
    using T = decltype(t);
    gpu::launch(swiglu_backward<T>, dim3(blocks<T>(rank, args.count)), dim3(block_threads), 0, stream_of(rank), args.count,
        static_cast<const T*>(args.gate),
                static_cast<const T*>(args.up), static_cast<const T*>(args.dy), static_cast<T*>(args.dgate), static_cast<T*>(args.dup),
                in_vectors(args.gate, args.up, args.dy, args.dgate, args.dup));
  });
}

}  // namespace

template <>
KernelList<SwigluForwardArgs> cuda_kernels<SwigluForwardArgs>() {
  static constexpr Kernel<SwigluForwardArgs> list[] = {{"vector", of_model_type<SwigluForwardArgs>, forward}};
  return list;
}

template <>
KernelList<SwigluBackwardArgs> cuda_kernels<SwigluBackwardArgs>() {
  static constexpr Kernel<SwigluBackwardArgs> list[] = {{"vector", of_model_type<SwigluBackwardArgs>, backward}};
  return list;
}

}  // namespace quire
