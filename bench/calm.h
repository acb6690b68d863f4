// What every measurement with a clock shares: medians, and a gate that repeats what the machine disturbed.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace quire::bench {

double median_of(std::vector<double> values);

/// Lower quartile, median and upper quartile, interpolated; zeros of nothing.
struct Spread {
  double low = 0, median = 0, high = 0;
};
Spread spread_of(std::vector<double> values);

struct Measurement {
  double seconds = 0;
  double probe = 0;   ///< multiply-adds per second times two around it, of the slowest of the ranks that were measured
  double queued = 0;  ///< seconds in which a thread could have run and another program did
};

/// Seconds that this thread has waited for a processor; 0 where the system does not say.
double queued_seconds();
/// Seconds of processor time of this thread: unlike wall time it does not count those in which another program ran.
double thread_seconds();

/// "3.21 ms", "321.0 ms", "3210 ms".
std::string milliseconds(double seconds);

/// Hears how each measurement went: "12 ms", "13 ms, measured again: the processor was disturbed".
using Tell = std::function<void(const std::string& found)>;

/// Repeats what was disturbed: a measurement counts where the probe reached at least 90 % of the best so far and no thread waited for a processor for
/// more than 2 % of it. Of measurements that stay disturbed the quickest counts. What can not be compared (one rank's probe and two ranks', as clocks
/// differ with busy cores) has kinds of its own.
class CalmGate {
 public:
  /// `quiet`: another share of the best probe than 90 %; `pause`: seconds before a measurement is made again.
  explicit CalmGate(int64_t most_tries = 4, double quiet = 0.9, double pause = 0) : most_tries_(most_tries), quiet_(quiet), pause_(pause) {}
  /// What a probe of this kind has reached elsewhere.
  void expect(size_t kind, double probe);
  Measurement measure(size_t kind, const std::function<Measurement()>& once, const Tell& tell);
  int64_t repeated() const { return repeated_; }    ///< measurements made again
  int64_t disturbed() const { return disturbed_; }  ///< measurements that count although they were disturbed
  /// "3 measurements were made again because the processor was disturbed.\n" and so on.
  std::string summary() const;

 private:
  int64_t most_tries_;
  double quiet_, pause_;
  int64_t repeated_ = 0, disturbed_ = 0;
  std::vector<double> best_;  ///< probe of each kind
};

}  // namespace quire::bench
