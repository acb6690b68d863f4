// Times on the device, between events of the rank's stream.
#pragma once
#include <functional>
#include <vector>

#include "bench/calm.h"
#include "bench/gpu/report.h"
#include "runtime/rank.h"

namespace quire::gpu_report {

struct TimingOptions {
  int warm = 2;       ///< runs before those that count
  int samples = 10;
  double most_seconds = 2;  ///< no further sample is begun after so long, three at least
};

/// Seconds of each run of `work`, which only gives the device work. Samples follow one another without a wait, so that the device is never idle between them. `prepare`,
/// where given, comes before each run and does not count.
std::vector<double> device_seconds(Rank& rank, const TimingOptions& options, const std::function<void()>& work, const std::function<void()>& prepare = {});

/// Median, lower and upper quartile in milliseconds: three cells, and their columns.
void add_times(std::vector<Cell>& cells, const std::vector<double>& seconds);
void add_time_columns(std::vector<Column>& columns);

/// Dense bf16 products of a card with f32 sums, in FLOP/s, by the maker's data sheet: 0 where the card is not known.
struct Peak {
  double flops = 0;
  std::string source;
};
Peak peak_of(const std::string& card);

}  // namespace quire::gpu_report
