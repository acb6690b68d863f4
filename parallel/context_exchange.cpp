// Which keys go from whom to whom, given who holds which tokens.
#include <algorithm>

#include "parallel/context_pieces.h"

namespace quire {
namespace {

/// Tokens of one document (global indices) in the hands of one rank.
struct HeldRange {
  int64_t begin, end;
  int32_t rank;
};

struct Sending {
  int32_t shift;  ///< of the ring, 0 for gather
  int32_t to, from;
  int32_t begin, end;
};

std::vector<HeldRange> held_ranges(const ShardList& shards) {
  std::vector<HeldRange> held;
  for (size_t rank = 0; rank < shards.size(); ++rank)
    for (const TokenRange& range : shards[rank]) held.push_back({range.begin, range.end, static_cast<int32_t>(rank)});
  std::sort(held.begin(), held.end(), [](const HeldRange& a, const HeldRange& b) { return a.begin < b.begin; });
  return held;
}

/// Works through the documents that more than one rank holds.
class ExchangePlanner {
 public:
  ExchangePlanner(ContextExchange exchange, int64_t ranks, int64_t window) : exchange_(exchange), ranks_(ranks), window_(window) {}

  void add(const DocumentTable& documents, const std::vector<HeldRange>& held) {
    size_t first = 0;
    for (size_t d = 0; d < documents.size(); ++d) {
      const int64_t start = documents.starts[d], end = start + documents.lengths[d];
      while (first < held.size() && held[first].end <= start) ++first;
      here_.clear();
      for (size_t i = first; i < held.size() && held[i].begin < end; ++i)
        here_.push_back({std::max(held[i].begin, start), std::min(held[i].end, end), held[i].rank});
      if (here_.size() > 1) add_document();
    }
  }

  KeyExchange finish() {
    std::stable_sort(sendings_.begin(), sendings_.end(), [](const Sending& a, const Sending& b) {
      if (a.shift != b.shift) return a.shift < b.shift;
      return a.to != b.to ? a.to < b.to : a.from < b.from;
    });
    KeyExchange result;
    result.window = window_;
    int32_t shift = -1;
    for (const Sending& each : sendings_) {
      if (each.shift != shift) result.steps.emplace_back();
      shift = each.shift;
      std::vector<KeyTransfer>& transfers = result.steps.back().transfers;
      if (transfers.empty() || transfers.back().to != each.to || transfers.back().from != each.from) transfers.push_back({each.from, each.to, {}});
      append_range(transfers.back().rows, each.begin, each.end);
    }
    return result;
  }

 private:
  /// The ranges of each rank together, in ascending order of rank and index: what a rank reads is found in one walk over its own.
  void add_document() {
    by_rank_ = here_;
    std::stable_sort(by_rank_.begin(), by_rank_.end(), [](const HeldRange& a, const HeldRange& b) { return a.rank < b.rank; });
    for (size_t i = 0; i < by_rank_.size();) {
      const int32_t rank = by_rank_[i].rank;
      int64_t done = here_.front().begin;  // keys before it have been looked at
      for (; i < by_rank_.size() && by_rank_[i].rank == rank; ++i) {
        const int64_t begin = window_ == 0 ? done : std::max(done, by_rank_[i].begin - window_ + 1);
        receive(rank, begin, by_rank_[i].begin);
        done = by_rank_[i].end;
      }
    }
  }

  /// Rank `to` reads the keys [begin, end), none of which it holds.
  void receive(int32_t to, int64_t begin, int64_t end) {
    if (begin >= end) return;
    auto held = std::partition_point(here_.begin(), here_.end(), [&](const HeldRange& each) { return each.end <= begin; });
    for (; held != here_.end() && held->begin < end; ++held) {
      const auto shift = exchange_ == ContextExchange::ring ? static_cast<int32_t>((to - held->rank + ranks_) % ranks_) : 0;
      sendings_.push_back({shift, to, held->rank, static_cast<int32_t>(std::max(held->begin, begin)), static_cast<int32_t>(std::min(held->end, end))});
    }
  }

  ContextExchange exchange_;
  int64_t ranks_, window_;
  std::vector<HeldRange> here_, by_rank_;  // of the document at hand
  std::vector<Sending> sendings_;
};

}  // namespace

KeyExchange plan_key_exchange(const DocumentTable& documents, const ShardList& shards, ContextExchange exchange, int64_t window) {
  ExchangePlanner planner(exchange, static_cast<int64_t>(shards.size()), window);
  if (exchange != ContextExchange::heads) planner.add(documents, held_ranges(shards));
  return planner.finish();
}

KeyExchange plan_key_exchange(const Documents& whole, const std::vector<std::vector<TokenRange>>& shards, ContextExchange exchange, int64_t window) {
  std::vector<int64_t> lengths;
  for (const DocumentRun& run : whole.runs()) lengths.push_back(run.length);
  return plan_key_exchange(DocumentTable(lengths), shards, exchange, window);
}

}  // namespace quire
