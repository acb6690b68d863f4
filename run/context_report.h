// What context parallelism comes to for a config's microbatches, as a table for people and as JSON: balance, traffic, tiles and steps of every layout
// and exchange.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/context_choice.h"
#include "run/config.h"

namespace quire {

/// Most ranks for which every layout and exchange is planned and predicted; above, the one in force alone, for one microbatch.
constexpr int64_t most_compared_ranks = 1024;
/// Most ranks that are planned at all.
constexpr int64_t most_planned_ranks = 65536;
/// Most transfers of a plan: a document over n ranks makes up to n x n / 2.
constexpr int64_t most_planned_transfers = 6000000;

/// One layout and exchange for one microbatch. Percentages are of a full ring, in which every rank receives every other rank's keys and values.
struct ContextLine {
  ContextLayout layout = ContextLayout::contiguous;
  ContextExchange exchange = ContextExchange::ring;
  double tokens = 1, pairs = 1, cost = 1;   ///< largest over mean of the ranks
  double received = 0,
         busiest = 0;  ///< keys and values received in forward, percent: mean and busiest rank. `heads`: what its bytes would be worth in rows
  bool within = false;                      ///< cost and tokens are balanced to within the tolerances: what the bound is of
  std::optional<double> over_bound;         ///< received over the least that a plan so balanced must receive; none where it is not, the bound is 0 or layers have windows
  double forward_bytes = 0, backward_bytes = 0;  ///< received by all ranks together for one layer, boundary records included
  int64_t tiles = 0;                        ///< visited, all ranks and layers, forward, per head
  double of_causal = 1;                     ///< tiles over those that a causal row without documents visits: above 1 where many ranks cut a small row
  double steps = 0;                         ///< made in one layer's forward pass, mean over layers
  std::optional<double> seconds;            ///< predicted, where speeds are known
};

/// One rank's part in the plan in force.
struct ContextRankLine {
  int64_t rank = 0;
  std::vector<TokenRange> ranges;
  int64_t tokens = 0, pairs = 0, received = 0, sent = 0;  ///< pairs and rows over all layers, forward
};

/// The plan in force over a step's microbatches.
struct ContextStepSummary {
  int64_t microbatches = 0, tokens = 0, documents = 0;
  double mean_pairs = 1, worst_pairs = 1, mean_cost = 1, worst_cost = 1, worst_tokens = 1;
  double mean_received = 0, worst_received = 0;  ///< mean rank of the mean and of the worst microbatch, percent
  double mean_steps = 0;
};

struct ContextReport {
  int64_t ranks = 1, step = 1, microbatch = 0, tokens = 0, documents = 0, longest = 0;
  int64_t layers = 1;
  std::string dtype;
  double bound = 0, bound_busiest = 0;  ///< percent of a full ring: mean and busiest rank
  bool windows = false;                 ///< some layers have one: no bound
  int64_t tolerance = 0;                ///< of cost, in thousandths of the mean
  std::vector<ContextLine> lines;       ///< those that can be
  size_t chosen = 0;                    ///< of them, the one in force
  std::string choice;                   ///< how it was chosen
  std::string speeds;                   ///< that it was chosen with; "" where nothing was left to choose
  std::vector<ContextRankLine> rank_lines;
  ContextStepSummary summary;           ///< above most_compared_ranks: of the microbatch alone
  std::shared_ptr<const ContextPlan> plan;  ///< in force

  std::string table() const;
  std::string to_json() const;  ///< one object
};

/// For microbatch number `microbatch` of `step`, whose microbatches' documents are given. `choice`: what is in force, of choose_context. Throws
/// ConfigError for a microbatch that the step does not have, and for more than most_planned_ranks or most_planned_transfers.
ContextReport report_context(const Config& config, std::span<const Documents> microbatches, int64_t step, int64_t microbatch, const ContextChoice& choice,
                             const std::optional<ContextSpeeds>& speeds = {});

/// Throws ConfigError for more than most_planned_ranks.
void check_planned_ranks(int64_t ranks);

/// `1 document`, `2 documents`
std::string counted(int64_t number, std::string_view what);

/// `87.5 % of a causal row's tiles skipped`, or `13840 tiles, 346 x those of a causal row` where none are.
std::string tiles_text(const ContextLine& line);

/// `2 of 3 steps made`; for `heads` in words of its own.
std::string steps_text(double steps, ContextExchange exchange, int64_t ranks);

/// `0-127, 384-511 and 12 more`: first and last tokens of at most `shown` ranges.
std::string to_string(std::span<const TokenRange> ranges, size_t shown = 4);

}  // namespace quire
