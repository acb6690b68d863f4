// RMS normalisation on CUDA devices (Zhang and Sennrich, 2019). Narrow rows get a warp each, wide ones a block: which, depends on the width alone.
#include "ops/cuda/elementwise.h"

namespace quire {
namespace {

using namespace cuda_kernel;

constexpr int64_t widest_of_warp = 1024;
constexpr int warps_of_block = block_threads / warp_size;
/// Rows whose contributions to the gain's gradient are added up before chunks are combined.
constexpr int64_t chunk_of_warps = 128, chunk_of_block = 32;
/// Partial sums up to this size are kept in shared memory.
constexpr int64_t most_shared_sums = 96 * 1024;

/// Who works on a row: a warp, or a whole block.
template <bool warps>
struct Team {
  __device__ static int64_t members() { return warps ? warp_size : blockDim.x; }
  __device__ static int64_t member() { return warps ? threadIdx.x % warp_size : threadIdx.x; }
  __device__ static int64_t team() { return warps ? threadIdx.x / warp_size : 0; }
  __device__ static int64_t teams() { return warps ? warps_of_block : 1; }
  __device__ static float sum(float value, float* shared) {
    if constexpr (warps) return warp_sum(value);
    else return block_sum(value, shared);
  }
};

/// Null for what is not given.
template <class T> __device__ inline T* row_of(T* all, int64_t row, int64_t width) { return all == nullptr ? nullptr : all + row * width; }

template <class T, bool warps>
__global__ void __launch_bounds__(block_threads) rmsnorm_forward(const RmsNormForwardArgs args, bool vectors) {
  DYNAMIC_SMEM(memory);
  constexpr int n = vector_values<T>;
  using Own = Team<warps>;
  const int64_t width = args.width;
  const T* const gain = static_cast<const T*>(args.gain);
  for (int64_t row = blockIdx.x * Own::teams() + Own::team(); row < args.rows; row += gridDim.x * Own::teams()) {
    const T* x = static_cast<const T*>(args.x) + row * width;
    const T* const added = row_of(static_cast<const T*>(args.added), row, width);
    T* const sum = row_of(static_cast<T*>(args.sum), row, width);
    T* const y = static_cast<T*>(args.y) + row * width;
    float squares = 0;
    for (int64_t i = Own::member() * n; i < width; i += Own::members() * n) {
      float v[n];
      load_wide(x + i, width - i, vectors, v);
      if (added != nullptr) {
        float more[n];
        T sums[n];
        load_wide(added + i, width - i, vectors, more);
#pragma unroll
        for (int k = 0; k < n; ++k) {
          sums[k] = rounded<T>(v[k] + more[k]);
          v[k] = widened(sums[k]);  // as rounded: what backward reads
        }
        store(sums, sum + i, width - i, vectors);
      }
#pragma unroll
      for (int k = 0; k < n; ++k) squares += v[k] * v[k];
    }
    squares = Own::sum(squares, reinterpret_cast<float*>(memory));
    const float rstd = 1.0f / sqrtf(squares / static_cast<float>(width) + static_cast<float>(args.eps));
    if (Own::member() == 0) static_cast<float*>(args.rstd)[row] = rstd;
    if (added != nullptr) x = sum;  // a thread reads what it wrote itself
    for (int64_t i = Own::member() * n; i < width; i += Own::members() * n) {
      float v[n], g[n];
      load_wide(x + i, width - i, vectors, v);
      load_wide(gain + i, width - i, vectors, g);
#pragma unroll
      for (int k = 0; k < n; ++k) v[k] = v[k] * rstd * g[k];
      store_rounded(v, y + i, width - i, vectors);
    }
  }
}

/// Where partial sums of the gain's gradient lie: value k of the j-th vector at k * vectors + j, so that neighbouring threads meet neighbouring banks.
template <class T> __host__ __device__ inline int64_t vectors_in(int64_t width) { return divided_up(width, vector_values<T>); }
template <class T> __host__ __device__ inline int64_t sums_in(int64_t width) { return vectors_in<T>(width) * vector_values<T>; }

/// With h = x rstd and g = dy gain: dx = rstd (g - h mean(g h)); sums [teams, sums_in(width)] += dy h. Each member owns its columns of its team's sums.
template <class T, bool warps>
__device__ inline void backward_row(const RmsNormBackwardArgs& args, int64_t row, bool vectors, float* sums, float* shared) {
  constexpr int n = vector_values<T>;
  using Own = Team<warps>;
  const int64_t width = args.width, in_row = vectors_in<T>(width);
  const T* const gain = static_cast<const T*>(args.gain);
  const T* const x = static_cast<const T*>(args.x) + row * width;
  const T* const dy = static_cast<const T*>(args.dy) + row * width;
  const T* const so_far = row_of(static_cast<const T*>(args.so_far), row, width);
  T* const dx = static_cast<T*>(args.dx) + row * width;
  const float rstd = static_cast<const float*>(args.rstd)[row];
  float dot = 0;
  for (int64_t i = Own::member() * n; i < width; i += Own::members() * n) {
    float normal[n], gradient[n], g[n];
    load_wide(x + i, width - i, vectors, normal);
    load_wide(dy + i, width - i, vectors, gradient);
    load_wide(gain + i, width - i, vectors, g);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const float along = gradient[k] * (normal[k] * rstd);
      sums[k * in_row + i / n] += along;
      dot += along * g[k];
    }
  }
  const float mean = Own::sum(dot, shared) / static_cast<float>(width);
  for (int64_t i = Own::member() * n; i < width; i += Own::members() * n) {
    float normal[n], gradient[n], g[n];
    load_wide(x + i, width - i, vectors, normal);
    load_wide(dy + i, width - i, vectors, gradient);
    load_wide(gain + i, width - i, vectors, g);
#pragma unroll
    for (int k = 0; k < n; ++k) gradient[k] = rstd * (gradient[k] * g[k] - normal[k] * rstd * mean);
    if (so_far != nullptr) {
      float before[n];
      load_wide(so_far + i, width - i, vectors, before);
#pragma unroll
      for (int k = 0; k < n; ++k) gradient[k] += before[k];
    }
    store_rounded(gradient, dx + i, width - i, vectors);
  }
}

/// A block per chunk of rows; partials [chunks, sums_in(width)].
template <class T, bool warps>
__global__ void __launch_bounds__(block_threads) rmsnorm_backward(const RmsNormBackwardArgs args, bool vectors, int64_t chunks, float* partials,
    bool sums_in_shared) {
  DYNAMIC_SMEM(memory);
  using Own = Team<warps>;
  constexpr int64_t chunk_rows = warps ? chunk_of_warps : chunk_of_block;
  constexpr int n = vector_values<T>;
  const int64_t size = sums_in<T>(args.width), in_row = vectors_in<T>(args.width);
  float* const shared = reinterpret_cast<float*>(memory);
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    float* const partial = partials + chunk * size;
    float* const sums = sums_in_shared ? shared + warps_of_block + Own::team() * size : partial;
    for (int64_t i = Own::member() * n; i < args.width; i += Own::members() * n)
      for (int k = 0; k < n; ++k) sums[k * in_row + i / n] = 0;
    const int64_t end = min(args.rows, (chunk + 1) * chunk_rows);
    for (int64_t row = chunk * chunk_rows + Own::team(); row < end; row += Own::teams()) backward_row<T, warps>(args, row, vectors, sums, shared);
    if (!sums_in_shared) continue;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
      float sum = 0;
      for (int64_t team = 0; team < Own::teams(); ++team) sum += shared[warps_of_block + team * size + i];
      partial[i] = sum;
    }
    __syncthreads();
  }
}

