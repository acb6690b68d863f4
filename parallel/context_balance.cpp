#include "parallel/context_balance.h"

#include <algorithm>
#include <numeric>

#include "parallel/context_peel.h"
#include "parallel/context_tails.h"

namespace quire {
namespace {

/// The tile, or a part of it where that is much of a shard or of the tail that balances it.
int64_t cut_unit(int64_t tile, int64_t shard, int64_t tail) {
  int64_t unit = tile;
  while (unit > 1 && (unit > shard / 16 || unit > tail / 4)) unit /= 2;
  return unit;
}

int64_t millionths_over(int64_t value, int64_t limit, int64_t whole) {
  if (value <= limit) return 0;
  return static_cast<int64_t>(std::max<__int128>(1, static_cast<__int128>(value - limit) * 1'000'000 / std::max<int64_t>(1, whole)));
}

/// Rows that each rank receives. The pieces of a document in order: what lies between two of a rank's is read from others, as far back as the window goes.
void count_received(const BalanceTask& task, const PieceLists& pieces, std::vector<int64_t>& received) {
  struct Held {
    size_t document;
    int64_t begin, end;
    size_t rank;
  };
  std::vector<Held> split;
  for (size_t rank = 0; rank < pieces.size(); ++rank)
    for (const DocumentPiece& piece : pieces[rank])
      if (piece.tokens() > 0 && !task.whole(piece)) split.push_back({piece.document, piece.begin, piece.end, rank});
  std::sort(split.begin(), split.end(), [](const Held& a, const Held& b) { return a.document != b.document ? a.document < b.document : a.begin < b.begin; });
  struct Last {
    size_t document = static_cast<size_t>(-1);
    int64_t end = 0;
  };
  std::vector<Last> last(pieces.size());  // of each rank
  for (const Held& each : split) {
    Last& before = last[each.rank];
    const int64_t gap = each.begin - (before.document == each.document ? before.end : 0);
    before = {each.document, each.end};
    for (const LayerWindow& layers : task.windows)
      received[each.rank] += layers.layers * (layers.window == 0 ? gap : std::min(gap, layers.window - 1));
  }
}

/// Keeps the best of what it is offered.
class Choice {
 public:
  explicit Choice(const BalanceTask& task) : task_(task) {}

  /// False once nothing can be better.
  bool offer(PieceLists pieces) {
    BalanceVerdict verdict = judge(task_, pieces);
    if (*std::max_element(verdict.cost.begin(), verdict.cost.end()) > task_.cost_cap) {
      repair_balance(task_, verdict, pieces, 2 * task_.ranks);
      verdict = judge(task_, pieces);
    }
    if (best_.empty() || verdict.score < score_) {
      best_ = std::move(pieces);
      score_ = verdict.score;
      within_ = verdict.violation == 0;
    }
    return score_ > 0;
  }
  bool within() const { return within_; }
  PieceLists take() { return std::move(best_); }

