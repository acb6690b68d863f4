#include <algorithm>
#include <numeric>
#include <optional>

#include "parallel/context_balance.h"

namespace quire {
namespace {

constexpr size_t cold_ranks = 8;  // that a dear rank looks at for a swap

class Repair {
 public:
  Repair(const BalanceTask& task, const BalanceVerdict& verdict, PieceLists& pieces)
      : task_(task), pieces_(pieces), tokens_(verdict.tokens), cost_(verdict.cost) {}

  void run(int64_t rounds) {
    for (int64_t round = 0; round < rounds; ++round) {
      hot_ = static_cast<size_t>(std::max_element(cost_.begin(), cost_.end()) - cost_.begin());
      if (cost_[hot_] <= task_.cost_cap) return;
      find_cold();
      if (cold_.empty() || (!swap_documents() && !swap_tail())) return;
    }
  }

 private:
  struct Swap {
    size_t rank = 0, mine = 0, theirs = 0;  // numbers of the pieces in the lists of the dear rank and of `rank`
    int64_t amount = 0;                     // cost that moves, or tokens
  };

  void find_cold() {
    cold_.clear();
    for (size_t rank = 0; rank < pieces_.size(); ++rank)
      if (rank != hot_) cold_.push_back(rank);
    std::stable_sort(cold_.begin(), cold_.end(), [&](size_t a, size_t b) { return cost_[a] < cost_[b]; });
    if (cold_.size() > cold_ranks) cold_.resize(cold_ranks);
  }

  /// A whole document for a shorter whole one of a cheap rank, so that most cost moves and neither leaves its limits.
  bool swap_documents() {
    Swap best;
    for (const size_t rank : cold_) best_swap_with(rank, best);
    if (best.amount == 0) return false;
    DocumentPiece &mine = pieces_[hot_][best.mine], &theirs = pieces_[best.rank][best.theirs];
    const int64_t fewer = mine.tokens() - theirs.tokens();
    std::swap(mine, theirs);
    move(best.rank, fewer, best.amount);
    return true;
  }

  void best_swap_with(size_t rank, Swap& best) {
    const int64_t want = std::min(cost_[hot_] - task_.mean_cost, task_.cost_cap - cost_[rank]);
    theirs_.clear();
    for (size_t j = 0; j < pieces_[rank].size(); ++j)
      if (task_.whole(pieces_[rank][j])) theirs_.push_back({pieces_[rank][j].tokens(), j});
    std::sort(theirs_.begin(), theirs_.end());
    const int64_t fewer = std::min(tokens_[hot_] - task_.least_tokens, task_.most_tokens - tokens_[rank]);  // tokens that may move
    for (size_t i = 0; i < pieces_[hot_].size(); ++i) {
      const DocumentPiece& mine = pieces_[hot_][i];
      if (!task_.whole(mine)) continue;
      const int64_t length = mine.tokens(), cost = task_.document_costs[mine.document];
      const auto fits = std::partition_point(theirs_.begin(), theirs_.end(), [&](const std::pair<int64_t, size_t>& each) {
        return each.first < length - fewer || cost - task_.costs.until(each.first) > want;
      });
      if (fits == theirs_.end() || fits->first >= length) continue;
      const int64_t gain = cost - task_.costs.until(fits->first);
      if (gain > best.amount) best = {rank, i, fits->second, gain};
    }
  }

  /// The tail of a piece for as many tokens from the beginning of one of the cheapest rank: the swap that touches the earliest positions.
  bool swap_tail() {
    const size_t rank = cold_.front();
    const int64_t want = std::min(cost_[hot_] - (task_.mean_cost + task_.cost_cap) / 2, (cost_[hot_] - cost_[rank]) / 2);
    std::optional<Swap> best;
    int64_t least = 0;
    for (const size_t j : heads_of(rank))
      for (size_t i = 0; i < pieces_[hot_].size(); ++i) {
        const DocumentPiece &mine = pieces_[hot_][i], &theirs = pieces_[rank][j];
        int64_t low = 1, high = std::min(mine.tokens(), theirs.tokens());
        if (high < 1 || moved(mine, theirs, high) < want / 10 * 9) continue;
        while (low < high) {
          const int64_t tokens = (low + high) / 2;
          if (moved(mine, theirs, tokens) >= want) high = tokens;
          else low = tokens + 1;
        }
        if (moved(mine, theirs, low) <= 0 || cost_[rank] + moved(mine, theirs, low) > task_.cost_cap) continue;
        if (const int64_t place = mine.end + theirs.begin + low; !best || place < least) {
          least = place;
          best = Swap{rank, i, j, low};
        }
      }
    if (!best) return false;
    DocumentPiece &mine = pieces_[hot_][best->mine], &theirs = pieces_[rank][best->theirs];
    const DocumentPiece tail{mine.document, mine.end - best->amount, mine.end}, head{theirs.document, theirs.begin, theirs.begin + best->amount};
    mine.end = tail.begin;
    theirs.begin = head.end;
    pieces_[rank].push_back(tail);
    pieces_[hot_].push_back(head);
    move(rank, 0, task_.costs.of(tail.begin, tail.end) - task_.costs.of(head.begin, head.end));
    return true;
  }

  /// Of the pieces that begin at one position the longest: it can give whatever the others can.
  std::vector<size_t> heads_of(size_t rank) const {
    std::vector<size_t> heads(pieces_[rank].size());
    std::iota(heads.begin(), heads.end(), size_t{0});
    const auto& mine = pieces_[rank];
    std::stable_sort(heads.begin(), heads.end(), [&](size_t a, size_t b) {
      return mine[a].begin != mine[b].begin ? mine[a].begin < mine[b].begin : mine[a].tokens() > mine[b].tokens();
    });
    heads.erase(std::unique(heads.begin(), heads.end(), [&](size_t a, size_t b) { return mine[a].begin == mine[b].begin; }), heads.end());
    return heads;
  }

  int64_t moved(const DocumentPiece& mine, const DocumentPiece& theirs, int64_t tokens) const {
    return task_.costs.of(mine.end - tokens, mine.end) - task_.costs.of(theirs.begin, theirs.begin + tokens);
  }

  void move(size_t rank, int64_t tokens, int64_t cost) {
    tokens_[hot_] -= tokens;
    tokens_[rank] += tokens;
    cost_[hot_] -= cost;
    cost_[rank] += cost;
  }

  const BalanceTask& task_;
  PieceLists& pieces_;
  std::vector<int64_t> tokens_, cost_;  // per rank
  size_t hot_ = 0;                      // the dearest rank
  std::vector<size_t> cold_;            // the cheapest ones, the very cheapest first
  std::vector<std::pair<int64_t, size_t>> theirs_;
};

}  // namespace

void repair_balance(const BalanceTask& task, const BalanceVerdict& verdict, PieceLists& pieces, int64_t rounds) {
  Repair(task, verdict, pieces).run(rounds);
}

}  // namespace quire
