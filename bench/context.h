// Whole training steps of one packed row by one rank and by two.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace quire::bench {

struct ContextBenchOptions {
  std::string lengths = "bench/lengths", corpus = "lognormal-512";
  int64_t tokens = 8192, rounds = 7;
  std::function<void(const std::string& line)> progress;  ///< told after each measurement, if given
};

/// One way to train the row with two ranks.
struct ContextBenchLine {
  std::string name;
  bool peer = false;            ///< not one of Quire's: named for comparison
  std::vector<double> seconds;  ///< of a step, each round
  double median = 0;
  double efficiency = 0;        ///< T(1 rank, 1 thread) / (2 x T(2 ranks, 1 thread each))
};

struct ContextBenchResult {
  int64_t tokens = 0, documents = 0, longest = 0;
  std::vector<double> alone;     ///< seconds of a step of one rank
  double alone_median = 0;
  std::vector<ContextBenchLine> lines;
  size_t best = 0;
  int64_t repeated = 0, disturbed = 0;  ///< measurements made again because the machine was disturbed; kept although it was
  std::string model, gate;       ///< in words: what was trained, and what was repeated
  std::string table() const;
  std::string to_json() const;
};

/// Each round measures one rank, then every layout and exchange of two, and a ring that knows nothing of documents. A measurement counts where the
/// processor made at least 90 % of its best multiply-adds per second before and after it, and no rank waited for a processor for more than 2 % of it;
/// else it is made again, up to three times.
ContextBenchResult bench_context(const ContextBenchOptions& options);

}  // namespace quire::bench
