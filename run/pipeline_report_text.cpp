#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "run/pipeline_report.h"
#include "runtime/svg.h"

namespace quire {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t most_lines = 16, head_lines = 10;

std::string time_text(double seconds) { return seconds >= 1 ? fmt::format("{:.4g} s", seconds) : seconds >= 1e-3 ? fmt::format("{:.4g} ms", seconds * 1e3) : fmt::format("{:.4g} us", seconds * 1e6); }

std::string count_text(int64_t number) {
  const auto value = static_cast<double>(number);
  return number >= 1000000000 ? fmt::format("{:.2f} B", value / 1e9) : number >= 1000000 ? fmt::format("{:.1f} M", value / 1e6) : grouped(number);
}

/// Which of so many lines are shown: all, or the first ones and the last.
bool is_shown(size_t i, size_t count) { return count <= most_lines || i < head_lines || i + 2 >= count; }

std::string stages_table(const PipelineReport& report) {
  std::string text = "\nstage  rank  parameters  work/mean  layers\n";
  for (size_t i = 0; i < report.stages.size(); ++i) {
    const PlannedStage& stage = report.stages[i];
    if (is_shown(i, report.stages.size())) text += fmt::format("{:>5}  {:>4}  {:>10}  {:>9.3f}  {}\n", stage.stage, stage.rank, count_text(stage.elements), stage.work, stage.layers);
    else if (i == head_lines) text += fmt::format("  ...  and {} more\n", report.stages.size() - head_lines - 2);
  }
  const PlannedRank& busiest = *std::ranges::max_element(report.ranks, {}, &PlannedRank::work);
  if (report.ranks.size() > 1) text += fmt::format("busiest rank: {}, {:.3f} of the mean\n", busiest.rank, busiest.work);
  return text;
}

std::string memory_table(const PipelineReport& report) {
  std::string text = "\nmemory at its most (kernels' workspaces and token ids, some MiB, come on top)\n rank    weights  gradients  optimizer  activations    buffers      total\n";
  const auto line = [](const PlannedRank& rank) {
    return fmt::format("{:>5} {:>10} {:>10} {:>10} {:>12} {:>10} {:>10}\n", rank.rank, memory_text(rank.weights), memory_text(rank.gradients), memory_text(rank.optimizer),
                       memory_text(rank.activations), memory_text(rank.buffers), memory_text(rank.total()));
  };
  const PlannedRank& fullest = *std::ranges::max_element(report.ranks, {}, [](const PlannedRank& rank) { return rank.total(); });
  for (size_t i = 0; i < report.ranks.size(); ++i) {
    if (is_shown(i, report.ranks.size())) text += line(report.ranks[i]);
    else if (i == head_lines) text += fmt::format("  ... and {} more; the fullest:\n{}", report.ranks.size() - head_lines - 2, line(fullest));
  }
  if (!report.workspace.note.empty()) text += report.workspace.note + "\n";
  if (report.memory_limit > 0)
    text += fmt::format("{} of {} allowed on the fullest, rank {}: {}\n", memory_text(fullest.total()), memory_text(report.memory_limit), fullest.rank,
                        fullest.total() <= report.memory_limit ? "it fits" : "it does not fit");
  return text;
}

std::string schedules_table(const PipelineReport& report) {
  if (report.schedules.empty()) return {};
  std::string text = "\nschedule                 pipeline   bubble  over the bound  memory\n";
  for (const PlannedSchedule& line : report.schedules) {
    text += fmt::format("{} {:<20}", line.in_force ? '>' : ' ', line.name);
    if (!line.refused.empty()) {
      text += fmt::format("  refused: {}\n", line.refused);
      continue;
    }
    text += fmt::format("{:>11}  {:>5.1f} %  {:>14.3f}  {} on rank {}{}\n", time_text(line.seconds), 100 * line.bubble, line.bound > 0 ? line.seconds / line.bound : 1,
                        memory_text(line.peak), line.fullest, line.fits ? "" : fmt::format(", more than {}", memory_text(report.memory_limit)));
  }
  text += report.memory_limit > 0 ? fmt::format("best within {}: ", memory_text(report.memory_limit)) : "best: ";
  text += report.best ? report.schedules[*report.best].name : "none fits; more pipeline ranks, recomputation (train.activation_checkpointing) or smaller microbatches need less";
  return text + "\n";
}

std::string bytes_table(const PlannedBytes& bytes) {
  return fmt::format("\nsent in a step by all ranks together: activations {}, their gradients {}, boundaries {}, sums of gradients {}, tied tables {}; in all {}\n",
                     memory_text(bytes.activations), memory_text(bytes.activation_gradients), memory_text(bytes.boundaries), memory_text(bytes.gradient_sums),
                     memory_text(bytes.tied_tables), memory_text(bytes.total()));
}

}  // namespace

