// What a run records: one JSON object per logged step, in metrics.jsonl.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/file.h"

namespace quire {

/// One logged step. Numbers are written so that they read back as the same bits (a NaN or infinity is written as null and reads as NaN).
struct StepMetrics {
  int64_t step = 0;             ///< 1 is the first
  int64_t epoch = 0;
  double loss = 0;              ///< nats per valid target of the whole global batch
  int64_t valid_tokens = 0;     ///< targets of the step
  int64_t tokens = 0;           ///< inputs of the step; no padding is among them
  double grad_norm = 0;         ///< before clipping
  double lr = 0;
  bool skipped = false;         ///< the step changed no weight
  std::string non_finite;       ///< what was NaN or infinite; written only where something was
  int64_t useful_pairs = 0;     ///< query-key pairs that documents (and windows) need, summed over layers, per head, forward
  int64_t computed_pairs = 0;   ///< those that the tile loop computed, counted the same way
  int64_t padding = 0;          ///< places of the step's rows that hold no token (nothing is computed there)
  int64_t bytes_sent = 0;       ///< to other ranks, all of them together; 0 = one rank, and then not written
  std::optional<double> balance;             ///< of context-parallel ranks: the busiest one's cost over the mean
  std::optional<double> eval_loss;           ///< nats per valid target of held-out documents
  std::optional<double> eval_bits_per_byte;  ///< unscored bytes charged 8 bits

  // What depends on the clock and the machine: never compared between runs.
  double step_ms = 0;
  double tokens_per_s = 0;
  std::optional<double> peak_share_useful;   ///< of the machine's peak, attention counted by useful pairs
  std::optional<double> peak_share_causal;   ///< the same, as if every row were one document
  int64_t resident_bytes = 0;   ///< 0 = not measured, and then not written

  bool operator==(const StepMetrics&) const = default;
};

/// The same with the fields that depend on the clock, the machine and the layout of ranks set to nothing: equal for equal trainings.
StepMetrics without_time(StepMetrics metrics);

/// `a, b, c and 71 more` of a list divided by commas: as much as a line has room for.
std::string few_names(std::string_view list);

/// One line without its newline, keys in a fixed order.
std::string to_json(const StepMetrics& metrics);
/// Throws DataError, `where` in front, for anything that is not such an object. Unknown keys are passed over.
StepMetrics metrics_from_json(std::string_view line, const std::string& where = "metrics");

/// All whole lines of a metrics.jsonl; a last line without its newline (a torn write) is left out. DataError names file and line.
std::vector<StepMetrics> read_metrics(FileSystem& fs, const std::string& path);

}  // namespace quire
