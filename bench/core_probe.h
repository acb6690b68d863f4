// How quick this core is now at what kernels do, to tell calm minutes from others.
#pragma once
#include <functional>
#include <string>

#include "runtime/rank.h"

namespace quire::bench {

/// Multiply-adds per second times two of a loop as those of matrix products: 12 multiply-adds of the widest vectors with 8 loads from the first-level cache. Processor time of one thread,
/// about 5 ms, all of it counted. Beside another busy thread on the same core it falls by a fifth, where multiply-adds alone (`measure_peak_flops`) hardly do.
double measure_loaded_flops(Rank& rank);

/// Repeats measurements of one thread beside which the core was busy with something else.
class CoreGate {
 public:
  /// Looks for this core's best for about half a second where `most_tries` is above 1; with 1 nothing is made again.
  CoreGate(Rank& rank, int64_t most_tries);
  /// Seconds that `once` returns, between two probes that both reach 95 % of the best one so far; else, after `most_tries` tries a tenth of a second apart, the least of them.
  double measure(const std::function<double()>& once);
  /// "12 measurements were made again ..." with a line's end.
  std::string summary() const;

 private:
  double probe();
  Rank& rank_;
  int64_t most_tries_, repeated_ = 0, disturbed_ = 0, measured_ = 0;
  double best_ = 0;
};

}  // namespace quire::bench