std::string memory_text(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 40) return fmt::format("{:.2f} TiB", value / 0x1p40);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.2f} GiB", value / 0x1p30);
  if (bytes >= int64_t{1} << 20) return fmt::format("{:.1f} MiB", value / 0x1p20);
  return bytes >= 1024 ? fmt::format("{:.1f} KiB", value / 1024) : fmt::format("{} B", bytes);
}

std::string PipelineReport::table() const {
  std::string text = fmt::format("pipeline: {} rank{} in {} stage{}; {} microbatch{} of replica {} ({} replica{}, this one has most work), the dearest {:.3f} of the mean; recomputation: {}; {}\n",
                                 pipeline_ranks, pipeline_ranks == 1 ? "" : "s", stages.size(), stages.size() == 1 ? "" : "s", microbatches, microbatches == 1 ? "" : "es", replica,
                                 replicas, replicas == 1 ? "" : "s", spread, recomputation, dtype);
  if (rates) text += "speeds: " + rates->describe() + "\n";
  return text + stages_table(*this) + memory_table(*this) + schedules_table(*this) + bytes_table(bytes);
}

std::string PipelineReport::to_json() const {
  Json object = {{"pipeline_ranks", pipeline_ranks}, {"replicas", replicas}, {"context", context}, {"replica", replica}, {"microbatches", microbatches},
                 {"dearest_over_mean", spread}, {"recomputation", recomputation}, {"dtype", dtype}, {"memory_limit", memory_limit}};
  if (!workspace.note.empty()) object["attention_workspace"] = workspace.known ? Json(workspace.bytes) : Json();
  if (rates)
    object["speeds"] = {{"product_flops", rates->product_flops},   {"attention_flops", rates->attention_flops}, {"attention_backward_flops", rates->attention_backward_flops},
                        {"memory_bytes", rates->memory_bytes},     {"latency_seconds", rates->latency},         {"link_bytes", rates->link_bytes},
                        {"measured", rates->measured}};
  for (const PlannedStage& stage : stages)
    object["stages"].push_back({{"stage", stage.stage}, {"rank", stage.rank}, {"layers", stage.layers}, {"parameters", stage.elements}, {"work_over_mean", stage.work}});
  for (const PlannedRank& rank : ranks)
    object["memory"].push_back({{"rank", rank.rank}, {"stages", rank.stages}, {"parameters", rank.elements}, {"weights", rank.weights}, {"gradients", rank.gradients},
                                {"optimizer", rank.optimizer}, {"activations", rank.activations}, {"buffers", rank.buffers}, {"total", rank.total()}, {"work_over_mean", rank.work}});
  object["schedules"] = Json::array();
  for (const PlannedSchedule& line : schedules) {
    Json entry = {{"name", line.name}, {"schedule", line.schedule}, {"chunks", line.chunks}, {"in_force", line.in_force}};
    if (line.refused.empty())
      entry.update(Json{{"seconds", line.seconds}, {"bubble", line.bubble}, {"bound_seconds", line.bound}, {"memory", line.peak}, {"fullest_rank", line.fullest}, {"fits", line.fits}});
    else
      entry["refused"] = line.refused;
    object["schedules"].push_back(std::move(entry));
  }
  object["best"] = best ? Json(schedules[*best].name) : Json();
  object["bytes_per_step"] = {{"activations", bytes.activations}, {"activation_gradients", bytes.activation_gradients}, {"boundaries", bytes.boundaries},
                              {"gradient_sums", bytes.gradient_sums}, {"tied_tables", bytes.tied_tables}, {"total", bytes.total()}};
  return object.dump();
}

}  // namespace quire
