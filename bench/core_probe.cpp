#include "bench/core_probe.h"

#include <algorithm>
#include <chrono>
#include <thread>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/core_probe.cpp"
#include "ops/cpu/targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// `numbers` holds 1,024 values; the first is replaced by the result. Returns the floating-point operations made.
double loaded_multiply_adds(int64_t rounds, float* numbers) {
  const hn::ScalableTag<float> d;
  constexpr int rows = 6, steps = 32;
  hn::Vec<decltype(d)> sum[rows][2];
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) sum[i][0] = sum[i][1] = hn::Zero(d);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t round = 0; round < rounds; ++round)
    for (int64_t p = 0; p < steps; ++p) {
      const float *left = numbers + p * rows, *right = numbers + 192 + p % 8 * 2 * lanes;
      const auto right0 = hn::LoadU(d, right), right1 = hn::LoadU(d, right + lanes);
#pragma GCC unroll 6
      for (int i = 0; i < rows; ++i) {
        const auto value = hn::Set(d, left[i]);
        sum[i][0] = hn::MulAdd(value, right0, sum[i][0]);
        sum[i][1] = hn::MulAdd(value, right1, sum[i][1]);
      }
    }
  auto all = sum[0][0];
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) all = hn::Add(all, hn::Add(sum[i][0], sum[i][1]));
  numbers[0] = hn::GetLane(all) * 1e-30f;
  return 2.0 * 12.0 * static_cast<double>(lanes * rounds * steps);
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {

HWY_EXPORT(loaded_multiply_adds);

namespace bench {

double measure_loaded_flops(Rank& rank) {
  alignas(64) float numbers[1024] = {};
  const auto function = QUIRE_PICK(rank, loaded_multiply_adds);
  function(64, numbers);
  double flops = 0;
  const double start = thread_seconds();
  double seconds = 0;
  while (seconds < 5e-3) {
    flops += function(256, numbers);
    seconds = thread_seconds() - start;
  }
  return flops / seconds;
}

CoreGate::CoreGate(Rank& rank, int64_t most_tries) : rank_(rank), gate_(most_tries, 0.95, 0.1) {
  for (int i = 0; i < 20 && most_tries > 1; ++i) {
    gate_.expect(0, measure_loaded_flops(rank_));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

double CoreGate::measure(const std::function<double()>& once) {
  const auto between_probes = [&] {
    const double before = measure_loaded_flops(rank_), seconds = once(), after = measure_loaded_flops(rank_);
    gate_.expect(0, std::max(before, after));
    return Measurement{seconds, std::min(before, after), 0};
  };
  return gate_.measure(0, between_probes, {}).seconds;
}

}  // namespace bench
}  // namespace quire
#endif