/// dgain += the chunks' sums. A block has 32 sums, and a warp every eighth chunk of them.
template <class T>
__global__ void __launch_bounds__(block_threads) add_to_gain(int64_t width, int64_t chunks, const float* partials, float* dgain) {
  DYNAMIC_SMEM(memory);
  float* const shared = reinterpret_cast<float*>(memory);
  const int64_t size = sums_in<T>(width), in_row = vectors_in<T>(width);
  const int lane = static_cast<int>(threadIdx.x % warp_size), warp = static_cast<int>(threadIdx.x / warp_size);
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * warp_size; first < size; first += static_cast<int64_t>(gridDim.x) * warp_size) {
    const int64_t i = first + lane;
    float sum = 0;
    if (i < size)
      for (int64_t chunk = warp; chunk < chunks; chunk += warps_of_block) sum += partials[chunk * size + i];
    shared[threadIdx.x] = sum;
    __syncthreads();
    const int64_t column = i % in_row * vector_values<T> + i / in_row;
    if (warp == 0 && i < size && column < width) {
      for (int w = 1; w < warps_of_block; ++w) sum += shared[w * warp_size + lane];
      dgain[column] += sum;
    }
    __syncthreads();
  }
}

template <class T, class Args>
bool rows_in_vectors(const Args& args, std::initializer_list<const void*> pointers) {
  return args.width % vector_values<T> == 0 && std::all_of(pointers.begin(), pointers.end(), [](const void* p) { return in_vectors(p); });
}

