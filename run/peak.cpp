// How many multiply-adds the machine makes per second when nothing but arithmetic limits it.
#include <algorithm>
#include <ctime>
#include <vector>

#include "run/device_peak.h"
#include "run/machine.h"
#include "runtime/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "run/peak.cpp"
#include "ops/cpu/targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Twelve independent chains hide the latency of the multiply-add on every machine of today (4 cycles, 2 or 3 units) and, with the two
// operands, fit in 16 registers. `sink` holds twelve values and gets the result. Returns the floating-point operations made.
template <class T>
HWY_INLINE double multiply_add(int64_t rounds, T* sink) {
  const hn::ScalableTag<T> d;
  const auto factor = hn::Set(d, static_cast<T>(0.999)), addend = hn::Set(d, static_cast<T>(0.001));
  auto a = hn::Set(d, sink[0]), b = hn::Set(d, sink[1]), c = hn::Set(d, sink[2]), e = hn::Set(d, sink[3]), f = hn::Set(d, sink[4]), g = hn::Set(d, sink[5]);
  auto h = hn::Set(d, sink[6]), i = hn::Set(d, sink[7]), j = hn::Set(d, sink[8]), k = hn::Set(d, sink[9]), l = hn::Set(d, sink[10]), m = hn::Set(d, sink[11]);  // unknown to the compiler, which would fold equal chains
  for (int64_t round = 0; round < rounds; ++round) {
    a = hn::MulAdd(a, factor, addend);
    b = hn::MulAdd(b, factor, addend);
    c = hn::MulAdd(c, factor, addend);
    e = hn::MulAdd(e, factor, addend);
    f = hn::MulAdd(f, factor, addend);
    g = hn::MulAdd(g, factor, addend);
    h = hn::MulAdd(h, factor, addend);
    i = hn::MulAdd(i, factor, addend);
    j = hn::MulAdd(j, factor, addend);
    k = hn::MulAdd(k, factor, addend);
    l = hn::MulAdd(l, factor, addend);
    m = hn::MulAdd(m, factor, addend);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(hn::Add(hn::Add(f, g), hn::Add(h, i)), hn::Add(hn::Add(j, k), hn::Add(l, m))));
  sink[0] = hn::GetLane(sum);
  return 2.0 * 12.0 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

double multiply_add_f32(int64_t rounds, float* sink) { return multiply_add(rounds, sink); }
double multiply_add_f64(int64_t rounds, double* sink) { return multiply_add(rounds, sink); }

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {

HWY_EXPORT(multiply_add_f32);
HWY_EXPORT(multiply_add_f64);

namespace {

/// Wall time; of one thread its processor time, in which other programs have no part.
double seconds_now(bool one_thread) {
  timespec time{};
  ::clock_gettime(one_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <class T, class Function>
double best_rate(Rank& rank, Function function) {
  ThreadPool& pool = rank.pool();
  const int64_t threads = pool.threads();
  struct alignas(64) Result { T sink[16]; double flops; };
  std::vector<Result> results(static_cast<size_t>(threads));
  int64_t rounds = 1000;
  double best = 0;
  for (int tries = 0; tries < 5;) {
    const double start = seconds_now(threads == 1);
    pool.parallel_for(threads, [&](int64_t chunk, int) {
      Result& result = results[static_cast<size_t>(chunk)];
      for (int i = 0; i < 12; ++i) result.sink[i] = T(i);
      result.flops = function(rounds, result.sink);
    });
    const double seconds = seconds_now(threads == 1) - start;
    if (seconds < 2e-3 && rounds < (int64_t{1} << 40)) {  // too short to tell from waking the threads
      rounds *= 2;
      continue;
    }
    double flops = 0;
    for (const Result& result : results) flops += result.flops;
    best = std::max(best, flops / std::max(seconds, 1e-9));
    ++tries;
  }
  return best;
}

}  // namespace

double measure_peak_flops(Rank& rank, DType dtype) {
  if (dtype == DType::i32 || dtype == DType::i64) fail<DTypeError>("peak", "dtype is {}; allowed: f64, f32, bf16", name_of(dtype));
  if (rank.accelerator() != nullptr) return measure_device_peak_flops(rank, dtype);
  if (dtype == DType::f64) return best_rate<double>(rank, QUIRE_PICK(rank, multiply_add_f64));
  return best_rate<float>(rank, QUIRE_PICK(rank, multiply_add_f32));
}

}  // namespace quire
#endif
