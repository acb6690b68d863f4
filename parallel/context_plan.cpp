#include "parallel/context_plan.h"

#include <algorithm>
#include <limits>
#include <string>

#include "parallel/context_balance.h"
#include "parallel/context_pieces.h"
#include "runtime/digest.h"
#include "runtime/error.h"

namespace quire {
namespace {

constexpr std::string_view layout_names[] = {"contiguous", "zigzag", "balanced"};
constexpr std::string_view exchange_names[] = {"ring", "gather", "heads"};

template <class E>
E named(std::string_view what, std::span<const std::string_view> names, std::string_view name) {
  std::vector<std::string> known(names.begin(), names.end());
  std::string allowed;
  for (size_t i = 0; i < known.size(); ++i) {
    if (known[i] == name) return static_cast<E>(i);
    allowed += (i ? ", " : "") + known[i];
  }
  const std::string near = nearest(name, known);
  fail<ConfigError>("context_plan", "unknown {} '{}'; allowed are {}{}", what, name, allowed, near.empty() ? "" : "; did you mean '" + near + "'?");
}

void digest_ranges(Digest& digest, std::span<const TokenRange> ranges) {
  digest.update_value(static_cast<int64_t>(ranges.size()));
  for (const TokenRange& range : ranges) {
    digest.update_value(range.begin);
    digest.update_value(range.end);
  }
}

}  // namespace

int64_t tokens_of(std::span<const TokenRange> ranges) {
  int64_t sum = 0;
  for (const TokenRange& range : ranges) sum += range.tokens();
  return sum;
}

ContextLayout context_layout_from(std::string_view name) { return named<ContextLayout>("layout of a context group", layout_names, name); }
ContextExchange context_exchange_from(std::string_view name) { return named<ContextExchange>("exchange of a context group", exchange_names, name); }
std::string_view name_of(ContextLayout layout) { return layout_names[static_cast<size_t>(layout)]; }
std::string_view name_of(ContextExchange exchange) { return exchange_names[static_cast<size_t>(exchange)]; }

const KeyExchange& ContextPlan::for_window(int64_t window) const {
  for (const KeyExchange& each : exchanges)
    if (each.window == window) return each;
  fail<StateError>("context_plan", "the plan has no exchange for a window of {} tokens; windows of all layers must be named in its costs", window);
}

DocumentTable::DocumentTable(std::span<const int64_t> all_lengths) {
  for (size_t i = 0; i < all_lengths.size(); ++i) {
    const int64_t length = all_lengths[i];
    if (length < 0) fail<DataError>("context_plan", "document {} has {} tokens; lengths are at least 0", i, length);
    if (length == 0) continue;
    if (length > std::numeric_limits<int32_t>::max() - tokens)
      fail<DataError>("context_plan", "a microbatch holds fewer than 2^31 tokens, and document {} ends beyond that", i);
    lengths.push_back(length);
    starts.push_back(tokens);
    tokens += length;
  }
}

void append_range(std::vector<TokenRange>& ranges, int64_t begin, int64_t end) {
  if (begin >= end) return;
  if (!ranges.empty() && ranges.back().end == begin) ranges.back().end = static_cast<int32_t>(end);
  else ranges.push_back({static_cast<int32_t>(begin), static_cast<int32_t>(end)});
}

ShardList shards_of(const DocumentTable& documents, const PieceLists& pieces) {
  ShardList shards(pieces.size());
  std::vector<TokenRange> ranges;
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    ranges.clear();
    for (const DocumentPiece& piece : pieces[rank]) {
      const int64_t start = documents.starts[piece.document];
      if (piece.tokens() > 0) ranges.push_back({static_cast<int32_t>(start + piece.begin), static_cast<int32_t>(start + piece.end)});
    }
    std::sort(ranges.begin(), ranges.end(), [](const TokenRange& a, const TokenRange& b) { return a.begin < b.begin; });
    for (const TokenRange& range : ranges) append_range(shards[rank], range.begin, range.end);
  }
  return shards;
}

PieceLists pieces_of(const DocumentTable& documents, const ShardList& shards) {
  PieceLists pieces(shards.size());
  for (size_t rank = 0; rank < shards.size(); ++rank)
    for (const TokenRange& range : shards[rank]) {
      auto document = static_cast<size_t>(std::upper_bound(documents.starts.begin(), documents.starts.end(), range.begin) - documents.starts.begin()) - 1;
      for (; document < documents.size() && documents.starts[document] < range.end; ++document) {
        const int64_t start = documents.starts[document];
        pieces[rank].push_back({document, std::max<int64_t>(range.begin - start, 0), std::min(range.end - start, documents.lengths[document])});
      }
    }
  return pieces;
}

ShardList contiguous_shards(int64_t tokens, int64_t ranks) {
  ShardList shards(static_cast<size_t>(ranks));
  for (int64_t rank = 0; rank < ranks; ++rank) append_range(shards[static_cast<size_t>(rank)], tokens * rank / ranks, tokens * (rank + 1) / ranks);
  return shards;
}

ShardList zigzag_shards(int64_t tokens, int64_t ranks) {
  ShardList shards(static_cast<size_t>(ranks));
  const int64_t parts = 2 * ranks;
  for (int64_t part = 0; part < parts; ++part)
    append_range(shards[static_cast<size_t>(std::min(part, parts - 1 - part))], tokens * part / parts, tokens * (part + 1) / parts);
  return shards;
}