void forward(Rank& rank, const RmsNormForwardArgs& args) {
  if (args.rows == 0) return;
  const bool warps = args.width <= widest_of_warp;
  by_model_type(args.type, [&](auto t) {
    using T = decltype(t);
    gpu::launch(warps ? rmsnorm_forward<T, true> : rmsnorm_forward<T, false>, dim3(blocks_of(rank, warps ? divided_up(args.rows, warps_of_block) : args.rows)),
                dim3(block_threads), warps_of_block * sizeof(float), stream_of(rank), args,
                rows_in_vectors<T>(args, {args.x, args.gain, args.y, args.added, args.sum}));
  });
}

void backward(Rank& rank, const RmsNormBackwardArgs& args) {
  if (args.rows == 0 || args.width == 0) return;
  const bool warps = args.width <= widest_of_warp;
  const int64_t chunks = divided_up(args.rows, warps ? chunk_of_warps : chunk_of_block);
  const cudaStream_t stream = stream_of(rank);
  by_model_type(args.type, [&](auto t) {
    using T = decltype(t);
    const int64_t size = sums_in<T>(args.width), teams = warps ? warps_of_block : 1;
    KernelWorkspace workspace(rank);
    float* const partials = workspace.take<float>(chunks * size);
    const int64_t sums_bytes = teams * size * static_cast<int64_t>(sizeof(float));
    const bool in_shared = sums_bytes <= most_shared_sums;
    gpu::launch(warps ? rmsnorm_backward<T, true> : rmsnorm_backward<T, false>, dim3(blocks_of(rank, chunks)), dim3(block_threads),
                warps_of_block * sizeof(float) + (in_shared ? static_cast<size_t>(sums_bytes) : 0), stream, args,
                rows_in_vectors<T>(args, {args.x, args.gain, args.dy, args.dx, args.so_far}), chunks, partials, in_shared);
    gpu::launch(add_to_gain<T>, dim3(blocks_of(rank, divided_up(size, warp_size))), dim3(block_threads), block_threads * sizeof(float), stream,
        args.width, chunks, partials, static_cast<float*>(args.dgain));
  });
}

}  // namespace

template <>
KernelList<RmsNormForwardArgs> cuda_kernels<RmsNormForwardArgs>() {
  static constexpr Kernel<RmsNormForwardArgs> list[] = {{"vector", of_model_type<RmsNormForwardArgs>, forward}};
  return list;
}

template <>
KernelList<RmsNormBackwardArgs> cuda_kernels<RmsNormBackwardArgs>() {
  static constexpr Kernel<RmsNormBackwardArgs> list[] = {{"vector", of_model_type<RmsNormBackwardArgs>, backward}};
  return list;
}

}  // namespace quire
