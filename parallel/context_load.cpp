// What a plan comes to: pairs, rows and tiles of each rank, and the least that any plan could do with.
#include <algorithm>

#include "parallel/context_cost.h"
#include "parallel/context_pieces.h"

namespace quire {
namespace {

using Ranges = std::vector<TokenRange>;

int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The part of sorted ranges within [begin, end).
void clip(std::span<const TokenRange> ranges, int64_t begin, int64_t end, Ranges& out) {
  out.clear();
  auto range = std::partition_point(ranges.begin(), ranges.end(), [&](const TokenRange& each) { return each.end <= begin; });
  for (; range != ranges.end() && range->begin < end; ++range) append_range(out, std::max<int64_t>(range->begin, begin), std::min<int64_t>(range->end, end));
}

/// Those queries that read at least one of the keys. All of one document that ends at `end`.
void readers(const Ranges& queries, const Ranges& keys, int64_t end, int64_t window, Ranges& out) {
  out.clear();
  Ranges part;
  int64_t done = 0;
  for (const TokenRange& range : keys) {
    const int64_t last = window == 0 ? end : std::min(end, range.end + window - 1);
    clip(queries, std::max<int64_t>(done, range.begin), last, part);
    for (const TokenRange& each : part) append_range(out, each.begin, each.end);
    done = std::max(done, last);
  }
}

/// Places of global indices among those of ranges, laid end to end.
class Places {
 public:
  explicit Places(const Ranges& ranges) : ranges_(ranges), offsets_(1, 0) {
    for (const TokenRange& each : ranges) offsets_.push_back(offsets_.back() + each.tokens());
  }
  int64_t count() const { return offsets_.back(); }
  /// Indices of the ranges below this one.
  int64_t below(int64_t index) const {
    const auto ends_before = [&](const TokenRange& each) { return each.end <= index; };
    const auto i = static_cast<size_t>(std::partition_point(ranges_.begin(), ranges_.end(), ends_before) - ranges_.begin());
    return i == ranges_.size() ? count() : offsets_[i] + std::max<int64_t>(0, index - ranges_[i].begin);
  }
  int64_t index(int64_t place) const {
    const auto i = static_cast<size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), place) - offsets_.begin()) - 1;
    return ranges_[i].begin + place - offsets_[i];
  }

 private:
  const Ranges& ranges_;
  std::vector<int64_t> offsets_;
};

/// Tiles of a document's keys that its queries, taken a tile at a time, read any of: as ops/cpu/attention.h walks them.
int64_t visited_tiles(const Ranges& queries, const Ranges& keys, int64_t window, int64_t tile) {
  const Places rows(queries), columns(keys);
  int64_t visited = 0;
  for (int64_t row = 0; row < rows.count(); row += tile) {
    const int64_t first = rows.index(row), last = rows.index(std::min(row + tile, rows.count()) - 1);
    const int64_t begin = window == 0 ? 0 : columns.below(first - window + 1), end = columns.below(last + 1);
    if (begin < end) visited += ceiling(end, tile) - begin / tile;
  }
  return visited;
}

class LoadCounter {
 public:
  LoadCounter(const ContextPlan& plan, const DocumentTable& documents, const ContextCosts& costs) : plan_(plan), documents_(documents), costs_(costs) {
    for (std::vector<int64_t>* each : {&load_.tokens, &load_.pairs, &load_.cost, &load_.received, &load_.sent, &load_.tiles})
      each->assign(static_cast<size_t>(plan.ranks), 0);
  }

  ContextLoad run() {
    (void)TokenCosts(costs_, documents_.tokens);  // refuses what does not fit
    for (size_t rank = 0; rank < plan_.shards.size(); ++rank) load_.tokens[rank] = tokens_of(plan_.shards[rank]);
    for (const LayerWindow& each : costs_.windows) {
      const int64_t side = ceiling(documents_.tokens, costs_.tile);
      load_.full_ring_rows += (plan_.ranks - 1) * documents_.tokens * each.layers;
      load_.full_ring_tiles += side * (side + 1) / 2 * each.layers;
      if (plan_.exchange == ContextExchange::heads) add_heads(each);
      else add_layers(each);
    }
    for (size_t rank = 0; rank < load_.cost.size(); ++rank) load_.cost[rank] = load_.pairs[rank] + costs_.token_cost * load_.tokens[rank];
    return std::move(load_);
  }

