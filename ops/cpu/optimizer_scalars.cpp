#include <algorithm>
#include <cmath>

#include "ops/kernels.h"

namespace quire {

namespace {

bool can_run(const OptimizerScalarsArgs&) { return true; }

void run(Rank&, const OptimizerScalarsArgs& args) {
  double sum = 0;
  for (int64_t i = 0; i < args.count; ++i) sum += args.squares[i];
  const double norm = std::sqrt(sum);
  args.norm[0] = norm;
  OptimizerScalars& scalars = *args.scalars;
  scalars.skip = !(std::isfinite(norm) && std::isfinite(args.loss[0]));
  for (int64_t i = 0; i < args.refusals_count; ++i)
    if (args.refusals[i] != 0) scalars.skip = 1;
  if (scalars.skip == 0) ++args.adam_step[0];
  const double step = static_cast<double>(std::max<int64_t>(args.adam_step[0], 1));
  scalars.learning_rate = args.learning_rate;
  scalars.clip = args.clip_norm > 0 && norm > args.clip_norm ? args.clip_norm / norm : 1.0;
  scalars.bias1 = 1.0 - std::pow(args.beta1, step);
  scalars.bias2 = 1.0 - std::pow(args.beta2, step);
}

constexpr Kernel<OptimizerScalarsArgs> kernels[] = {{"reference", can_run, run}};

}  // namespace

template <> KernelList<OptimizerScalarsArgs> cpu_kernels<OptimizerScalarsArgs>() { return kernels; }

}  // namespace quire
