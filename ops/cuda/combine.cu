// Parts of several ranks combined in the order of ranks on CUDA devices.
#include "ops/combine.h"
#include "ops/cuda/elementwise.h"

namespace quire {
namespace {

using namespace cuda_kernel;

template <class T>
__device__ T larger(T a, T b) {
  if (a != a) return a;
  return a >= b ? a : b;  // b where it is a NaN
}

template <class T>
__global__ void combine_parts(CombineArgs args) {
  const T* const mine = static_cast<const T*>(args.mine);
  const T* const others = static_cast<const T*>(args.others);
  T* const into = static_cast<T*>(args.into);
  for (int64_t i = first_of_grid<1>(); i < args.count; i += stride_of_grid<1>()) {
    T result = args.own == 0 ? mine[i] : others[i];
    for (int64_t part = 1; part < args.parts; ++part) {
      const T next = part == args.own ? mine[i] : others[(part < args.own ? part : part - 1) * args.count + i];
      result = args.largest ? larger(result, next) : result + next;
    }
    into[i] = result;
  }
}

bool can_combine(const CombineArgs& args) { return args.type == DType::f64 || args.type == DType::f32 || (args.type == DType::i64 && args.largest); }

void combine(Rank& rank, const CombineArgs& args) {
  if (args.count == 0) return;
  const dim3 grid(blocks_of(rank, divided_up(args.count, block_threads)));
  if (args.type == DType::f64) gpu::launch(combine_parts<double>, grid, dim3(block_threads), 0, stream_of(rank), args);
  else if (args.type == DType::f32) gpu::launch(combine_parts<float>, grid, dim3(block_threads), 0, stream_of(rank), args);
  else gpu::launch(combine_parts<int64_t>, grid, dim3(block_threads), 0, stream_of(rank), args);
}

}  // namespace

template <>
KernelList<CombineArgs> cuda_kernels<CombineArgs>() {
  static constexpr Kernel<CombineArgs> list[] = {{"in_order", can_combine, combine}};
  return list;
}

}  // namespace quire
