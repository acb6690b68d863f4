#include "bench/plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "bench/rows.h"
#include "parallel/context_traffic.h"
#include "run/machine.h"
#include "runtime/error.h"

namespace quire::bench {

namespace {

constexpr int64_t step_token_cost = 6 * 4096;  // of a layer of width 4,096

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/// Pairs of the busiest rank over the mean when each document is cut in 2 x ranks parts, dealt out from both ends; remainders rotate.
double document_zigzag_pairs(const std::vector<int64_t>& lengths, int64_t ranks) {
  std::vector<int64_t> pairs(static_cast<size_t>(ranks), 0);
  const int64_t parts = 2 * ranks;
  int64_t turn = 0;
  for (const int64_t length : lengths) {
    const int64_t shift = (turn += length % parts) % ranks;
    for (int64_t k = 0; k < parts; ++k) {
      const int64_t begin = length * k / parts, end = length * (k + 1) / parts;
      pairs[static_cast<size_t>((std::min(k, parts - 1 - k) + shift) % ranks)] += (end - begin) * (begin + end + 1) / 2;
    }
  }
  return max_over_mean(pairs);
}

struct Measured {
  double pairs, cost, received, busiest, steps;
  bool tokens_outside;
};

Measured measure(const std::vector<int64_t>& lengths, const Documents& whole, int64_t ranks, ContextLayout layout, const ContextCosts& costs) {
  const ContextLoad load = load_of(make_context_plan(lengths, ranks, layout, ContextExchange::ring, costs), whole, costs);
  const double ring = static_cast<double>(load.full_ring_rows);
  const int64_t received = std::accumulate(load.received.begin(), load.received.end(), int64_t{0});
  const double mean = static_cast<double>(whole.tokens()) / static_cast<double>(ranks);
  const double slack = std::max(static_cast<double>(costs.token_tolerance) * mean / 1000, std::min(static_cast<double>(costs.tile), mean / 16)) + 1;
  const auto [least, most] = std::ranges::minmax(load.tokens);
  return {max_over_mean(load.pairs), max_over_mean(load.cost), percent(static_cast<double>(received), ring),
          percent(static_cast<double>(ranks * std::ranges::max(load.received)), ring), static_cast<double>(load.steps),
          static_cast<double>(least) < mean - slack || static_cast<double>(most) > mean + slack};
}

/// Adds a row to sums.
void add_row(const std::vector<int64_t>& lengths, PlansCell& cell) {
  ContextCosts attention, step;
  step.token_cost = step_token_cost;
  const Documents whole = Documents::from_lengths(lengths);
  const Measured contiguous = measure(lengths, whole, cell.ranks, ContextLayout::contiguous, attention),
                 zigzag = measure(lengths, whole, cell.ranks, ContextLayout::zigzag, attention);
  const Measured balanced = measure(lengths, whole, cell.ranks, ContextLayout::balanced, attention),
                 whole_step = measure(lengths, whole, cell.ranks, ContextLayout::balanced, step);
  const ContextBound bound = context_lower_bound(lengths, cell.ranks, attention);
  const double ring = static_cast<double>((cell.ranks - 1) * whole.tokens());
  cell.documents += static_cast<double>(lengths.size());
  cell.contiguous_pairs += contiguous.pairs;
  cell.contiguous_received += contiguous.received;
  cell.zigzag_pairs += zigzag.pairs;
  cell.zigzag_received += zigzag.received;
  cell.document_zigzag_pairs += document_zigzag_pairs(lengths, cell.ranks);
  cell.balanced_pairs += balanced.pairs;
  cell.worst_pairs = std::max(cell.worst_pairs, balanced.pairs);
  cell.received += balanced.received;
  cell.busiest += balanced.busiest;
  cell.steps += balanced.steps;
  cell.bound += percent(bound.total, ring);
  cell.bound_busiest += percent(static_cast<double>(cell.ranks) * bound.busiest, ring);
  cell.step_cost += whole_step.cost;
  cell.worst_step_cost = std::max(cell.worst_step_cost, whole_step.cost);
  cell.step_pairs += whole_step.pairs;
  cell.step_received += whole_step.received;
  cell.over_pairs += balanced.pairs > 1.05 + 1e-9;
  cell.outside_tokens += balanced.tokens_outside || whole_step.tokens_outside;
  cell.over_step += whole_step.cost > 1.05 + 1e-9;
  ++cell.rows;
}

constexpr double PlansCell::*summed[] = {&PlansCell::documents,
                                         &PlansCell::contiguous_pairs,
                                         &PlansCell::contiguous_received,
                                         &PlansCell::zigzag_pairs,
                                         &PlansCell::zigzag_received,
                                         &PlansCell::document_zigzag_pairs,
                                         &PlansCell::balanced_pairs,
                                         &PlansCell::received,
                                         &PlansCell::busiest,
                                         &PlansCell::steps,
                                         &PlansCell::bound,
                                         &PlansCell::bound_busiest,
                                         &PlansCell::step_cost,
                                         &PlansCell::step_pairs,
                                         &PlansCell::step_received};

/// Two threads, each with every other row; sums are added in a fixed order.
PlansCell cell_of(const std::string& corpus, const std::vector<std::vector<int64_t>>& rows, int64_t tokens, int64_t ranks) {
  PlansCell parts[2];
  const auto work = [&](int64_t part) {
    parts[part] = {.corpus = corpus, .tokens = tokens, .ranks = ranks};
    for (auto row = static_cast<size_t>(part); row < rows.size(); row += 2) add_row(rows[row], parts[part]);
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  PlansCell& cell = parts[0];
  cell.rows += parts[1].rows;
  for (double PlansCell::*value : summed) cell.*value = (cell.*value + parts[1].*value) / static_cast<double>(cell.rows);
  cell.worst_pairs = std::max(cell.worst_pairs, parts[1].worst_pairs);
  cell.worst_step_cost = std::max(cell.worst_step_cost, parts[1].worst_step_cost);
  cell.over_pairs += parts[1].over_pairs;
  cell.outside_tokens += parts[1].outside_tokens;
  cell.over_step += parts[1].over_step;
  return cell;
}

PlanningTime time_planning(const Lengths& lengths) {
  const std::vector<int64_t> row = draw_documents(lengths, 131072, 5000);
  std::vector<double> seconds;
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const ContextPlan plan = make_context_plan(row, 64, ContextLayout::balanced, ContextExchange::ring);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (plan.tokens != 131072) seconds.back() = 0;  // the plan is used, so it is made
  }
  std::ranges::sort(seconds);
  return {lengths.name, seconds.front(), (seconds[9] + seconds[10]) / 2, seconds.back()};
}

double heads_percent(int64_t ranks) {
  ContextModel model;
  model.heads = 32;
  model.kv_heads = 8;
  model.head_dim = 128;
  if (!heads_fit(model.heads, model.kv_heads, ranks)) return -1;
  const int64_t lengths[] = {8192};
  const ContextPlan plan = make_context_plan(lengths, ranks, ContextLayout::contiguous, ContextExchange::heads);
  const ContextBytes bytes = bytes_of(plan, Documents::from_lengths(lengths), model);
  const int64_t sum = std::accumulate(bytes.received_forward.begin(), bytes.received_forward.end(), int64_t{0});
  return percent(static_cast<double>(sum), static_cast<double>(model.row_bytes() * (ranks - 1) * 8192));
}

}  // namespace

PlansResult bench_plans(const PlansOptions& options) {
  for (const int64_t tokens : options.tokens)
    for (const int64_t ranks : options.ranks)
      if (ranks > tokens)
        fail<ConfigError>("bench", "--cp {} is more ranks than a row of {} tokens (--tokens) has; allowed: at most {}", ranks, tokens, tokens);
  PlansResult result;
  const std::vector<Lengths> corpora = read_lengths(options.lengths);
  for (const Lengths& lengths : corpora) result.times.push_back(time_planning(lengths));
  for (const int64_t ranks : options.ranks) result.heads.push_back({ranks, heads_percent(ranks)});
  for (const Lengths& lengths : corpora)
    for (const int64_t tokens : options.tokens) {
      std::vector<std::vector<int64_t>> drawn;
      for (int64_t row = 0; row < options.rows; ++row) drawn.push_back(draw_row(lengths, tokens, row));
      const std::vector<std::vector<int64_t>> packed = pack_rows(lengths, tokens, options.rows);
      for (const int64_t ranks : options.ranks) {
        result.packed.push_back(cell_of(lengths.name, packed, tokens, ranks));
        result.drawn.push_back(cell_of(lengths.name, drawn, tokens, ranks));
      }
    }
  return result;
}

namespace {

std::string table_of(const std::vector<PlansCell>& cells) {
  std::string text =
      "| lengths | row | cp | documents | contiguous pairs | keys | zigzag pairs | keys | per-document zigzag pairs (keys 100 %) | balanced pairs, "
      "mean (worst) | keys | bound | "
      "busiest rank / bound | steps | balanced, step: cost | pairs | keys |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
  for (const PlansCell& c : cells) {
    text += fmt::format("| {} | {} | {} | {:.0f} | {:.2f} | {:.1f} % | {:.2f} | {:.1f} % | {:.2f} | {:.2f} ({:.2f}{}) ", c.corpus,
                        c.tokens % 1024 == 0 ? fmt::format("{}k", c.tokens / 1024) : std::to_string(c.tokens), c.ranks, c.documents,
                        c.contiguous_pairs, c.contiguous_received, c.zigzag_pairs, c.zigzag_received, c.document_zigzag_pairs, c.balanced_pairs,
                        c.worst_pairs, c.over_pairs > 0 ? fmt::format("; {} over", c.over_pairs) : "");
    text += fmt::format("| {:.1f} %{} | {:.1f} % | {:.0f} / {:.0f} % | {:.1f} | {:.2f}{} | {:.2f} | {:.1f} %{} |\n", c.received,
                        c.received_holds() ? "" : " (!)", c.bound, c.busiest, c.bound_busiest, c.steps, c.worst_step_cost,
                        c.over_step > 0 ? fmt::format(" ({} over)", c.over_step) : "", c.step_pairs, c.step_received, c.step_holds() ? "" : " (!)");
  }
  return text;
}

std::string aims_of(const std::vector<PlansCell>& cells) {
  int64_t all = 0, over = 0, outside = 0, over_step = 0, received = 0, step = 0;
  for (const PlansCell& c : cells) {
    all += c.rows;
    over += c.over_pairs;
    outside += c.outside_tokens;
    over_step += c.over_step;
    received += c.received_holds();
    step += c.step_holds();
  }
  const auto count = static_cast<int64_t>(cells.size());
  const auto verdict = [](bool holds) { return holds ? "holds" : "**does not hold**"; };
  std::string text = "| aim | found | |\n|---|---|---|\n";
  text += fmt::format("| attention's pairs at most 1.05 of the mean on 99.9 % of rows | {} of {} rows are over | {} |\n", over, all,
                      verdict(1000 * over <= all));
  text += fmt::format(
      "| tokens of every rank within 2 % of the mean, or one tile (a 16th of a shard where that is less), both ways | {} of {} rows are outside | {} "
      "|\n",
      outside, all, verdict(outside == 0));
  text += fmt::format("| keys received at most 1.25 x bound + 5 % of a full ring, mean of the rows | {} of {} lines | {} |\n", received, count,
                      verdict(received == count));
  text += fmt::format("| a step's cost at most 1.05 of the mean on 99.9 % of rows | {} of {} rows are over | {} |\n", over_step, all,
                      verdict(1000 * over_step <= all));
  return text + fmt::format("| balanced for a step: no more keys than balanced for attention (to a tenth of a percent) | {} of {} lines | {} |\n",
                            step, count, verdict(step == count));
}

/// The table in a few sentences.
std::string summary_of(const std::vector<PlansCell>& packed, const std::vector<PlansCell>& drawn) {
  int64_t rows = 0, over = 0, outside = 0, drawn_rows = 0, drawn_over = 0;
  double contiguous = 0, zigzag = 0, received = 0, contiguous_pairs = 0, zigzag_pairs = 0;
  std::string more;  // keys received than needed
  int64_t missed = 0;
  for (const PlansCell& c : packed) {
    const double share = 1 / static_cast<double>(packed.size());
    rows += c.rows;
    over += c.over_pairs;
    outside += c.outside_tokens;
    contiguous += share * c.contiguous_received;
    zigzag += share * c.zigzag_received;
    received += share * c.received;
    contiguous_pairs = std::max(contiguous_pairs, c.contiguous_pairs);
    zigzag_pairs = std::max(zigzag_pairs, c.zigzag_pairs);
    if (c.received_holds()) continue;
    ++missed;
    if (missed <= 4) more += fmt::format("{}{} with {} tokens over {} ranks", missed > 1 ? ", " : "", c.corpus, c.tokens, c.ranks);
  }
  for (const PlansCell& c : drawn) {
    drawn_rows += c.rows;
    drawn_over += c.over_pairs;
  }
  std::string text = fmt::format(
      "In short: of {} packed rows, balanced plans leave {} with a rank above 1.05 of the mean pairs and {} with tokens outside of their tolerance, "
      "where contiguous parts have up to {:.2f} and zigzag up to {:.2f} (means of a line). ",
      rows, over, outside, contiguous_pairs, zigzag_pairs);
  text += fmt::format("They receive {:.1f} % of a full ring's keys in the mean of all lines (contiguous {:.1f} %, zigzag {:.1f} %); {}. ", received, contiguous,
                      zigzag,
                      missed == 0 ? "no line misses 1.25 x the bound + 5 %"
                                  : fmt::format("{} of {} lines miss 1.25 x the bound + 5 % ({}{})", missed, packed.size(), more,
                                                missed > 4 ? fmt::format(" and {} more", missed - 4) : ""));
  return text + fmt::format("Of {} rows that are drawn but not packed, {} have a rank above 1.05.\n\n", drawn_rows, drawn_over);
}

}  // namespace

std::string PlansResult::markdown() const {
  std::string text = fmt::format(
      "# Context plans: balance and traffic\n\nPrinted by `build/tools/bench plans` from the root of a checkout. {} rows a line, of documents drawn "
      "from the lengths in `bench/lengths` (four "
      "lognormal distributions by their mean; Debian's fortunes, in bytes) and packed by best-fit decreasing.\n\n",
      packed.empty() ? 0 : packed.front().rows);
  text += summary_of(packed, drawn);
  text +=
      "Pairs: query-key pairs of the busiest rank over the mean of all (1.00 is even). Keys: rows of keys and values that ranks receive in forward, "
      "in percent of a full ring, where everybody "
      "gets every key. `ring` and `gather` receive the same rows; a ring makes the steps shown, of cp - 1, a gather one. *Full rings* of contiguous "
      "and zigzag have the same pairs and 100 % of the keys, "
      "as has per-document zigzag, which other systems use. *Bound*: the least that any plan as balanced must receive (a relaxation). *Balanced, "
      "step*: balanced for a whole step of a model of width "
      "4,096 instead of attention alone; cost: of the busiest rank over the mean, worst row. (!): an aim is missed.\n\n";
  text += table_of(packed) + "\n## What was aimed at\n\n" + aims_of(packed);
  text +=
      "\n## Rows as they are drawn\n\nWithout packing, until a row is full, the last document cut: a row's longest document then often holds most of "
      "its pairs beside few tokens.\n\n" +
      aims_of(drawn);
  std::vector<PlansCell> missed;
  for (const PlansCell& c : drawn)
    if (c.over_pairs > 0 || c.outside_tokens > 0 || !c.received_holds() || c.over_step > 0 || !c.step_holds()) missed.push_back(c);
  if (!missed.empty()) text += "\nThe lines that miss an aim:\n\n" + table_of(missed);
  text +=
      "\n## Exchange by heads\n\nWhat a rank receives does not depend on documents; in percent of a full ring's bytes, for 32 heads, 8 of them for "
      "keys, forward:";
  for (const auto& [ranks, value] : heads) text += value < 0 ? fmt::format(" cp {}: heads do not fit;", ranks) : fmt::format(" cp {}: {:.0f} %;", ranks, value);
  text.back() = '.';
  text += fmt::format(
      "\n\n## Planning\n\n131,072 tokens in 5,000 documents over 64 ranks, milliseconds of 20 plans on one core ({}):\n\n| lengths | best | median | "
      "worst |\n|---|--:|--:|--:|\n",
      processor_name());
  for (const PlanningTime& time : times)
    text += fmt::format("| {} | {:.2f} | {:.2f} | {:.2f} |\n", time.corpus, 1e3 * time.best, 1e3 * time.median, 1e3 * time.worst);
  return text;
}

std::string PlansResult::to_json() const {
  nlohmann::ordered_json object = {{"packed", nlohmann::ordered_json::array()},
                                   {"drawn", nlohmann::ordered_json::array()},
                                   {"planning", nlohmann::ordered_json::array()},
                                   {"heads_received_percent", nlohmann::ordered_json::object()}};
  for (const auto& [name, cells] : {std::pair{"packed", &packed}, {"drawn", &drawn}})
    for (const PlansCell& c : *cells)
      object[name].push_back({{"corpus", c.corpus},
                              {"tokens", c.tokens},
                              {"ranks", c.ranks},
                              {"rows", c.rows},
                              {"documents", c.documents},
                              {"contiguous_pairs", c.contiguous_pairs},
                              {"contiguous_received", c.contiguous_received},
                              {"zigzag_pairs", c.zigzag_pairs},
                              {"zigzag_received", c.zigzag_received},
                              {"document_zigzag_pairs", c.document_zigzag_pairs},
                              {"balanced_pairs", c.balanced_pairs},
                              {"worst_pairs", c.worst_pairs},
                              {"received", c.received},
                              {"busiest", c.busiest},
                              {"steps", c.steps},
                              {"bound", c.bound},
                              {"bound_busiest", c.bound_busiest},
                              {"step_cost", c.step_cost},
                              {"worst_step_cost", c.worst_step_cost},
                              {"step_pairs", c.step_pairs},
                              {"step_received", c.step_received},
                              {"over_pairs", c.over_pairs},
                              {"outside_tokens", c.outside_tokens},
                              {"over_step", c.over_step}});
  for (const PlanningTime& time : times)
    object["planning"].push_back(
        {{"corpus", time.corpus}, {"best_seconds", time.best}, {"median_seconds", time.median}, {"worst_seconds", time.worst}});
  for (const auto& [ranks, value] : heads)
    if (value >= 0) object["heads_received_percent"][std::to_string(ranks)] = value;
  return object.dump();
}

}  // namespace quire::bench
