#include "run/device_peak.h"

#include <algorithm>
#include <chrono>

#include "ops/matmul.h"
#include "runtime/accelerator.h"
#include "runtime/error.h"

namespace quire {

namespace {

double measured(Rank& rank, DType dtype, int64_t size, bool emulated) {
  Accelerator& device = *rank.accelerator();
  const int64_t tries = emulated ? 1 : 5, products = emulated ? 1 : 4;
  const Tensor a = Tensor::zeros(rank, {size, size}, dtype, Category::workspace), b = Tensor::zeros(rank, {size, size}, dtype, Category::workspace),
               c = Tensor::empty(rank, {size, size}, dtype, Category::workspace);
  const auto multiply = [&] { matmul(rank, a, Transpose::no, b, Transpose::yes, c); };
  multiply();  // the choice of an algorithm is not to be timed
  double best = 0;
  for (int64_t i = 0; i < tries; ++i) {
    device.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t product = 0; product < products; ++product) multiply();
    device.synchronize();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, 2.0 * static_cast<double>(size * size * size * products) / std::max(seconds, 1e-9));
  }
  return best;
}

}  // namespace

double measure_device_peak_flops(Rank& rank, DType dtype) {
  const bool emulated = cuda_availability().emulated;
  const int64_t counted = rank.work().flops;
  double peak = 0;
  // A run that fits is not to fail for what is measured beside it.
  for (int64_t size = emulated ? 64 : 4096; size > 0 && peak == 0; size /= 2) {
    try {
      peak = measured(rank, dtype, size, emulated);
    } catch (const OutOfMemoryError&) {  // a smaller product, then
    }
  }
  rank.work().flops = counted;
  return peak;
}

}  // namespace quire
