// Scalars of an optimizer step on CUDA devices.
#include "ops/cuda/elementwise.h"

namespace quire {
namespace {

using namespace cuda_kernel;

/// One block; its first thread adds in order what all of them have read.
__global__ void __launch_bounds__(block_threads) fill_scalars(const OptimizerScalarsArgs args) {
  DYNAMIC_SMEM(memory);
  double* const shared = reinterpret_cast<double*>(memory);
  double sum = 0;
  for (int64_t first = 0; first < args.count; first += block_threads) {
    const int64_t count = min(args.count - first, static_cast<int64_t>(block_threads));
    __syncthreads();
    if (threadIdx.x < count) shared[threadIdx.x] = args.squares[first + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0)
      for (int64_t i = 0; i < count; ++i) sum += shared[i];
  }
  if (threadIdx.x != 0) return;
  const double norm = sqrt(sum), loss = *args.loss;
  *args.norm = norm;
  OptimizerScalars& scalars = *args.scalars;
  scalars.skip = !(fabs(norm) <= std::numeric_limits<double>::max() && fabs(loss) <= std::numeric_limits<double>::max());
  for (int64_t i = 0; i < args.refusals_count; ++i)
    if (args.refusals[i] != 0) scalars.skip = 1;
  const int64_t adam_step = *args.adam_step + (scalars.skip == 0 ? 1 : 0);
  *args.adam_step = adam_step;
  const double step = static_cast<double>(adam_step > 1 ? adam_step : 1);
  scalars.learning_rate = args.learning_rate;
  scalars.clip = args.clip_norm > 0 && norm > args.clip_norm ? args.clip_norm / norm : 1.0;
  scalars.bias1 = 1.0 - pow(args.beta1, step);
  scalars.bias2 = 1.0 - pow(args.beta2, step);
}

void optimizer_scalars(Rank& rank, const OptimizerScalarsArgs& args) {
  gpu::launch(fill_scalars, dim3(1), dim3(block_threads), block_threads * sizeof(double), stream_of(rank), args);
}

}  // namespace

template <>
KernelList<OptimizerScalarsArgs> cuda_kernels<OptimizerScalarsArgs>() {
  static constexpr Kernel<OptimizerScalarsArgs> list[] = {{"ordered", always<OptimizerScalarsArgs>, optimizer_scalars}};
  return list;
}

}  // namespace quire
