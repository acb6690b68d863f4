#include "run/context_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "run/context_speeds.h"
#include "runtime/error.h"

namespace quire {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t shown_ranks = 16;

std::vector<int64_t> lengths_of(const Documents& whole) {
  std::vector<int64_t> lengths;
  for (const DocumentRun& run : whole.runs()) lengths.push_back(run.length);
  return lengths;
}

double sum_of(std::span<const int64_t> values) { return static_cast<double>(std::accumulate(values.begin(), values.end(), int64_t{0})); }
double largest(std::span<const int64_t> values) { return values.empty() ? 0 : static_cast<double>(std::ranges::max(values)); }
double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/// Percent of a full ring that a rank receives on average, and the busiest one.
std::pair<double, double> received_of(const ContextPlan& plan, const ContextLoad& load, const ContextModel& model, const ContextBytes& bytes) {
  const double ring = static_cast<double>(load.full_ring_rows), ranks = static_cast<double>(plan.ranks);
  if (plan.exchange != ContextExchange::heads) return {percent(sum_of(load.received), ring), percent(ranks * largest(load.received), ring)};
  const double row = static_cast<double>(model.row_bytes());
  return {percent(sum_of(bytes.received_forward) / row, ring), percent(ranks * largest(bytes.received_forward) / row, ring)};
}

/// Whether a plan is as balanced as the bound takes it to be.
bool is_within(const ContextLoad& load, const ContextCosts& costs) {
  const double mean = sum_of(load.tokens) / static_cast<double>(load.tokens.size());
  const double slack = std::max(static_cast<double>(costs.token_tolerance) * mean / 1000, std::min(static_cast<double>(costs.tile), mean / 16)) + 1;
  const auto [least, most] = std::ranges::minmax(load.tokens);
  return max_over_mean(load.cost) <= 1 + static_cast<double>(costs.cost_tolerance) / 1000 + 1e-9 && static_cast<double>(least) >= mean - slack &&
         static_cast<double>(most) <= mean + slack;
}

/// Ranges of keys that ranks receive from one another in a layer, counted without making the plan.
int64_t transfers_of(const Documents& whole, const std::vector<std::vector<TokenRange>>& shards, int64_t window) {
  struct Held {
    int64_t begin, end;
    size_t rank;
  };
  std::vector<Held> held;
  for (size_t rank = 0; rank < shards.size(); ++rank)
    for (const TokenRange& range : shards[rank]) held.push_back({range.begin, range.end, rank});
  std::ranges::sort(held, {}, &Held::begin);
  std::vector<std::pair<int64_t, size_t>> seen(shards.size(), {-1, 0});  // of each rank: the document, and the range behind its last one
  int64_t transfers = 0;
  size_t first = 0;
  for (const DocumentRun& run : whole.runs()) {
    while (first < held.size() && held[first].end <= run.global) ++first;
    for (size_t i = first; i < held.size() && held[i].begin < run.global + run.length; ++i) {
      auto& [document, behind] = seen[held[i].rank];
      size_t from = document == run.global ? behind : first;
      const int64_t reach = held[i].begin - window + 1;
      if (window > 0) from = std::max(from, static_cast<size_t>(std::ranges::upper_bound(held, reach, {}, &Held::end) - held.begin()));
      if (from < i) transfers += static_cast<int64_t>(i - from);
      document = run.global;
      behind = i + 1;
    }
  }
  return transfers;
}

void check_size(const Documents& whole, std::span<const int64_t> lengths, int64_t ranks, const ContextChoice& choice, const ContextModel& model) {
  check_planned_ranks(ranks);
  if (ranks <= most_compared_ranks || choice.exchange == ContextExchange::heads) return;
  const auto shards = place_tokens(lengths, ranks, choice.layout, model.costs);
  int64_t transfers = 0;
  for (const LayerWindow& layer : model.costs.windows) transfers += transfers_of(whole, shards, layer.window);
  if (transfers > most_planned_transfers)
    fail<ConfigError>("plan", "{} over {} ranks makes {} transfers of keys in this microbatch; at most {} can be planned; its longest document has {} tokens: lower distributed.cp",
                      name_of(choice.layout), ranks, transfers, most_planned_transfers, std::ranges::max(lengths));
}

ContextLine line_of(const ContextPlan& plan, const Documents& whole, const ContextModel& model, const ContextReport& report,
                    const std::optional<ContextSpeeds>& speeds) {
  const ContextLoad load = load_of(plan, whole, model.costs);
  const ContextBytes bytes = bytes_of(plan, whole, model);
  const auto layers = static_cast<double>(model.layers());
  ContextLine line;
  line.layout = plan.layout;
  line.exchange = plan.exchange;
  line.tokens = max_over_mean(load.tokens);
  line.pairs = max_over_mean(load.pairs);
  line.cost = max_over_mean(load.cost);
  std::tie(line.received, line.busiest) = received_of(plan, load, model, bytes);
  line.within = is_within(load, model.costs);
  if (line.within && !report.windows && report.bound > 0) line.over_bound = line.received / report.bound;
  line.forward_bytes = sum_of(bytes.received_forward) / layers;
  line.backward_bytes = sum_of(bytes.received_backward) / layers;
  line.tiles = static_cast<int64_t>(sum_of(load.tiles));
  line.of_causal = percent(static_cast<double>(line.tiles), static_cast<double>(load.full_ring_tiles)) / 100;
  line.steps = static_cast<double>(load.steps) / layers;
  if (speeds && plan.ranks <= most_compared_ranks) line.seconds = predict_context(plan, whole, model, *speeds).seconds;
  return line;
}

ContextStepSummary summary_of(std::span<const Documents> microbatches, const ContextReport& report, const ContextModel& model) {
  ContextStepSummary summary;
  summary.microbatches = static_cast<int64_t>(microbatches.size());
  summary.mean_pairs = summary.mean_cost = 0;
  const double share = 1.0 / static_cast<double>(microbatches.size());
  for (const Documents& whole : microbatches) {
    const std::vector<int64_t> lengths = lengths_of(whole);
    const ContextPlan plan = make_context_plan(lengths, report.ranks, report.plan->layout, report.plan->exchange, model.costs);
    const ContextLoad load = load_of(plan, whole, model.costs);
    const double pairs = max_over_mean(load.pairs), cost = max_over_mean(load.cost),
                 received = received_of(plan, load, model, bytes_of(plan, whole, model)).first;
    summary.tokens += whole.tokens();
    summary.documents += static_cast<int64_t>(lengths.size());
    summary.mean_pairs += share * pairs;
    summary.worst_pairs = std::max(summary.worst_pairs, pairs);
    summary.mean_cost += share * cost;
    summary.worst_cost = std::max(summary.worst_cost, cost);
    summary.worst_tokens = std::max(summary.worst_tokens, max_over_mean(load.tokens));
    summary.mean_received += share * received;
    summary.worst_received = std::max(summary.worst_received, received);
    summary.mean_steps += share * static_cast<double>(load.steps) / static_cast<double>(model.layers());
  }
  return summary;
}

std::string bytes_text(double bytes) {
  for (const auto& [unit, size] : {std::pair{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}})
    if (bytes >= size) return fmt::format("{:.1f} {}", bytes / size, unit);
  return fmt::format("{:.0f} B", bytes);
}

std::string seconds_text(double seconds) { return seconds >= 1 ? fmt::format("{:.2f} s", seconds) : fmt::format("{:.3g} ms", seconds * 1e3); }

std::string row_of(const ContextLine& line, bool in_force) {
  return fmt::format("{} {:<11}{:<8}{:>7.3f}{:>7.3f}{:>7.3f} {:>8.1f} %{:>8.1f} %{:>9}{:>11}{:>11}{:>10}{:>10}{:>8}{}\n", in_force ? '>' : ' ',
                     name_of(line.layout), name_of(line.exchange), line.tokens, line.pairs, line.cost, line.received, line.busiest,
                     line.over_bound ? fmt::format("{:.2f} x", *line.over_bound) : "-", bytes_text(line.forward_bytes),
                     bytes_text(line.backward_bytes), line.tiles, line.of_causal > 1 ? "none" : fmt::format("{:.1f} %", 100 - 100 * line.of_causal),
                     line.exchange == ContextExchange::heads ? fmt::format("{:.4g}*", line.steps) : fmt::format("{:.4g}", line.steps),
                     line.seconds ? fmt::format("{:>11}", seconds_text(*line.seconds)) : "");
}

Json ranges_json(std::span<const TokenRange> ranges) {
  Json all = Json::array();
  for (const TokenRange& range : ranges) all.push_back({range.begin, range.end});
  return all;
}

/// Whole where it is.
Json number(double value) {
  if (value == std::floor(value) && std::abs(value) < 9e15) return static_cast<int64_t>(value);
  return value;
}

Json json_of(const ContextLine& line) {
  Json object = {{"layout", name_of(line.layout)}, {"exchange", name_of(line.exchange)}, {"tokens_balance", line.tokens}, {"pairs_balance", line.pairs},
                 {"cost_balance", line.cost}, {"received_percent", line.received}, {"busiest_percent", line.busiest}, {"over_bound", nullptr},
                 {"forward_bytes_per_layer", number(line.forward_bytes)}, {"backward_bytes_per_layer", number(line.backward_bytes)}, {"tiles", line.tiles},
                 {"tiles_skipped_percent", nullptr}, {"tiles_over_causal", line.of_causal}, {"steps", number(line.steps)},
                 {"balanced_within_tolerance", line.within}};
  if (line.of_causal <= 1) object["tiles_skipped_percent"] = 100 - 100 * line.of_causal;
  if (line.over_bound) object["over_bound"] = *line.over_bound;
  if (line.seconds) object["predicted_seconds"] = *line.seconds;
  return object;
}

}  // namespace