 private:
  const BalanceTask& task_;
  PieceLists best_;
  __int128 score_ = 0;
  bool within_ = false;
};

/// Whether some document can not be kept whole.
bool has_to_cut(const BalanceTask& task) {
  for (size_t d = 0; d < task.documents.size(); ++d)
    if (task.documents.lengths[d] > task.most_tokens || task.document_costs[d] > task.cost_cap) return true;
  return false;
}

/// Tails against heads, with short documents kept whole first: the more of them may be cut, the nearer ranks come to their limits.
/// Until the limits are met, or all the cheaper variants. False once nothing can be better.
bool offer_tails_and_heads(const BalanceTask& task, bool all, Choice& choice) {
  if (choice.within() && !all) return true;
  TailsAndHeads ways(task);
  for (const int64_t part : {2, 1, 4, 16, 64})
    for (const int64_t eager : {950, 500}) {
      if (choice.within() && (!all || part > 4)) return true;
      if (!choice.offer(ways.deal({eager, 20, task.shard / part, 2}))) return false;
    }
  return true;
}

/// Peel and fill in several variants, tails against heads where that is not enough, and more of them where a microbatch is small and a try
/// costs microseconds. False once nothing can be better.
bool offer_peeled(const BalanceTask& task, Choice& choice) {
  PeelAndFill peel(task);
  const auto documents = static_cast<int64_t>(task.documents.size());
  const int64_t restarts = std::min<int64_t>(4000 / (documents + 8 * task.ranks), 96);
  for (const int64_t eager : {500, 900, 0})
    for (const bool mix : {false, true})
      if (restarts > 0 || eager > 0)
        if (!choice.offer(peel.deal({eager, 0, mix, 0, 0}))) return false;
  const bool early = restarts > 0 && has_to_cut(task);
  if (early && !offer_tails_and_heads(task, restarts > 5, choice)) return false;
  for (int64_t k = 0; k < restarts; ++k) {
    const PeelVariant variant{k % 4 * 250, k % 3 == 2 ? 2 : 0, (k & 4) != 0, static_cast<uint64_t>(15 + 10 * (k % 3)), static_cast<uint64_t>(k) + 1};
    if (!choice.offer(peel.deal(variant))) return false;
  }
  for (const int fine : {1, 2, 3})
    if (!choice.within()) choice.offer(peel.deal({500, fine, false, 0, 0}));
  return early || offer_tails_and_heads(task, false, choice);
}

}  // namespace

BalanceTask::BalanceTask(const DocumentTable& all, int64_t rank_count, const ContextCosts& wanted)
    : documents(all), costs(wanted, all.tokens), windows(wanted.windows), ranks(rank_count), shard(all.tokens / rank_count),
      slack(token_slack(all.tokens, rank_count, wanted)) {
  for (const LayerWindow& each : windows) layers += each.layers;
  int64_t longest = 1;
  for (const int64_t length : all.lengths) {
    document_costs.push_back(costs.until(length));
    total_cost += document_costs.back();
    longest = std::max(longest, length);
  }
  least_tokens = std::max<int64_t>(0, shard - slack);
  most_tokens = (all.tokens + ranks - 1) / ranks + slack;
  mean_cost = total_cost / ranks;
  cost_cap = static_cast<int64_t>(static_cast<__int128>(total_cost) * (1000 + wanted.cost_tolerance) / (__int128{1000} * ranks));
  unit = cut_unit(wanted.tile, shard, mean_cost / std::max<int64_t>(1, costs.at(longest - 1)));
}

BalanceVerdict judge(const BalanceTask& task, const PieceLists& pieces) {
  BalanceVerdict verdict;
  verdict.tokens.assign(pieces.size(), 0);
  verdict.cost = verdict.received = verdict.tokens;
  for (size_t rank = 0; rank < pieces.size(); ++rank)
    for (const DocumentPiece& piece : pieces[rank]) {
      verdict.tokens[rank] += piece.tokens();
      verdict.cost[rank] += task.cost_of(piece);
    }
  count_received(task, pieces, verdict.received);
  const auto [fewest, most] = std::minmax_element(verdict.tokens.begin(), verdict.tokens.end());
  const int64_t dearest = *std::max_element(verdict.cost.begin(), verdict.cost.end());
  const int64_t busiest = *std::max_element(verdict.received.begin(), verdict.received.end());
  verdict.violation = millionths_over(*most, task.most_tokens, task.shard) + millionths_over(task.least_tokens, *fewest, task.shard) +
                      millionths_over(dearest, task.cost_cap, task.cost_cap);
  // A thousandth over a limit weighs as much as every token's keys received once more.
  const __int128 rows = static_cast<__int128>(task.documents.tokens) * std::max<int64_t>(1, task.layers);
  verdict.score = __int128{4} * std::accumulate(verdict.received.begin(), verdict.received.end(), int64_t{0}) + __int128{busiest} * task.ranks +
                  4 * rows * verdict.violation / 1000 + (verdict.violation > 0);
  return verdict;
}

ShardList balanced_shards(const DocumentTable& documents, int64_t ranks, const ContextCosts& costs) {
  if (ranks == 1 || documents.tokens == 0) return contiguous_shards(documents.tokens, ranks);
  const BalanceTask task(documents, ranks, costs);
  Choice choice(task);
  const auto offer = [&] {
    std::vector<size_t> order(documents.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (!choice.offer(DocumentRow(task, order).by_cost())) return;
    if (task.shard > 0 && !offer_peeled(task, choice)) return;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return documents.lengths[a] > documents.lengths[b]; });
    const DocumentRow longest_first(task, order);
    if (!choice.offer(longest_first.by_cost())) return;
    if (!choice.offer(longest_first.zigzag())) return;
    // A few long documents of similar length, and nothing cheap to fill up with.
    if (!choice.within()) choice.offer(zigzag_of_every_document(task));
  };
  offer();
  return shards_of(documents, choice.take());
}

}  // namespace quire
