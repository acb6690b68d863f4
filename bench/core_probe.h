// How quick this core is now at what kernels do, to tell calm minutes from others.
#pragma once
#include <functional>
#include <string>

#include "bench/calm.h"
#include "runtime/rank.h"

namespace quire::bench {

/// Multiply-adds per second times two of a loop as those of matrix products: 12 multiply-adds of the widest vectors with 8 loads from the first-level cache. Processor time of one thread,
/// about 5 ms, all of it counted. On a shared host it was seen to fall by a fifth while multiply-adds alone (`measure_peak_flops`) hardly did.
double measure_loaded_flops(Rank& rank);

/// A gate between whose probes of this loop a measurement of one thread counts where both reach 95 % of the best one; others are made again a tenth of a second later.
class CoreGate {
 public:
  /// Looks for this core's best for about half a second where `most_tries` is above 1; with 1 nothing is made again.
  CoreGate(Rank& rank, int64_t most_tries);
  /// Seconds that `once` returns.
  double measure(const std::function<double()>& once);
  std::string summary() const { return gate_.summary(); }

 private:
  Rank& rank_;
  CalmGate gate_;
};

}  // namespace quire::bench
