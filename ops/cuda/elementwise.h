// What the elementwise and row-wise CUDA kernels share: storage types by DType, vectors of 16 bytes, sums over warps and blocks in a fixed order, sizes of
// launches. For .cu files alone.
#pragma once
#include <gpu.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/kernels.h"
#include "runtime/cuda/launch.h"

namespace quire::cuda_kernel {

constexpr int warp_size = 32;
constexpr unsigned all_lanes = 0xffffffffu;
/// Threads of a block, where nothing asks for another number.
constexpr int block_threads = 256;

/// The type in which values stored as T are computed.
template <class T> using Accumulated = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Values of T in 16 bytes.
template <class T> constexpr int vector_values = 16 / static_cast<int>(sizeof(T));

/// Calls f(T{}) with the device's storage type of `type`.
template <class F>
void by_model_type(DType type, F&& f) {
  if (type == DType::f32) f(float{});
  else f(gpu::bf16{});
}
template <class F>
void by_floating_type(DType type, F&& f) {
  if (type == DType::f64) f(double{});
  else by_model_type(type, f);
}
constexpr bool is_model_type(DType type) { return type == DType::f32 || type == DType::bf16; }
constexpr bool is_floating_type(DType type) { return type == DType::f64 || is_model_type(type); }

/// A kernel's `can_run` where all that matters is the type: models are f32 or bf16 on devices; tensors of scalars may be f64.
template <class Args> bool of_model_type(const Args& args) { return is_model_type(args.type); }
template <class Args> bool of_floating_type(const Args& args) { return is_floating_type(args.type); }
template <class Args> bool always(const Args&) { return true; }

constexpr int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Blocks for so many tasks, of which each block does every gridDim.x-th: enough to fill the device, and no more than a grid may have.
inline unsigned blocks_of(Rank& rank, int64_t tasks) {
  return static_cast<unsigned>(std::clamp<int64_t>(tasks, 1, static_cast<int64_t>(multiprocessors_of(rank)) * 32));
}

/// Whether all of these may be read and written in vectors of 16 bytes.
template <class... Pointers>
__host__ __device__ inline bool in_vectors(const Pointers*... pointers) { return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...); }

// --- on the device
__device__ inline float widened(float x) { return x; }
__device__ inline double widened(double x) { return x; }
__device__ inline float widened(gpu::bf16 x) { return gpu::to_float(x); }

template <class T>
__device__ inline T rounded(Accumulated<T> x) {
  if constexpr (std::is_same_v<T, gpu::bf16>) return gpu::from_float<gpu::bf16>(x);
  else return x;
}

struct __attribute__((aligned(16), may_alias)) Words16 { uint32_t word[4]; };
struct __attribute__((aligned(8), may_alias)) Words8 { uint32_t word[2]; };
/// N values of T as vectors.
template <int N, class T> using Words = std::conditional_t<N * sizeof(T) % 16 == 0, Words16, Words8>;
template <int N, class T> constexpr int words_of = static_cast<int>(N * sizeof(T) / sizeof(Words<N, T>));

/// The first `count` of N consecutive values, the others zero. `vectors`: `from` begins a vector.
template <int N, class T>
__device__ inline void load(const T* from, int64_t count, bool vectors, T (&to)[N]) {
  if (vectors && count >= N) {
    Words<N, T> words[words_of<N, T>];
#pragma unroll
    for (int i = 0; i < words_of<N, T>; ++i) words[i] = reinterpret_cast<const Words<N, T>*>(from)[i];
    memcpy(static_cast<void*>(to), words, sizeof to);
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = i < count ? from[i] : T{};
}
/// The same, widened.
template <int N, class T>
__device__ inline void load_wide(const T* from, int64_t count, bool vectors, Accumulated<T> (&to)[N]) {
  T values[N];
  load(from, count, vectors, values);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = widened(values[i]);
}

template <int N, class T>
__device__ inline void store(const T (&from)[N], T* to, int64_t count, bool vectors) {
  if (vectors && count >= N) {
    Words<N, T> words[words_of<N, T>];
    memcpy(words, static_cast<const void*>(from), sizeof from);
#pragma unroll
    for (int i = 0; i < words_of<N, T>; ++i) reinterpret_cast<Words<N, T>*>(to)[i] = words[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i < count) to[i] = from[i];
}
/// The same, rounded.
template <int N, class T>
__device__ inline void store_rounded(const Accumulated<T> (&from)[N], T* to, int64_t count, bool vectors) {
  T values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = rounded<T>(from[i]);
  store(values, to, count, vectors);
}

/// Where this thread begins, and how far it goes on, when all threads of a grid share elements in groups of N.
template <int N> __device__ inline int64_t first_of_grid() { return (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N; }
template <int N> __device__ inline int64_t stride_of_grid() { return static_cast<int64_t>(gridDim.x) * blockDim.x * N; }

/// The sum over the lanes of a warp, in every lane: in an order that never changes.
template <class V>
__device__ inline V warp_sum(V value) {
  for (int distance = warp_size / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(all_lanes, value, distance);
  return value;
}

/// The sum over a block of whole warps, in every thread: in an order that depends on the block's size alone. `shared` has room for a value per warp.
template <class V>
__device__ inline V block_sum(V value, V* shared) {
  value = warp_sum(value);
  __syncthreads();  // nobody reads an earlier sum any more
  if (threadIdx.x % warp_size == 0) shared[threadIdx.x / warp_size] = value;
  __syncthreads();
  V sum = shared[0];
  for (unsigned warp = 1; warp < blockDim.x / warp_size; ++warp) sum += shared[warp];
  return sum;
}

/// Which of a table's tensors a chunk is of: the last one that begins at or before it. table.entry[i].first_chunk ascends.
template <class Table>
__device__ inline int tensor_of(const Table& table, int64_t chunk) {
  int low = 0, high = table.tensors;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.entry[middle].first_chunk <= chunk) low = middle;
    else high = middle;
  }
  return low;
}

}  // namespace quire::cuda_kernel
