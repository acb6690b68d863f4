// Whole runs in layouts of ranks, and how their records are compared.
#pragma once
#include "run/training_run.h"

namespace quire::test {

struct Layout {
  int64_t pp = 1, dp = 1;
  std::string schedule = "1f1b";
  int64_t chunks = 1, cp = 1;
  std::string context = "balanced ring";
  std::string name() const { return fmt::format("pp {} {} x {}, dp {}{}", pp, schedule, chunks, dp, cp > 1 ? fmt::format(", cp {} {}", cp, context) : ""); }
};

inline const Layout single{}, two_stages{2}, four_stages{4}, interleaved{2, 1, "interleaved_1f1b", 2}, fill_and_drain{4, 1, "gpipe"}, two_replicas{1, 2}, grid{2, 2}, zero_bubble{3, 1, "zb_h1"}, there_and_back{2, 1, "zb_v", 2};

/// Four layers; a hang ends as a failure of the test.
inline Config ranks_config(const Scratch& scratch, const std::string& run, const Layout& layout, std::vector<std::string> overrides = {}) {
  const std::vector<std::string> own{"model.n_layers=4", fmt::format("distributed.pp={}", layout.pp), fmt::format("distributed.dp_replicate={}", layout.dp),
                                     "distributed.pp_schedule=" + layout.schedule, fmt::format("distributed.pp_chunks={}", layout.chunks), "distributed.watchdog_seconds=60",
                                     fmt::format("distributed.cp={}", layout.cp), "distributed.cp_layout=" + layout.context.substr(0, layout.context.find(' ')),
                                     "distributed.cp_exchange=" + layout.context.substr(layout.context.find(' ') + 1)};
  overrides.insert(overrides.begin(), own.begin(), own.end());
  return small_config(scratch, run, overrides);
}

/// Largest difference of loss, gradient norm and held-out loss in any step, of their size; infinity where anything else differs at all but pairs
/// computed in vain: tiles are cut where ranks are.
inline double difference(const std::vector<StepMetrics>& a, const std::vector<StepMetrics>& b) {
  if (a.size() != b.size()) return HUGE_VAL;
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto compare = [&](double x, double y) { most = std::max(most, x == y ? 0 : std::isfinite(x - y) ? std::abs(x - y) / std::abs(y) : HUGE_VAL); };
    compare(a[i].loss, b[i].loss);
    compare(a[i].grad_norm, b[i].grad_norm);
    StepMetrics same = a[i];
    same.loss = b[i].loss;
    same.grad_norm = b[i].grad_norm;
    same.computed_pairs = b[i].computed_pairs;
    if (same.eval_loss.has_value() != b[i].eval_loss.has_value()) return HUGE_VAL;
    if (same.eval_loss) {
      compare(*a[i].eval_loss, *b[i].eval_loss);
      compare(*a[i].eval_bits_per_byte, *b[i].eval_bits_per_byte);
      same.eval_loss = b[i].eval_loss;
      same.eval_bits_per_byte = b[i].eval_bits_per_byte;
    }
    if (!(same == b[i])) return HUGE_VAL;
  }
  return most;
}

/// Starts that stop after some steps each, the last one going on to the end, all in one run folder.
inline void run_moving(const Scratch& scratch, const std::string& run, const std::vector<std::pair<Layout, int64_t>>& moves, const std::vector<std::string>& overrides) {
  for (const auto& [layout, steps] : moves) run_training_ranks(ranks_config(scratch, run, layout, overrides), steps);
}

}  // namespace quire::test
