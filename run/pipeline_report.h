// What a run's pipeline and memory come to, as tables for people and as JSON: stages, memory of each rank, and every schedule's step time, bubble and memory, simulated.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "run/attention_workspace.h"
#include "run/pipeline_costs.h"

namespace quire {

struct PipelineReportOptions {
  std::optional<PipelineRates> rates;  ///< none: nothing is simulated
  int64_t memory_limit = 0;            ///< bytes of a rank; 0: none
  PlannedWorkspace workspace;          ///< of attention, which counts as buffers
};

struct PlannedStage {
  int64_t stage = 0, rank = 0;
  std::string layers;
  int64_t elements = 0;  ///< parameters
  double work = 1;       ///< forward and backward of the step, over the mean of the stages
};

/// Bytes of a rank at their most.
struct PlannedRank {
  int64_t rank = 0;
  std::vector<int64_t> stages;
  int64_t elements = 0, weights = 0, gradients = 0, optimizer = 0, activations = 0, buffers = 0;
  double work = 1;  ///< over the mean of the ranks
  int64_t total() const { return weights + gradients + optimizer + activations + buffers; }
};

struct PlannedSchedule {
  std::string name;           ///< `interleaved_1f1b x 2`
  std::string schedule;       ///< as the config names it
  int64_t chunks = 1;
  bool in_force = false;
  std::string refused;        ///< why it can not be had; then nothing below is known
  double seconds = 0, bubble = 0, bound = 0;  ///< of the replica that takes longest; `bound`: no order over these stages takes less
  int64_t fullest = 0, peak = 0;              ///< the rank with most memory, and its bytes
  bool fits = true;
};

/// Bytes that all ranks together send in a step.
struct PlannedBytes {
  int64_t activations = 0, activation_gradients = 0, boundaries = 0, gradient_sums = 0, tied_tables = 0;
  int64_t total() const { return activations + activation_gradients + boundaries + gradient_sums + tied_tables; }
};

struct PipelineReport {
  int64_t pipeline_ranks = 1, replicas = 1, context = 1, replica = 0, microbatches = 0;  ///< of `replica`, the one with most work
  double spread = 1;                        ///< dearest microbatch of the step over the mean
  std::string recomputation, dtype;
  std::optional<PipelineRates> rates;
  int64_t memory_limit = 0;
  PlannedWorkspace workspace;
  std::vector<PlannedStage> stages;         ///< of what is in force, like ranks and timeline
  std::vector<PlannedRank> ranks;
  std::vector<PlannedSchedule> schedules;   ///< the one in force first; empty where there is one pipeline rank, or no rates
  std::optional<size_t> best;               ///< least time of those that fit
  PlannedBytes bytes;
  Timeline timeline;                        ///< empty without rates

  std::string table() const;
  std::string to_json() const;  ///< one object
};

/// `microbatches`: documents of the whole global batch's. Requires a resolved config.
PipelineReport report_pipeline(const Config& config, std::span<const Documents> microbatches, const PipelineReportOptions& options);

/// `12.5 GiB`
std::string memory_text(int64_t bytes);

}  // namespace quire
