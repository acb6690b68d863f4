#include "parallel/context_traffic.h"

#include <algorithm>
#include <numeric>

#include "parallel/boundary_record.h"

namespace quire {

int64_t ContextModel::layers() const {
  int64_t sum = 0;
  for (const LayerWindow& window : costs.windows) sum += window.layers;
  return sum;
}

int64_t ContextModel::row_bytes() const { return 2 * kv_heads * head_dim * static_cast<int64_t>(size_of(dtype)); }

int64_t ContextModel::row_gradient_bytes() const { return 2 * kv_heads * head_dim * static_cast<int64_t>(size_of(accumulator_of(dtype))); }

bool heads_fit(int64_t heads, int64_t kv_heads, int64_t ranks) { return heads % ranks == 0 && (kv_heads % ranks == 0 || ranks % kv_heads == 0); }

bool can_exchange(ContextLayout layout, ContextExchange exchange, int64_t heads, int64_t kv_heads, int64_t ranks) {
  return exchange != ContextExchange::heads || (layout == ContextLayout::contiguous && heads_fit(heads, kv_heads, ranks));
}

namespace {

/// Pairs (i, j) with 0 <= i < queries, 0 <= j < keys and j <= i.
int64_t corner(int64_t queries, int64_t keys) {
  queries = std::max<int64_t>(queries, 0);
  const int64_t both = std::min(queries, keys);
  return both * (both + 1) / 2 + (queries - both) * keys;
}

/// The same for i and j within ranges, keys counted from 0.
int64_t below_diagonal(int64_t query_begin, int64_t query_end, int64_t key_begin, int64_t key_end) {
  return corner(query_end, key_end) - corner(query_begin, key_end) - corner(query_end, key_begin) + corner(query_begin, key_begin);
}

/// A maximal piece of one document within one range.
struct Piece {
  int32_t document;  ///< its first token
  TokenRange range;
};

std::vector<Piece> pieces_of(const std::vector<TokenRange>& ranges, const std::vector<TokenRange>& documents) {
  std::vector<Piece> pieces;
  for (const TokenRange& range : ranges) {
    auto document = std::ranges::upper_bound(documents, range.begin, {}, &TokenRange::end);
    for (; document != documents.end() && document->begin < range.end; ++document)
      pieces.push_back({document->begin, {std::max(range.begin, document->begin), std::min(range.end, document->end)}});
  }
  return pieces;
}

/// Both ascend by document.
int64_t pairs_of(const std::vector<Piece>& queries, const std::vector<Piece>& keys, int64_t window) {
  int64_t pairs = 0;
  size_t first = 0;
  for (size_t k = 0; k < keys.size(); ++k) {
    while (first < queries.size() && queries[first].document < keys[k].document) ++first;
    for (size_t q = first; q < queries.size() && queries[q].document == keys[k].document; ++q) pairs += pairs_between(queries[q].range, keys[k].range, window);
  }
  return pairs;
}

/// Words of a record of these rows: as boundary_record_shape counts them.
int64_t record_words(const std::vector<TokenRange>& rows) {
  const bool first_ones = rows.size() == 1 && rows.front().begin == 0;
  return boundary_header_words + tokens_of(rows) * (first_ones ? 1 : 2);
}

std::vector<TokenRange> documents_in(const Documents& whole) {
  std::vector<TokenRange> documents;
  for (const DocumentRun& run : whole.runs()) documents.push_back({run.global, run.global + run.length});
  return documents;
}

std::vector<std::vector<ContextStepLoad>> loads(const ContextPlan& plan, const std::vector<TokenRange>& documents, int64_t window) {
  const auto ranks = static_cast<size_t>(plan.ranks);
  std::vector<std::vector<Piece>> own;
  for (const auto& shard : plan.shards) own.push_back(pieces_of(shard, documents));
  if (plan.exchange == ContextExchange::heads) {
    int64_t pairs = 0;
    for (const TokenRange& document : documents) pairs += pairs_between(document, document, window);
    std::vector<std::vector<ContextStepLoad>> result(ranks, std::vector<ContextStepLoad>(1));
    for (size_t r = 0; r < ranks; ++r) result[r][0].pairs = pairs / plan.ranks;
    return result;
  }
  const KeyExchange& exchange = plan.for_window(window);
  std::vector<std::vector<ContextStepLoad>> result(ranks, std::vector<ContextStepLoad>(1 + exchange.steps.size()));
  for (size_t r = 0; r < ranks; ++r) result[r][0].pairs = pairs_of(own[r], own[r], window);
  for (size_t s = 0; s < exchange.steps.size(); ++s)
    for (const KeyTransfer& transfer : exchange.steps[s].transfers) {
      const int64_t rows = tokens_of(transfer.rows), words = record_words(transfer.rows);
      ContextStepLoad& to = result[static_cast<size_t>(transfer.to)][1 + s];
      ContextStepLoad& from = result[static_cast<size_t>(transfer.from)][1 + s];
      to.pairs += pairs_of(own[static_cast<size_t>(transfer.to)], pieces_of(transfer.rows, documents), window);
      to.received_rows += rows;
      to.received_words += words;
      ++to.received_messages;
      from.sent_rows += rows;
      from.sent_words += words;
      ++from.sent_messages;
    }
  return result;
}

/// Queries, keys and values go to the ranks of their heads, with the boundaries of their tokens, and outputs come back. In backward the gradients of outputs go
/// and those of queries, keys and values come back, in the accumulator type.
void add_head_bytes(const ContextPlan& plan, const ContextModel& model, ContextBytes& bytes) {
  const int64_t others = plan.ranks - 1, layers = model.layers(), forwards = model.recomputes ? 2 : 1;
  const int64_t size = static_cast<int64_t>(size_of(model.dtype)), wide = static_cast<int64_t>(size_of(accumulator_of(model.dtype)));
  const int64_t queries = model.heads / plan.ranks * model.head_dim, keys = std::max<int64_t>(model.kv_heads / plan.ranks, 1) * model.head_dim;
  const auto record = [&](size_t rank) { return tokens_of(plan.shards[rank]) > 0 ? 4 * record_words(plan.shards[rank]) : 0; };
  int64_t records = 0;
  for (size_t r = 0; r < plan.shards.size(); ++r) records += record(r);
  for (size_t r = 0; r < plan.shards.size(); ++r) {
    const int64_t own = tokens_of(plan.shards[r]), foreign = plan.tokens - own;
    const int64_t there = (queries + 2 * keys) * size, back = queries * size, gradients = (queries + 2 * keys) * wide;
    const int64_t in = layers * (foreign * there + records - record(r) + own * others * back);
    const int64_t out = layers * (others * (own * there + record(r)) + foreign * back);
    bytes.received_forward[r] += in;
    bytes.sent_forward[r] += out;
    bytes.received_backward[r] += (forwards - 1) * in + layers * (foreign * back + own * others * gradients);
    bytes.sent_backward[r] += (forwards - 1) * out + layers * (own * others * back + foreign * gradients);
    if (own > 0) bytes.messages += layers * others * (3 * forwards + 2);
  }
}

}  // namespace

int64_t pairs_between(TokenRange queries, TokenRange keys, int64_t window) {
  const int64_t origin = std::min(queries.begin, keys.begin);
  const int64_t a = queries.begin - origin, b = queries.end - origin, c = keys.begin - origin, d = keys.end - origin;
  if (a >= b || c >= d) return 0;
  return below_diagonal(a, b, c, d) - (window > 0 ? below_diagonal(a - window, b - window, c, d) : 0);
}

std::vector<std::vector<ContextStepLoad>> step_loads(const ContextPlan& plan, const Documents& whole, int64_t window) {
  return loads(plan, documents_in(whole), window);
}

int64_t ContextBytes::total() const {
  return std::accumulate(received_forward.begin(), received_forward.end(), std::accumulate(received_backward.begin(), received_backward.end(), int64_t{0}));
}

ContextBytes bytes_of(const ContextPlan& plan, const Documents&, const ContextModel& model) {
  ContextBytes bytes;
  for (std::vector<int64_t>* values : {&bytes.received_forward, &bytes.received_backward, &bytes.sent_forward, &bytes.sent_backward})
    values->assign(static_cast<size_t>(plan.ranks), 0);
  if (plan.exchange == ContextExchange::heads) {
    add_head_bytes(plan, model, bytes);
    return bytes;
  }
  // A ring's keys travel again in backward; what is gathered is kept, unless attention is made again.
  const int64_t again = (plan.exchange == ContextExchange::ring ? 1 : 0) + (model.recomputes ? 1 : 0);
  for (const LayerWindow& layer : model.costs.windows) {
    for (const ContextStep& step : plan.for_window(layer.window).steps)
      for (const KeyTransfer& transfer : step.transfers) {
        const auto to = static_cast<size_t>(transfer.to), from = static_cast<size_t>(transfer.from);
        const int64_t rows = tokens_of(transfer.rows), forward = layer.layers * (rows * model.row_bytes() + 4 * record_words(transfer.rows));
        const int64_t gradients = layer.layers * rows * model.row_gradient_bytes();
        bytes.received_forward[to] += forward;
        bytes.sent_forward[from] += forward;
        bytes.received_backward[to] += again * forward;
        bytes.sent_backward[from] += again * forward;
        bytes.received_backward[from] += gradients;
        bytes.sent_backward[to] += gradients;
        bytes.messages += layer.layers * (2 * (1 + again) + 1);
      }
  }
  return bytes;
}

}  // namespace quire
