// Layouts of emulated devices, a rank a thread: small trainings of tiny.toml, and what they are compared with.
#pragma once
#include "emulation.h"
#include "layout_run.h"
#include "run/config_schema.h"
#include "run/data_source.h"
#include "tier.h"

namespace quire::test {

/// tiny.toml, cut unless all tests are asked for: two layers, four microbatches of one row of 32 tokens.
inline Config tiny_layout(const std::string& device, const std::string& dtype, std::vector<std::string> overrides = {}) {
  std::vector<std::string> all{"run.device=" + device, "train.mixed_precision=" + dtype, "run.threads=1", "distributed.watchdog_seconds=120"};
  if (!all_tier()) all.insert(all.end(), {"model.n_layers=2", "train.seq_len=32", "train.global_batch_size=4", "train.microbatch_size=1"});
  all.insert(all.end(), overrides.begin(), overrides.end());
  return load_config(QUIRE_SOURCE_ROOT "/tools/configs/tiny.toml", all);
}

inline Config of_one_rank(Config config) {
  config.distributed = {};
  return resolved(config);
}

inline int64_t layout_steps() { return all_tier() ? 30 : 2; }

inline LayoutRun run_tiny(const Config& config, int64_t steps = layout_steps()) {
  LayoutRunOptions options;
  options.steps = static_cast<int>(steps);
  options.evaluate = false;
  return run_layout(config, open_data(config).train, options);
}

using Gradients = std::map<std::string, std::vector<double>>;

inline double largest_of(const std::vector<double>& values) {
  double largest = 0;
  for (const double x : values) largest = std::max(largest, std::abs(x));
  return largest;
}
inline double error_of_gradient(const std::vector<double>& values, const std::vector<double>& exact) {
  double off = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double error = std::abs(values.at(i) - exact[i]);
    off = error > off || std::isnan(error) ? error : off;
  }
  return off;
}

/// Section 6 for what is added in another order: each gradient's error against f64 at most twice that of the CPU (of the larger of two draws: one process, and the same layout), or 4 ulp of
/// its largest magnitude. What is not so, "" for nothing. `factor` instead of 2 for models so small that the CPU's error is chance (tests/products/rounding_product.h).
inline std::string beyond_rule(const Gradients& found, const Gradients& layout, const Gradients& alone, const Gradients& exact, double factor = 2) {
  if (found.size() != exact.size()) return fmt::format("{} gradients of {}", found.size(), exact.size());
  for (const auto& [name, values] : exact) {
    const double off = error_of_gradient(found.at(name), values), plain = std::max(error_of_gradient(layout.at(name), values), error_of_gradient(alone.at(name), values)), largest = largest_of(values);
    if (!(off <= std::max(factor * plain, 4 * 0x1p-23 * largest))) return fmt::format("{}: {} off, {} on the CPU, of {}", name, off, plain, largest);
  }
  return "";
}

}  // namespace quire::test
