#include "bench/pipeline.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/calm.h"
#include "bench/common.h"
#include "bench/pipeline_parts.h"
#include "run/pipeline_report.h"

namespace quire::bench {

PipelineBenchResult bench_pipeline(const PipelineBenchOptions& options) {
  PipelineBenchResult result;
  result.options = options;
  if (options.simulated) simulate_pipelines(options, result);
  else measure_pipelines(options, result);
  return result;
}

std::string PipelineBenchResult::markdown() const {
  std::string text = fmt::format("{}, {}. {}.\n", today(), machine_name(), model);
  if (options.simulated) {
    text += fmt::format("Speeds: {}.\n", speeds);
    std::string group;
    for (const SimulatedPipeline& line : simulated) {
      const std::string title = fmt::format("{}, {} row{} in a microbatch", line.corpus, line.rows_per_microbatch, line.rows_per_microbatch == 1 ? "" : "s");
      if (title != group)
        text += fmt::format("\n{}; dearest microbatch over the mean: {:.3f} as packed, {:.3f} arranged by cost; limit {}\n\n| schedule | recomputation | memory | step as packed | bubble | arranged | bubble | gain |\n"
                            "|---|---|---:|---:|---:|---:|---:|---:|\n", title, line.packed_spread, line.arranged_spread, memory_text(static_cast<int64_t>(line.limit)));
      group = title;
      text += fmt::format("| {} | {} | {}{} | {:.1f} s | {:.1f} % | {:.1f} s | {:.1f} % | {:.1f} % |\n", line.schedule, line.recomputation,
                          memory_text(static_cast<int64_t>(line.memory)), line.fits ? "" : " (over)", line.packed_seconds, 100 * line.packed_bubble, line.arranged_seconds, 100 * line.arranged_bubble,
                          100 * (1 - line.arranged_seconds / line.packed_seconds));
    }
    return text + fmt::format("\nThe limit is {:g} x what the fullest rank needs under 1f1b without recomputation; each schedule has the recomputation with which it is quickest within it.\n", options.memory_over_1f1b);
  }
  text += "\n| schedule | measured | simulated with its own action times | simulated / measured |\n|---|---:|---:|---:|\n";
  for (const MeasuredPipeline& line : measured)
    text += fmt::format("| {} | {} | {} | {:.3f} |\n", line.schedule, milliseconds(median_of(line.measured)), milliseconds(median_of(line.simulated)), line.ratio);
  return text + fmt::format("\nMedians of {}. Aim: within 10 %. {}", options.rounds, gate);
}

std::string PipelineBenchResult::to_json() const {
  nlohmann::ordered_json object = {{"model", model}, {"speeds", speeds}, {"simulated", nlohmann::ordered_json::array()}, {"measured", nlohmann::ordered_json::array()}};
  for (const SimulatedPipeline& line : simulated)
    object["simulated"].push_back({{"corpus", line.corpus}, {"schedule", line.schedule}, {"recomputation", line.recomputation}, {"limit", line.limit}, {"rows_per_microbatch", line.rows_per_microbatch}, {"memory", line.memory}, {"fits", line.fits},
                                   {"packed_seconds", line.packed_seconds}, {"arranged_seconds", line.arranged_seconds}, {"packed_bubble", line.packed_bubble},
                                   {"arranged_bubble", line.arranged_bubble}, {"packed_spread", line.packed_spread}, {"arranged_spread", line.arranged_spread}});
  for (const MeasuredPipeline& line : measured)
    object["measured"].push_back({{"schedule", line.schedule}, {"measured", line.measured}, {"simulated", line.simulated}, {"ratio", line.ratio}});
  return object.dump();
}

}  // namespace quire::bench