void check_context_request(int64_t ranks, ContextLayout layout, ContextExchange exchange, const ContextCosts& costs) {
  if (ranks < 1 || ranks > std::numeric_limits<int32_t>::max())
    fail<ConfigError>("context_plan", "{} ranks can not share a microbatch; at least 1 is needed", ranks);
  if (exchange == ContextExchange::heads && layout != ContextLayout::contiguous)
    fail<ConfigError>("context_plan", "exchange 'heads' goes with layout 'contiguous' only, found '{}'; take that one, or another exchange", name_of(layout));
  for (const LayerWindow& each : costs.windows)
    if (each.window < 0 || each.layers < 0)
      fail<ConfigError>("context_plan", "found {} layers with a window of {} tokens; both are at least 0", each.layers, each.window);
  if (costs.token_cost < 0 || costs.tile < 1 || costs.cost_tolerance < 0 || costs.token_tolerance < 0)
    fail<ConfigError>("context_plan", "costs of a token ({}) and tolerances ({} and {} thousandths) are at least 0, a tile ({}) at least 1", costs.token_cost,
                      costs.cost_tolerance, costs.token_tolerance, costs.tile);
}

int64_t token_slack(int64_t tokens, int64_t ranks, const ContextCosts& costs) {
  const int64_t shard = tokens / ranks;
  return std::max(shard * costs.token_tolerance / 1000, std::min(costs.tile, shard / 16));
}

uint64_t digest_of(const ContextPlan& plan, const DocumentTable& documents) {
  Digest digest;
  for (const int64_t value : {static_cast<int64_t>(plan.layout), static_cast<int64_t>(plan.exchange), plan.ranks, plan.tokens}) digest.update_value(value);
  digest.update_value(static_cast<int64_t>(documents.size()));
  digest.update(std::as_bytes(std::span(documents.lengths)));
  digest.update_value(static_cast<int64_t>(plan.shards.size()));
  for (const std::vector<TokenRange>& shard : plan.shards) digest_ranges(digest, shard);
  digest.update_value(static_cast<int64_t>(plan.exchanges.size()));
  for (const KeyExchange& exchange : plan.exchanges) {
    digest.update_value(exchange.window);
    digest.update_value(static_cast<int64_t>(exchange.steps.size()));
    for (const ContextStep& step : exchange.steps) {
      digest.update_value(static_cast<int64_t>(step.transfers.size()));
      for (const KeyTransfer& transfer : step.transfers) {
        digest.update_value(transfer.from);
        digest.update_value(transfer.to);
        digest_ranges(digest, transfer.rows);
      }
    }
  }
  return digest.value();
}

std::vector<std::vector<TokenRange>> place_tokens(std::span<const int64_t> lengths, int64_t ranks, ContextLayout layout, const ContextCosts& costs) {
  check_context_request(ranks, layout, ContextExchange::ring, costs);
  const DocumentTable documents(lengths);
  switch (layout) {
    case ContextLayout::contiguous: return contiguous_shards(documents.tokens, ranks);
    case ContextLayout::zigzag: return zigzag_shards(documents.tokens, ranks);
    case ContextLayout::balanced: break;
  }
  return balanced_shards(documents, ranks, costs);
}

ContextPlan make_context_plan(std::span<const int64_t> lengths, int64_t ranks, ContextLayout layout, ContextExchange exchange, const ContextCosts& costs) {
  check_context_request(ranks, layout, exchange, costs);
  const DocumentTable documents(lengths);
  ContextPlan plan;
  plan.layout = layout;
  plan.exchange = exchange;
  plan.ranks = ranks;
  plan.tokens = documents.tokens;
  plan.shards = place_tokens(lengths, ranks, layout, costs);
  if (exchange != ContextExchange::heads)
    for (size_t i = 0; i < costs.windows.size(); ++i) {
      const int64_t window = costs.windows[i].window;
      const auto same = [&](const KeyExchange& each) { return each.window == window; };
      if (std::none_of(plan.exchanges.begin(), plan.exchanges.end(), same))
        plan.exchanges.push_back(plan_key_exchange(documents, plan.shards, exchange, window));
    }
  plan.digest = digest_of(plan, documents);
  return plan;
}

Documents documents_of(const Documents& whole, std::span<const TokenRange> shard) {
  std::vector<int32_t> indices, starts;
  indices.reserve(static_cast<size_t>(tokens_of(shard)));
  starts.reserve(indices.capacity());
  for (const TokenRange& range : shard) {
    if (range.begin < 0 || range.begin > range.end || range.end > whole.tokens())
      fail<DataError>("context_plan", "a shard holds tokens {} to {} of a microbatch of {}", range.begin, range.end, whole.tokens());
    for (int32_t i = range.begin; i < range.end; ++i) indices.push_back(i);
    starts.insert(starts.end(), whole.starts().begin() + range.begin, whole.starts().begin() + range.end);
  }
  return Documents::shard(std::move(indices), std::move(starts));
}

double max_over_mean(std::span<const int64_t> values) {
  double sum = 0;
  for (const int64_t value : values) sum += static_cast<double>(value);
  if (sum == 0) return 1;
  return static_cast<double>(*std::max_element(values.begin(), values.end())) * static_cast<double>(values.size()) / sum;
}

}  // namespace quire