void check_planned_ranks(int64_t ranks) {
  if (ranks > most_planned_ranks)
    fail<ConfigError>("plan", "distributed.cp is {}; at most {} ranks can be planned in one process", ranks, most_planned_ranks);
}

std::string counted(int64_t number, std::string_view what) { return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s"); }

std::string tiles_text(const ContextLine& line) {
  if (line.of_causal > 1) return fmt::format("{} tiles, {:.3g} x those of a causal row", line.tiles, line.of_causal);
  return fmt::format("{:.1f} % of a causal row's tiles skipped", 100 - 100 * line.of_causal);
}

std::string steps_text(double steps, ContextExchange exchange, int64_t ranks) {
  if (exchange == ContextExchange::heads) return steps > 0 ? "heads go to their ranks and return" : "no heads travel";
  return fmt::format("{:.3g} of {} steps made", steps, ranks - 1);
}

std::string to_string(std::span<const TokenRange> ranges, size_t shown) {
  std::string text;
  for (size_t i = 0; i < std::min(shown, ranges.size()); ++i) text += fmt::format("{}{}-{}", i > 0 ? ", " : "", ranges[i].begin, ranges[i].end - 1);
  if (ranges.size() > shown) text += fmt::format(" and {} more", ranges.size() - shown);
  return text.empty() ? "nothing" : text;
}

ContextReport report_context(const Config& config, std::span<const Documents> microbatches, int64_t step, int64_t microbatch, const ContextChoice& choice,
                             const std::optional<ContextSpeeds>& speeds) {
  if (microbatch < 0 || microbatch >= static_cast<int64_t>(microbatches.size()))
    fail<ConfigError>("plan", "microbatch {} is asked for; step {} has microbatches 0 to {}", microbatch, step, static_cast<int64_t>(microbatches.size()) - 1);
  const Documents& whole = microbatches[static_cast<size_t>(microbatch)];
  const std::vector<int64_t> lengths = lengths_of(whole);
  const ContextModel model = context_model(config);
  check_size(whole, lengths, config.distributed.cp, choice, model);
  const bool compared = config.distributed.cp <= most_compared_ranks;
  ContextReport report;
  report.ranks = config.distributed.cp;
  report.step = step;
  report.microbatch = microbatch;
  report.tokens = whole.tokens();
  report.documents = static_cast<int64_t>(lengths.size());
  report.longest = lengths.empty() ? 0 : std::ranges::max(lengths);
  report.layers = model.layers();
  report.dtype = name_of(model.dtype);
  report.choice = choice.reason;
  report.tolerance = model.costs.cost_tolerance;
  if (speeds) report.speeds = to_string(*speeds);
  report.windows = std::ranges::any_of(model.costs.windows, [](const LayerWindow& layer) { return layer.window > 0; });
  const double ring = static_cast<double>((report.ranks - 1) * report.tokens);
  const ContextBound bound = context_lower_bound(lengths, report.ranks, model.costs);
  report.bound = percent(bound.total, ring);
  report.bound_busiest = percent(static_cast<double>(report.ranks) * bound.busiest, ring);
  for (const ContextLayout layout : {ContextLayout::contiguous, ContextLayout::zigzag, ContextLayout::balanced})
    for (const ContextExchange exchange : {ContextExchange::ring, ContextExchange::gather, ContextExchange::heads}) {
      if (!can_exchange(layout, exchange, model.heads, model.kv_heads, report.ranks)) continue;
      if (!compared && (layout != choice.layout || exchange != choice.exchange)) continue;
      auto plan = std::make_shared<const ContextPlan>(make_context_plan(lengths, report.ranks, layout, exchange, model.costs));
      if (layout == choice.layout && exchange == choice.exchange) {
        report.chosen = report.lines.size();
        report.plan = plan;
      }
      report.lines.push_back(line_of(*plan, whole, model, report, speeds));
    }
  if (!report.plan)
    fail<ConfigError>("plan", "{} with {} can not be over {} ranks with {} heads", name_of(choice.layout), name_of(choice.exchange), report.ranks,
                      model.heads);
  const ContextLoad load = load_of(*report.plan, whole, model.costs);
  for (size_t r = 0; r < load.tokens.size(); ++r)
    report.rank_lines.push_back({static_cast<int64_t>(r), report.plan->shards[r], load.tokens[r], load.pairs[r], load.received[r], load.sent[r]});
  report.summary = summary_of(compared ? microbatches : std::span(&whole, 1), report, model);
  return report;
}

std::string ContextReport::table() const {
  std::string text =
      fmt::format("step {}, microbatch {}: {} in {}, the longest of {}; {} in {}, {}\nin force: {}\n{}{}\n", step, microbatch,
                  counted(tokens, "token"), counted(documents, "document"), longest, counted(layers, "layer"), dtype, counted(ranks, "context rank"), choice,
                  speeds.empty() ? "" : fmt::format("chosen with speeds of this machine: {}\n", speeds),
                  ranks > most_compared_ranks ? fmt::format("over more than {} ranks other layouts and other microbatches are not planned\n", most_compared_ranks) : "");
  const bool timed = !lines.empty() && lines.front().seconds;
  text += fmt::format("  {:<11}{:<8}{:>21} {:>20}{:>9}{:>22}{:>20}{:>8}{}\n", "", "", "largest over mean", "keys received", "over",
                      "bytes of a layer", "attention", "steps", timed ? "  predicted" : "");
  text += fmt::format("  {:<11}{:<8}{:>7}{:>7}{:>7} {:>10}{:>10}{:>9}{:>11}{:>11}{:>10}{:>10}{:>8}\n", "layout", "exchange", "tokens", "pairs",
                      "cost", "mean", "busiest", "bound", "forward", "backward", "tiles", "skipped", fmt::format("of {}", ranks - 1));
  for (size_t i = 0; i < lines.size(); ++i) text += row_of(lines[i], i == chosen);
  if (std::ranges::any_of(lines, [](const ContextLine& line) { return line.exchange == ContextExchange::heads; }))
    text += "* of no ring: each layer's heads go to their ranks and return, all to all\n";
  const std::string least = fmt::format("a plan balanced to within {:.3g} % needs at least {:.1f} % (busiest rank: {:.1f} %)",
                                        static_cast<double>(tolerance) / 10, bound, bound_busiest);
  text += fmt::format("\nKeys received: percent of a full ring; {}.\n",
                      windows                     ? "no lower bound is known for layers with sliding windows"
                      : lines.at(chosen).within   ? least
                                                  : fmt::format("the one in force is not balanced to within {:.3g} %, so no bound holds for it",
                                                                static_cast<double>(tolerance) / 10));
  text += fmt::format("\nPer rank; pairs and rows of keys received and sent are summed over {}, forward:", counted(layers, "layer"));
  text += fmt::format("\n{:>6}{:>9}{:>14}{:>11}{:>11}   {}\n", "rank", "tokens", "pairs", "received", "sent", "holds");
  ContextRankLine rest;
  for (const ContextRankLine& line : rank_lines) {
    if (line.rank < static_cast<int64_t>(shown_ranks)) {
      text += fmt::format("{:>6}{:>9}{:>14}{:>11}{:>11}   {}\n", line.rank, line.tokens, line.pairs, line.received, line.sent, to_string(line.ranges));
      continue;
    }
    rest.tokens += line.tokens;
    rest.pairs += line.pairs;
    rest.received += line.received;
    rest.sent += line.sent;
  }
  if (rank_lines.size() > shown_ranks)
    text += fmt::format("{:>6}{:>9}{:>14}{:>11}{:>11}   ranks {} to {} together\n", "rest", rest.tokens, rest.pairs, rest.received, rest.sent,
                        shown_ranks, ranks - 1);
  const ContextStepSummary& s = summary;
  text += fmt::format(
      "\n{} ({}, {}): largest over mean of pairs {:.3f} (worst {:.3f}), of cost {:.3f} (worst {:.3f}), "
      "of tokens at worst {:.3f}; "
      "received {:.1f} % (worst {:.1f} %); {}\n",
      ranks > most_compared_ranks ? fmt::format("microbatch {} alone", microbatch)
      : s.microbatches == 1       ? "the step's one microbatch"
                                  : fmt::format("all {} microbatches of the step", s.microbatches),
      counted(s.tokens, "token"), counted(s.documents, "document"), s.mean_pairs, s.worst_pairs, s.mean_cost, s.worst_cost, s.worst_tokens, s.mean_received,
      s.worst_received, steps_text(s.mean_steps, plan->exchange, ranks));
  return text;
}

std::string ContextReport::to_json() const {
  Json object = {{"ranks", ranks},
                 {"step", step},
                 {"microbatch", microbatch},
                 {"tokens", tokens},
                 {"documents", documents},
                 {"longest", longest},
                 {"layers", layers},
                 {"dtype", dtype},
                 {"choice", choice},
                 {"speeds", speeds},
                 {"layout", name_of(plan->layout)},
                 {"exchange", name_of(plan->exchange)},
                 {"digest", fmt::format("{:016x}", plan->digest)},
                 {"bound_percent", nullptr},
                 {"bound_busiest_percent", nullptr}};
  if (!windows) {
    object["bound_percent"] = bound;
    object["bound_busiest_percent"] = bound_busiest;
  }
  object["candidates"] = Json::array();
  for (const ContextLine& line : lines) object["candidates"].push_back(json_of(line));
  object["per_rank"] = Json::array();
  for (const ContextRankLine& line : rank_lines)
    object["per_rank"].push_back({{"rank", line.rank},
                                  {"tokens", line.tokens},
                                  {"pairs", line.pairs},
                                  {"received", line.received},
                                  {"sent", line.sent},
                                  {"ranges", ranges_json(line.ranges)}});
  const ContextStepSummary& s = summary;
  object["whole_step"] = {{"microbatches", s.microbatches},
                          {"tokens", s.tokens},
                          {"documents", s.documents},
                          {"pairs_balance", s.mean_pairs},
                          {"worst_pairs_balance", s.worst_pairs},
                          {"cost_balance", s.mean_cost},
                          {"worst_cost_balance", s.worst_cost},
                          {"worst_tokens_balance", s.worst_tokens},
                          {"received_percent", s.mean_received},
                          {"worst_received_percent", s.worst_received},
                          {"steps", number(s.mean_steps)}};
  return object.dump();
}

}  // namespace quire
