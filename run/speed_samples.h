// Short measurements of a machine's speeds, and what they are made on.
#pragma once
#include <algorithm>
#include <chrono>
#include <limits>

#include "runtime/tensor.h"

namespace quire {

/// Seconds of the fastest of `tries` calls, after one that is not timed. Counts of tries, not clocks: ranks that meet in `work` must agree.
template <class Work>
double best_of(int tries, const Work& work) {
  using Clock = std::chrono::steady_clock;
  work();
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < tries; ++i) {
    const Clock::time_point start = Clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return std::max(best, 1e-9);
}

/// Values of about one, without the zeros that some processors multiply faster.
Tensor some_values(Rank& rank, const Shape& shape, DType dtype);

}  // namespace quire
