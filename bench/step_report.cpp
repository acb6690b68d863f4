// What `bench step` prints.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/step.h"

namespace quire::bench {

namespace {

double median(const std::vector<double>& values) { return median_of(values); }

std::string side_name(const StepSide& side) {
  std::string text = side.name + " " + side.dtype;
  if (side.threads > 1) text += fmt::format(", {} threads", side.threads);
  if (!side.variant.empty()) text += ", " + side.variant;
  return text;
}

/// Goals of the project for this line; 0 for none.
std::pair<double, double> goals(const StepLine& line) {
  struct Goal {
    const char *shape, *documents;
    double gate, stretch;
  };
  for (const Goal& goal : {Goal{"a", "packed", 1.4, 1.7}, {"a", "one", 1.3, 1.6}, {"b", "packed", 1.3, 1.6}, {"b", "one", 1.15, 1.3}, {"c", "packed", 1.5, 2.5}, {"c", "one", 1.3, 1.6}})
    if (line.shape == goal.shape && line.documents == goal.documents) return {goal.gate, goal.stretch};
  return {0, 0};
}

std::string table_of(const StepBenchResult& result) {
  std::string text = "| shape | documents | side | ms per step | tokens/s | share of the probe | ratio | quartiles |\n|---|---|---|---:|---:|---:|---:|---|\n";
  for (const StepLine& line : result.lines)
    for (const StepSide& side : line.sides) {
      const double seconds = median(side.seconds);
      const Spread ratio = spread_of(side.ratios);
      const bool first = &side == &line.sides[0];
      text += fmt::format("| {} | {} | {} | {:.1f} | {:.0f} | {:.1f} % | {} | {} |\n", line.shape, line.documents, side_name(side), 1e3 * seconds,
                          static_cast<double>(line.tokens) / seconds, 100 * median(side.share), first ? "" : fmt::format("{:.2f}", ratio.median),
                          first ? "" : fmt::format("{:.2f} to {:.2f}", ratio.low, ratio.high));
    }
  return text;
}

std::string against_best(const StepBenchResult& result) {
  std::string text;
  for (const StepLine& line : result.lines) {
    const StepSide* best = line.best_peer();
    if (!best) continue;
    if (text.empty()) text = "\n| shape | documents | best peer | ratio | quartiles | gate | stretch |\n|---|---|---|---:|---|---:|---:|\n";
    const Spread ratio = spread_of(best->ratios);
    const auto [gate, stretch] = goals(line);
    text += fmt::format("| {} | {} | {} | {:.2f} | {:.2f} to {:.2f} | {:g} | {:g} |\n", line.shape, line.documents, side_name(*best), ratio.median, ratio.low, ratio.high, gate, stretch);
  }
  for (const StepLine& line : result.lines)
    if (!line.dense.empty()) {
      const auto least = std::ranges::min_element(line.dense, {}, [](const auto& each) { return each.second; });
      text += fmt::format("\n{} {} against a dense document mask: {:.1f} times ({}, {:.0f} ms a step; gate 5).\n", line.shape, line.documents,
                          least->second / median(line.sides[0].seconds), least->first, 1e3 * least->second);
    }
  return text;
}

/// bf16 beside f32, and many threads beside one.
std::string against_oneself(const StepBenchResult& result) {
  std::string text;
  for (const StepLine& line : result.lines)
    for (const StepSide& side : line.sides) {
      const StepSide& first = line.sides[0];
      if (&side == &first || side.name != "quire") continue;
      const Spread ratio = spread_of(side.ratios);
      if (side.threads != first.threads)
        text += fmt::format("\n{} {}: {} threads are {:.2f} times one ({:.2f} to {:.2f}; gate 1.7 in a calm phase).\n", line.shape, line.documents, first.threads, ratio.median, ratio.low, ratio.high);
      else
        text += fmt::format("\n{} {}: {} makes {:.2f} of the tokens/s of {} (gate 0.9, stretch 1) in {:.2f} of its memory ({:.1f} and {:.1f} MiB).\n", line.shape, line.documents, side.dtype,
                            1 / ratio.median, first.dtype, static_cast<double>(side.memory) / static_cast<double>(std::max<int64_t>(first.memory, 1)),
                            static_cast<double>(side.memory) / (1 << 20), static_cast<double>(first.memory) / (1 << 20));
    }
  return text;
}

std::string profile_of(const StepLine& line) {
  const auto step = line.profile.find("");
  if (step == line.profile.end()) return "";
  std::string text = fmt::format("\nWhere the time of {} {} goes (quire {}):\n\n| operation | calls | ms per step | share |\n|---|---:|---:|---:|\n", line.shape, line.documents, line.sides[0].dtype);
  std::vector<std::pair<std::string, Profile::Entry>> entries(line.profile.begin(), line.profile.end());
  std::ranges::stable_sort(entries, std::ranges::greater(), [](const auto& each) { return each.second.seconds; });
  double inside = 0;
  for (const auto& [name, entry] : entries) {
    if (name.empty()) continue;
    inside += entry.seconds;
    text += fmt::format("| {} | {} | {:.2f} | {:.1f} % |\n", name, entry.calls, 1e3 * entry.seconds, 100 * entry.seconds / step->second.seconds);
  }
  const double outside = step->second.seconds - inside;
  return text + fmt::format("| outside of kernels | | {:.2f} | {:.1f} % |\n", 1e3 * outside, 100 * outside / step->second.seconds);
}

std::string peers_of(const StepBenchResult& result) {
  std::string text;
  std::vector<std::string> told;
  for (const StepLine& line : result.lines)
    for (const StepSide& side : line.sides)
      if (std::ranges::find(told, side.name) == told.end()) {
        told.push_back(side.name);
        text += fmt::format("- {}: {}, {}\n", side.name, side.version, side.build);
      }
  for (const StepLine& line : result.lines)
    for (const StepTrial& trial : line.trials)
      text += fmt::format("- {} {}, tried on {}: {}, {}\n", line.shape, line.documents, trial.peer, trial.variant,
                          trial.reason.empty() ? fmt::format("{:.0f} ms", 1e3 * trial.seconds) : trial.reason);
  return text;
}

}  // namespace

std::string StepBenchResult::markdown() const {
  std::string text = fmt::format("Training steps on {}, {}. Ratio: seconds of the side over seconds of the first one, pair by pair; medians of {}.\n\n", machine, date,
                                 lines.empty() ? 0 : lines[0].sides[0].seconds.size());
  text += table_of(*this) + against_best(*this) + against_oneself(*this);
  for (const StepLine& line : lines) text += profile_of(line);
  text += "\n";
  for (const StepLine& line : lines) text += fmt::format("- {} {}: {} tokens in {} documents, {:.1f} GFLOP a step, probe {:.1f} GFLOP/s\n", line.shape, line.documents, line.tokens, line.document_count, line.flops / 1e9, line.probe / 1e9);
  return text + peers_of(*this) + "\n" + gate;
}

std::string StepBenchResult::to_json() const {
  nlohmann::ordered_json object = {{"machine", machine}, {"date", date}, {"repeated", repeated}, {"disturbed", disturbed}, {"lines", nlohmann::ordered_json::array()}};
  for (const StepLine& line : lines) {
    nlohmann::ordered_json one = {{"shape", line.shape}, {"documents", line.documents}, {"tokens", line.tokens}, {"document_count", line.document_count}, {"flops", line.flops}, {"probe", line.probe}};
    for (const StepSide& side : line.sides) {
      const Spread ratio = spread_of(side.ratios);
      one["sides"].push_back({{"name", side.name},
                              {"version", side.version},
                              {"build", side.build},
                              {"variant", side.variant},
                              {"dtype", side.dtype},
                              {"threads", side.threads},
                              {"seconds", side.seconds},
                              {"median_seconds", median(side.seconds)},
                              {"tokens_per_second", static_cast<double>(line.tokens) / median(side.seconds)},
                              {"share_of_probe", median(side.share)},
                              {"ratios", side.ratios},
                              {"ratio", {{"low", ratio.low}, {"median", ratio.median}, {"high", ratio.high}}},
                              {"first_loss", side.first_loss},
                              {"last_loss", side.last_loss},
                              {"memory", side.memory}});
    }
    one["trials"] = nlohmann::ordered_json::array();
    for (const StepTrial& trial : line.trials)
      one["trials"].push_back({{"peer", trial.peer}, {"variant", trial.variant}, {"seconds", trial.seconds}, {"reason", trial.reason}});
    const StepSide* best = line.best_peer();
    one["best_peer"] = best ? nlohmann::ordered_json(best->name) : nlohmann::ordered_json(nullptr);
    one["dense_seconds"] = line.dense;
    for (const auto& [name, entry] : line.profile) one["profile"][name.empty() ? "step" : name] = {{"calls", entry.calls}, {"seconds", entry.seconds}};
    object["lines"].push_back(std::move(one));
  }
  return object.dump();
}

}  // namespace quire::bench
