// Sums and sums of squares in f64 on CUDA devices: over fixed chunks, one block each, whose sums one block adds in a fixed order. Many tensors go through
// together, a table of them at a time.
#include "ops/cuda/elementwise.h"

namespace quire {
namespace {

using namespace cuda_kernel;

constexpr int64_t chunk_values = 8192;
constexpr int table_tensors = 120;

/// Tensors of one launch: a kernel's parameters have room for 4 KiB.
struct ReduceTable {
  struct Entry {
    const void* x;
    double* result;
    int64_t count;
    int64_t first_chunk;  ///< of the launch's chunks
  } entry[table_tensors];
  int tensors;
};
static_assert(sizeof(ReduceTable) <= 4000);

int64_t chunks_of_tensor(int64_t count) { return divided_up(count, chunk_values); }

template <class T, bool squared>
__global__ void __launch_bounds__(block_threads) reduce_chunks(const __grid_constant__ ReduceTable table, int64_t chunks, double* partials) {
  DYNAMIC_SMEM(shared);
  constexpr int n = vector_values<T>;
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const ReduceTable::Entry& tensor = table.entry[tensor_of(table, chunk)];
    const int64_t begin = (chunk - tensor.first_chunk) * chunk_values, count = min(tensor.count - begin, chunk_values);
    const T* x = static_cast<const T*>(tensor.x) + begin;
    const bool vectors = reinterpret_cast<uintptr_t>(x) % 16 == 0;
    double sum = 0;
    for (int64_t i = threadIdx.x * n; i < count; i += block_threads * n) {
      T values[n];
      load(x + i, count - i, vectors, values);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const double value = static_cast<double>(widened(values[k]));
        sum += squared ? value * value : value;
      }
    }
    sum = block_sum(sum, reinterpret_cast<double*>(shared));
    if (threadIdx.x == 0) partials[chunk] = sum;
  }
}

/// One block per tensor.
__global__ void __launch_bounds__(block_threads) add_chunks(const __grid_constant__ ReduceTable table, int64_t chunks, const double* partials) {
  DYNAMIC_SMEM(shared);
  const int tensor = static_cast<int>(blockIdx.x);
  const int64_t begin = table.entry[tensor].first_chunk, end = tensor + 1 < table.tensors ? table.entry[tensor + 1].first_chunk : chunks;
  double sum = 0;
  for (int64_t chunk = begin + threadIdx.x; chunk < end; chunk += block_threads) sum += partials[chunk];
  sum = block_sum(sum, reinterpret_cast<double*>(shared));
  if (threadIdx.x == 0) *table.entry[tensor].result = sum;
}

void reduce_table(Rank& rank, DType type, int power, const ReduceTable& table, int64_t chunks) {
  constexpr size_t shared = block_threads / warp_size * sizeof(double);
  const cudaStream_t stream = stream_of(rank);
  KernelWorkspace workspace(rank);
  double* const partials = workspace.take<double>(std::max<int64_t>(chunks, 1));
  if (chunks > 0)
    by_floating_type(type, [&](auto t) {
      using T = decltype(t);
      gpu::launch(power == 2 ? reduce_chunks<T, true> : reduce_chunks<T, false>, dim3(blocks_of(rank, chunks)), dim3(block_threads), shared, stream,
          table, chunks, partials);
    });
  gpu::launch(add_chunks, dim3(static_cast<unsigned>(table.tensors)), dim3(block_threads), shared, stream, table, chunks, partials);
}

/// tensor(i) gives the i-th of `tensors`.
template <class TensorOf>
void reduce_all(Rank& rank, DType type, int power, size_t tensors, const TensorOf& tensor_of) {
  for (size_t first = 0; first < tensors; first += table_tensors) {
    ReduceTable table{};
    int64_t chunks = 0;
    table.tensors = static_cast<int>(std::min(tensors - first, static_cast<size_t>(table_tensors)));
    for (int i = 0; i < table.tensors; ++i) {
      const SquaresTensor tensor = tensor_of(first + static_cast<size_t>(i));
      table.entry[i] = {tensor.x, tensor.result, tensor.count, chunks};
      chunks += chunks_of_tensor(tensor.count);
    }
    reduce_table(rank, type, power, table, chunks);
  }
}

void reduce(Rank& rank, const ReduceArgs& args) {
  reduce_all(rank, args.type, args.power, 1, [&](size_t) { return SquaresTensor{args.count, args.x, args.result}; });
}
void squares(Rank& rank, const SquaresArgs& args) {
  reduce_all(rank, args.type, 2, args.tensors.size(), [&](size_t i) { return args.tensors[i]; });
}

bool can_reduce(const ReduceArgs& args) { return is_floating_type(args.type) && (args.power == 1 || args.power == 2); }

}  // namespace

template <>
KernelList<ReduceArgs> cuda_kernels<ReduceArgs>() {
  static constexpr Kernel<ReduceArgs> list[] = {{"vector", can_reduce, reduce}};
  return list;
}

template <>
KernelList<SquaresArgs> cuda_kernels<SquaresArgs>() {
  static constexpr Kernel<SquaresArgs> list[] = {{"vector", of_floating_type<SquaresArgs>, squares}};
  return list;
}

}  // namespace quire
