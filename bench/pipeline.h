// Pipeline schedules: simulated beside each other on packed rows, and measured beside their own simulation.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace quire::bench {

struct PipelineBenchOptions {
  std::string lengths = "bench/lengths";
  bool simulated = false;            ///< the table of simulations; else a real pipeline of two ranks
  // Simulated:
  std::vector<std::string> corpora = {"fortunes", "lognormal-2048"};
  std::vector<int64_t> rows_per_microbatch = {1, 2};
  int64_t ranks = 8, microbatches = 32, steps = 8, tokens = 8192;
  double memory_over_1f1b = 1;       ///< the limit, over what 1f1b's fullest rank needs without recomputation
  // Measured:
  int64_t rounds = 3;
  std::function<void(const std::string& line)> progress;
};

/// One schedule on one corpus: mean over steps.
struct SimulatedPipeline {
  std::string corpus, schedule;
  std::string recomputation;                ///< with which it is quickest within the limit
  int64_t rows_per_microbatch = 1;
  double memory = 0;                        ///< bytes of the fullest rank, the most of all steps
  double limit = 0;
  bool fits = true;
  double packed_seconds = 0, arranged_seconds = 0, packed_bubble = 0, arranged_bubble = 0;
  double packed_spread = 1, arranged_spread = 1;  ///< dearest microbatch over the mean
};

struct MeasuredPipeline {
  std::string schedule;
  std::vector<double> measured, simulated;  ///< makespans in seconds, of each round; the simulation has the round's own action times
  double ratio = 1;                         ///< median of simulated over measured
};

struct PipelineBenchResult {
  std::string model, speeds, gate;          ///< in words
  PipelineBenchOptions options;
  std::vector<SimulatedPipeline> simulated;
  std::vector<MeasuredPipeline> measured;
  std::string markdown() const;
  std::string to_json() const;
};

PipelineBenchResult bench_pipeline(const PipelineBenchOptions& options);

}  // namespace quire::bench
