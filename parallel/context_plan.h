// Context parallelism as plain values: which rank holds which tokens of a packed microbatch, and which keys and values go from whom to whom at which step.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/documents.h"

namespace quire {

/// Global indices [begin, end) of a microbatch's tokens.
struct TokenRange {
  int32_t begin = 0, end = 0;
  int64_t tokens() const { return int64_t{end} - begin; }
  bool operator==(const TokenRange&) const = default;
};
int64_t tokens_of(std::span<const TokenRange> ranges);

/// Who holds which tokens. `contiguous`: equal parts in order. `zigzag`: of 2 x ranks equal parts rank r holds parts r and 2 x ranks - 1 - r. `balanced`: planned
/// over the documents, so that tokens and cost are balanced, then traffic is least. No length has to divide another one.
enum class ContextLayout : uint8_t { contiguous, zigzag, balanced };
/// How ranks meet. `ring`: at step s rank r receives from rank r - s what it needs of its keys and values; in backward again. `gather`: everything
/// needed in one step, kept for backward. `heads`: every rank gets all tokens of its share of the heads (DeepSpeed-Ulysses: Jacobs et al., 2023); contiguous only.
enum class ContextExchange : uint8_t { ring, gather, heads };
ContextLayout context_layout_from(std::string_view name);      ///< throws ConfigError with the allowed names
ContextExchange context_exchange_from(std::string_view name);  ///< throws ConfigError with the allowed names
std::string_view name_of(ContextLayout layout);
std::string_view name_of(ContextExchange exchange);

/// So many of a model's layers have this sliding window (0: none).
struct LayerWindow {
  int64_t window = 0, layers = 1;
  bool operator==(const LayerWindow&) const = default;
};

/// What `balanced` balances. A token at position p of its document costs `token_cost` plus, for each layer, the keys that it reads: min(p + 1, window).
struct ContextCosts {
  std::vector<LayerWindow> windows{{}};  ///< distinct windows
  int64_t token_cost = 0;                ///< of a token outside of attention, all layers together, in query-key pairs; 0 balances attention alone
  int64_t tile = 64;                     ///< cuts inside of long documents fall on multiples of it, or of less where shards are small
  int64_t cost_tolerance = 50;           ///< most that a rank's cost may be above the mean, in thousandths
  int64_t token_tolerance = 20;          ///< the same for tokens, both ways; or one tile (a 16th of a shard where that is less) if that is more
};

/// Keys and values of these tokens, ascending, go from one rank to another; in backward their gradients return.
struct KeyTransfer {
  int32_t from = 0, to = 0;
  std::vector<TokenRange> rows;
  bool operator==(const KeyTransfer&) const = default;
};
/// Transfers that are under way together, at most one for each pair of ranks, in ascending order of (to, from).
struct ContextStep {
  std::vector<KeyTransfer> transfers;
  bool operator==(const ContextStep&) const = default;
};
/// The steps of the layers that have this window, after the one in which every rank meets its own keys. A step that nobody needs is not there.
struct KeyExchange {
  int64_t window = 0;
  std::vector<ContextStep> steps;
  bool operator==(const KeyExchange&) const = default;
};

struct ContextPlan {
  ContextLayout layout = ContextLayout::contiguous;
  ContextExchange exchange = ContextExchange::ring;
  int64_t ranks = 1, tokens = 0;
  std::vector<std::vector<TokenRange>> shards;  ///< [ranks] ascending, neighbours joined; a rank may hold nothing
  std::vector<KeyExchange> exchanges;           ///< one per distinct window; none for `heads`, whose messages follow from the shards
  uint64_t digest = 0;                          ///< of all of the above
  const KeyExchange& for_window(int64_t window) const;  ///< throws StateError where the plan has none
  bool operator==(const ContextPlan&) const = default;
};

/// A pure function of integers: the same on every rank. `lengths` are those of the microbatch's documents, in order; zero lengths are ignored. Throws ConfigError
/// for `heads` with another layout than contiguous, DataError for negative lengths or 2^31 tokens.
ContextPlan make_context_plan(std::span<const int64_t> lengths, int64_t ranks, ContextLayout layout, ContextExchange exchange, const ContextCosts& costs = {});
/// The shards of each rank alone.
std::vector<std::vector<TokenRange>> place_tokens(std::span<const int64_t> lengths, int64_t ranks, ContextLayout layout, const ContextCosts& costs = {});
/// The exchange of these shards: each rank receives, of every document it holds queries of, those keys that they read and it does not hold.
KeyExchange plan_key_exchange(const Documents& whole, const std::vector<std::vector<TokenRange>>& shards, ContextExchange exchange, int64_t window);
/// Throws ScheduleError naming rank and token unless every token is held once, and every key that a query reads is held or received once, and none is
/// received that no query of the rank reads. Independent of the planner; O(tokens x ranks).
void check_context_plan(const ContextPlan& plan, std::span<const int64_t> lengths);

/// The documents of a rank's tokens, with their global indices and starts.
Documents documents_of(const Documents& whole, std::span<const TokenRange> shard);

/// What a plan comes to, per rank, summed over layers. `heads`: every rank computes a share of the heads over all tokens, so pairs and tiles are those of the whole
/// microbatch over the ranks; a row received or sent is a token's keys and values of that share of heads, and each layer has two steps (there and back).
struct ContextLoad {
  std::vector<int64_t> tokens, pairs, cost;   ///< pairs: query-key pairs per head, forward
  std::vector<int64_t> received, sent;        ///< rows of keys and values in forward (a row: one token's keys and values of one layer)
  std::vector<int64_t> tiles;                 ///< of tile x tile pairs that attention visits, forward, per head
  int64_t steps = 0, transfers = 0;           ///< made per forward pass, all layers
  int64_t full_ring_rows = 0;                 ///< what every rank would receive in all if everybody got every key: (ranks - 1) x tokens x layers
  int64_t full_ring_tiles = 0;                ///< of a causal row without documents, all ranks together
};
ContextLoad load_of(const ContextPlan& plan, const Documents& whole, const ContextCosts& costs);
/// Largest over mean, 1 where all is 0.
double max_over_mean(std::span<const int64_t> values);

/// Least rows that all ranks together must receive in one layer without window under any plan within the tolerances, and the busiest one of them. A relaxation: it
/// may be out of reach.
struct ContextBound {
  double total = 0, busiest = 0;
};
ContextBound context_lower_bound(std::span<const int64_t> lengths, int64_t ranks, const ContextCosts& costs);

}  // namespace quire
