// AdamW on CUDA devices (Loshchilov and Hutter, 2019): all parameters of a step in few launches, a table of them each.
#include "ops/cuda/elementwise.h"

namespace quire {
namespace {

using namespace cuda_kernel;

constexpr int64_t chunk_values = 4096;  ///< of one tensor, for a block
constexpr int table_tensors = 56;

/// Tensors of one launch: a kernel's parameters have room for 4 KiB.
struct AdamWTable {
  struct Entry {
    AdamWTensor tensor;
    int64_t first_chunk;  ///< of the launch's chunks
  } entry[table_tensors];
  int tensors;
  double beta1, beta2, eps;
  const OptimizerScalars* scalars;
};
static_assert(sizeof(AdamWTable) <= 4000);

/// Constants of a step in the type that it is computed in.
struct Constants {
  float keep1, take1, keep2, take2, unbias1, unbias2, rate, clip, eps, decay;
};

template <class T>
__device__ inline void update_chunk(const AdamWTensor& tensor, const Constants& c, int64_t begin, int64_t end) {
  constexpr int n = 4;
  const float* const gradient = static_cast<const float*>(tensor.gradient);
  float* const master = static_cast<float*>(tensor.master);
  float* const moment1 = static_cast<float*>(tensor.moment1);
  float* const moment2 = static_cast<float*>(tensor.moment2);
  T* const value = static_cast<T*>(tensor.value);
  const bool vectors = in_vectors(gradient, master, moment1, moment2, value);
  for (int64_t i = begin + threadIdx.x * n; i < end; i += block_threads * n) {
    const int64_t count = end - i;
    float g[n], m[n], v[n], weight[n];
    load(gradient + i, count, vectors, g);
    load(moment1 + i, count, vectors, m);
    load(moment2 + i, count, vectors, v);
    load(master + i, count, vectors, weight);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      g[k] *= c.clip;
      m[k] = c.keep1 * m[k] + c.take1 * g[k];
      v[k] = c.keep2 * v[k] + c.take2 * (g[k] * g[k]);
      const float step = m[k] * c.unbias1 / (sqrtf(v[k] * c.unbias2) + c.eps);
      weight[k] = weight[k] - c.rate * (step + c.decay * weight[k]);
    }
    store(m, moment1 + i, count, vectors);
    store(v, moment2 + i, count, vectors);
    store(weight, master + i, count, vectors);
    if (value != nullptr) store_rounded(weight, value + i, count, vectors);
  }
}

template <class T>
__global__ void __launch_bounds__(block_threads) update_tensors(const __grid_constant__ AdamWTable table, int64_t chunks) {
  const OptimizerScalars& s = *table.scalars;
  if (s.skip != 0) return;
  Constants c;
  c.keep1 = static_cast<float>(table.beta1);
  c.take1 = static_cast<float>(1 - table.beta1);
  c.keep2 = static_cast<float>(table.beta2);
  c.take2 = static_cast<float>(1 - table.beta2);
  c.unbias1 = static_cast<float>(1 / s.bias1);
  c.unbias2 = static_cast<float>(1 / s.bias2);
  c.rate = static_cast<float>(s.learning_rate);
  c.clip = static_cast<float>(s.clip);
  c.eps = static_cast<float>(table.eps);
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const auto& entry = table.entry[tensor_of(table, chunk)];
    c.decay = static_cast<float>(entry.tensor.weight_decay);
    const int64_t begin = (chunk - entry.first_chunk) * chunk_values;
    update_chunk<T>(entry.tensor, c, begin, min(entry.tensor.count, begin + chunk_values));
  }
}

void adamw(Rank& rank, const AdamWArgs& args) {
  for (size_t first = 0; first < args.tensors.size(); first += table_tensors) {
    AdamWTable table{};
    table.beta1 = args.beta1;
    table.beta2 = args.beta2;
    table.eps = args.eps;
    table.scalars = args.scalars;
    table.tensors = static_cast<int>(std::min(args.tensors.size() - first, static_cast<size_t>(table_tensors)));
    int64_t chunks = 0;
    for (int i = 0; i < table.tensors; ++i) {
      table.entry[i] = {args.tensors[first + static_cast<size_t>(i)], chunks};
      chunks += divided_up(table.entry[i].tensor.count, chunk_values);
    }
    if (chunks == 0) continue;
    by_model_type(args.type, [&](auto t) {
      gpu::launch(update_tensors<decltype(t)>, dim3(blocks_of(rank, chunks)), dim3(block_threads), 0, stream_of(rank), table, chunks);
    });
  }
}

}  // namespace

template <>
KernelList<AdamWArgs> cuda_kernels<AdamWArgs>() {
  static constexpr Kernel<AdamWArgs> list[] = {{"vector", of_model_type<AdamWArgs>, adamw}};
  return list;
}

}  // namespace quire