 private:
  /// Heads are shared out: every rank has all documents whole, for its share of them.
  void add_heads(const LayerWindow& layers) {
    int64_t pairs = 0, tiles = 0, holders = 0;
    for (size_t d = 0; d < documents_.size(); ++d) {
      const Ranges all{{static_cast<int32_t>(documents_.starts[d]), static_cast<int32_t>(documents_.starts[d] + documents_.lengths[d])}};
      pairs += window_pairs(documents_.lengths[d], layers.window);
      tiles += visited_tiles(all, all, layers.window, costs_.tile);
    }
    const auto share = [&](int64_t sum, int64_t rank) {
      const __int128 total = static_cast<__int128>(sum) * layers.layers;
      return static_cast<int64_t>(total * (rank + 1) / plan_.ranks - total * rank / plan_.ranks);
    };
    for (int64_t rank = 0; rank < plan_.ranks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      load_.pairs[r] += share(pairs, rank);
      load_.tiles[r] += share(tiles, rank);
      load_.received[r] += (documents_.tokens - load_.tokens[r]) * layers.layers;
      load_.sent[r] += load_.tokens[r] * (plan_.ranks - 1) * layers.layers;
      holders += load_.tokens[r] > 0;
    }
    if (plan_.ranks > 1 && holders > 0) {
      load_.steps += 2 * layers.layers;
      load_.transfers += 2 * holders * (plan_.ranks - 1) * layers.layers;
    }
  }

  void add_layers(const LayerWindow& layers) {
    const KeyExchange& exchange = plan_.for_window(layers.window);
    for (size_t rank = 0; rank < plan_.shards.size(); ++rank) add_pairs(rank, layers);
    for (size_t rank = 0; rank < plan_.shards.size(); ++rank) add_tiles(rank, plan_.shards[rank], layers);
    load_.steps += static_cast<int64_t>(exchange.steps.size()) * layers.layers;
    for (const ContextStep& step : exchange.steps) {
      load_.transfers += static_cast<int64_t>(step.transfers.size()) * layers.layers;
      for (size_t i = 0; i < step.transfers.size();) {
        const auto to = static_cast<size_t>(step.transfers[i].to);
        Ranges keys;
        for (; i < step.transfers.size() && static_cast<size_t>(step.transfers[i].to) == to; ++i) {
          const KeyTransfer& transfer = step.transfers[i];
          const int64_t rows = tokens_of(transfer.rows) * layers.layers;
          load_.received[to] += rows;
          load_.sent[static_cast<size_t>(transfer.from)] += rows;
          keys.insert(keys.end(), transfer.rows.begin(), transfer.rows.end());
        }
        std::sort(keys.begin(), keys.end(), [](const TokenRange& a, const TokenRange& b) { return a.begin < b.begin; });
        add_tiles(to, keys, layers);
      }
    }
  }

  void add_pairs(size_t rank, const LayerWindow& layers) {
    each_document(plan_.shards[rank], [&](size_t, int64_t start, int64_t begin, int64_t end) {
      load_.pairs[rank] += (window_pairs(end - start, layers.window) - window_pairs(begin - start, layers.window)) * layers.layers;
    });
  }

  /// Of the rank's queries on the keys at hand in one step. Keys of a document are laid end to end in order, whoever sent them.
  void add_tiles(size_t rank, const Ranges& keys, const LayerWindow& layers) {
    Ranges own, at_hand, reading;
    size_t seen = documents_.size();
    each_document(keys, [&](size_t document, int64_t start, int64_t, int64_t) {
      if (document == seen) return;
      seen = document;
      const int64_t end = start + documents_.lengths[document];
      clip(plan_.shards[rank], start, end, own);
      clip(keys, start, end, at_hand);
      readers(own, at_hand, end, layers.window, reading);
      load_.tiles[rank] += visited_tiles(reading, at_hand, layers.window, costs_.tile) * layers.layers;
    });
  }

  /// Calls `visit(document, start, begin, end)` with the parts of ranges by document, in order.
  template <class Visit>
  void each_document(const Ranges& ranges, const Visit& visit) const {
    for (const TokenRange& range : ranges) {
      auto d = static_cast<size_t>(std::upper_bound(documents_.starts.begin(), documents_.starts.end(), range.begin) - documents_.starts.begin()) - 1;
      for (; d < documents_.size() && documents_.starts[d] < range.end; ++d) {
        const int64_t start = documents_.starts[d];
        visit(d, start, std::max<int64_t>(range.begin, start), std::min<int64_t>(range.end, start + documents_.lengths[d]));
      }
    }
  }

  const ContextPlan& plan_;
  const DocumentTable& documents_;
  const ContextCosts& costs_;
  ContextLoad load_;
};

}  // namespace

ContextLoad load_of(const ContextPlan& plan, const Documents& whole, const ContextCosts& costs) {
  std::vector<int64_t> lengths;
  for (const DocumentRun& run : whole.runs()) lengths.push_back(run.length);
  return LoadCounter(plan, DocumentTable(lengths), costs).run();
}

}  // namespace quire
