#include <algorithm>
#include <limits>
#include <numeric>

#include "ops/cpu/attention.h"
#include "runtime/rank.h"
#include "runtime/thread_pool.h"

namespace quire {
namespace {

std::span<const DocumentRun> sorted_runs(Workspace& workspace, std::span<const DocumentRun> runs) {
  DocumentRun* sorted = workspace.take<DocumentRun>(static_cast<int64_t>(runs.size()));
  DocumentRun* end = std::copy_if(runs.begin(), runs.end(), sorted, [](const DocumentRun& run) { return run.length > 0; });
  std::sort(sorted, end, [](const DocumentRun& a, const DocumentRun& b) {
    return a.start != b.start ? a.start < b.start : a.global < b.global;
  });
  return {sorted, end};
}

/// Moves the runs of document `start` from the front of `runs` to `pieces`.
std::span<const AttentionPiece> take_document(std::span<const DocumentRun>& runs, int32_t start, AttentionPiece*& pieces, int64_t& count) {
  AttentionPiece* first = pieces;
  count = 0;
  size_t i = 0;
  for (; i < runs.size() && runs[i].start == start; ++i) {
    *pieces++ = {runs[i].local, runs[i].global, runs[i].length, count};
    count += runs[i].length;
  }
  runs = runs.subspan(i);
  return {first, pieces};
}

}  // namespace

AttentionPlan plan_attention(Workspace& workspace, std::span<const DocumentRun> query_runs, std::span<const DocumentRun> key_runs,
                             int64_t tile_keys) {
  std::span<const DocumentRun> queries = sorted_runs(workspace, query_runs), keys = sorted_runs(workspace, key_runs);
  AttentionPiece* pieces = workspace.take<AttentionPiece>(static_cast<int64_t>(queries.size() + keys.size()));
  AttentionDocument* documents = workspace.take<AttentionDocument>(static_cast<int64_t>(queries.size()));
  AttentionPlan plan;
  int64_t count = 0;
  while (!queries.empty()) {
    AttentionDocument document{};
    document.start = queries.front().start;
    document.queries = take_document(queries, document.start, pieces, document.query_count);
    while (!keys.empty() && keys.front().start < document.start) keys = keys.subspan(1);
    document.keys = take_document(keys, document.start, pieces, document.key_count);
    documents[count++] = document;
  }
  plan.documents = {documents, static_cast<size_t>(count)};
  std::stable_sort(plan.documents.begin(), plan.documents.end(), [](const AttentionDocument& a, const AttentionDocument& b) {
    return a.query_count * (a.key_count + 1) > b.query_count * (b.key_count + 1);
  });
  for (AttentionDocument& document : plan.documents) {
    document.part_queries = std::max(attention_least_part, chunks_of(document.query_count, attention_parts));
    document.partial_keys = plan.partial_keys;
    plan.partial_keys += (document.parts() - 1) * document.key_count;
    document.shared_tile = -1;
    if (document.key_count > attention_shared_keys && document.query_count > attention_batch_queries) {
      document.shared_tile = plan.shared_tiles;
      plan.shared_tiles += chunks_of(document.key_count, tile_keys);
    } else {
      plan.longest_private = std::max(plan.longest_private, document.key_count);
    }
  }
  return plan;
}

namespace {

/// Calls `add(first, count)` for runs of consecutive documents: small ones together until they make a fair unit.
template <class Add>
void batches(const AttentionPlan& plan, const Add& add) {
  const int32_t count = static_cast<int32_t>(plan.documents.size());
  for (int32_t first = 0; first < count;) {
    int64_t queries = plan.documents[first].query_count;
    int32_t last = first + 1;
    while (last < count && plan.documents[first].shared_tile < 0 && queries + plan.documents[last].query_count <= attention_batch_queries)
      queries += plan.documents[last++].query_count;
    add(first, last - first);
    first = last;
  }
}

}  // namespace

std::span<const AttentionUnit> forward_units(Workspace& workspace, const AttentionPlan& plan, int64_t heads, int64_t kv_heads) {
  const int64_t each = std::max(attention_batch_queries, attention_unit_rows / (heads / kv_heads));
  int64_t bound = 0;
  for (const AttentionDocument& document : plan.documents) bound += kv_heads * chunks_of(document.query_count, each);
  AttentionUnit* units = workspace.take<AttentionUnit>(bound);
  int64_t count = 0;
  batches(plan, [&](int32_t first, int32_t number) {
    const AttentionDocument& document = plan.documents[first];
    if (document.shared_tile < 0) {
      for (int64_t kv = 0; kv < kv_heads; ++kv) units[count++] = {first, number, kv, 0, std::numeric_limits<int64_t>::max()};
      return;
    }
    // Later queries read more keys: they come first, so that the last units to start are small.
    for (int64_t chunk = chunks_of(document.query_count, each) - 1; chunk >= 0; --chunk)
      for (int64_t kv = 0; kv < kv_heads; ++kv) units[count++] = {first, 1, kv, chunk * each, (chunk + 1) * each};
  });
  return {units, static_cast<size_t>(count)};
}

std::span<const AttentionUnit> backward_units(Workspace& workspace, const AttentionPlan& plan, int64_t kv_heads) {
  int64_t bound = 0;
  for (const AttentionDocument& document : plan.documents) bound += kv_heads * document.parts();
  AttentionUnit* units = workspace.take<AttentionUnit>(bound);
  int64_t count = 0;
  batches(plan, [&](int32_t first, int32_t number) {
    const AttentionDocument& document = plan.documents[first];
    for (int64_t part = document.parts() - 1; part >= 0; --part)
      for (int64_t kv = 0; kv < kv_heads; ++kv) units[count++] = {first, number, kv, part * document.part_queries, (part + 1) * document.part_queries};
  });
  return {units, static_cast<size_t>(count)};
}

int64_t keys_before(const AttentionDocument& document, int64_t global) {
  const auto after = std::partition_point(document.keys.begin(), document.keys.end(),
                                          [&](const AttentionPiece& piece) { return piece.global < global; });
  if (after == document.keys.begin()) return 0;
  const AttentionPiece& piece = *(after - 1);
  return piece.offset + std::min<int64_t>(global - piece.global, piece.length);
}

void locate(std::span<const AttentionPiece> pieces, int64_t begin, int64_t count, int32_t* local, int32_t* global) {
  auto piece = std::partition_point(pieces.begin(), pieces.end(),
                                    [&](const AttentionPiece& p) { return p.offset + p.length <= begin; });
  for (int64_t done = 0; done < count; ++piece) {
    const int64_t from = begin + done - piece->offset, here = std::min(count - done, piece->length - from);
    for (int64_t i = 0; i < here; ++i) {
      local[done + i] = static_cast<int32_t>(piece->local + from + i);
      global[done + i] = static_cast<int32_t>(piece->global + from + i);
    }
    done += here;
  }
}

KeyRange key_range(const AttentionDocument& document, int64_t begin, int64_t end, int64_t window) {
  int32_t local, first, last;
  locate(document.queries, begin, 1, &local, &first);
  locate(document.queries, end - 1, 1, &local, &last);
  return {window > 0 ? keys_before(document, first - window + 1) : 0, keys_before(document, int64_t{last} + 1)};
}

int64_t AttentionRows::pairs(int64_t begin, int64_t end) const {
  int64_t sum = 0;
  for (int64_t row = 0; row < count; row += heads) sum += std::max<int64_t>(0, std::min(last[row], end) - std::max(first[row], begin));
  return sum * heads;
}

namespace {

/// keys_before for arguments that follow each other closely: walks along the pieces.
class KeyCursor {
 public:
  KeyCursor(std::span<const AttentionPiece> pieces, int64_t global) : first_(pieces.data()), end_(first_ + pieces.size()) {
    next_ = std::partition_point(first_, end_, [&](const AttentionPiece& piece) { return piece.global < global; });
  }
  int64_t before(int64_t global) {
    while (next_ != end_ && next_->global < global) ++next_;
    while (next_ != first_ && next_[-1].global >= global) --next_;
    if (next_ == first_) return 0;
    const AttentionPiece& piece = next_[-1];
    return piece.offset + std::min<int64_t>(global - piece.global, piece.length);
  }

 private:
  const AttentionPiece *first_, *end_, *next_;
};

}  // namespace

AttentionRows attention_rows(const AttentionDocument& document, int64_t begin, int64_t count, int64_t head, int64_t heads, int64_t window) {
  AttentionRows rows;
  rows.count = count * heads;
  rows.heads = heads;
  int32_t local[attention_tile_rows], global[attention_tile_rows];
  locate(document.queries, begin, count, local, global);
  KeyCursor first(document.keys, global[0] - window + 1), last(document.keys, global[0] + int64_t{1});
  // The ends of ranges ascend, unless runs overlap (boundaries that another process got wrong): so unions are taken.
  rows.all = {std::numeric_limits<int64_t>::max(), 0};
  std::fill_n(rows.groups, attention_row_groups, rows.all);
  const auto add = [](KeyRange& range, int64_t from, int64_t to) { range = {std::min(range.first, from), std::max(range.last, to)}; };
  for (int64_t query = 0, row = 0; query < count; ++query) {
    const int64_t from = window > 0 ? first.before(global[query] - window + 1) : 0, to = last.before(global[query] + int64_t{1});
    if (from < to) {
      add(rows.all, from, to);
      for (int64_t group = row / attention_group_rows; group <= (row + heads - 1) / attention_group_rows; ++group) add(rows.groups[group], from, to);
    }
    for (int64_t h = 0; h < heads; ++h, ++row) {
      rows.local[row] = local[query];
      rows.head[row] = static_cast<int32_t>(head + h);
      rows.first[row] = from;
      rows.last[row] = to;
    }
  }
  return rows;
}

int64_t tile_queries(int64_t count, int64_t heads) {
  const int64_t whole = attention_group_rows / std::gcd(attention_group_rows, heads), most = std::max<int64_t>(1, attention_tile_rows / heads / whole) * whole;
  const int64_t even = chunks_of(count, chunks_of(count, most));
  return chunks_of(even, whole) * whole;
}

}  // namespace quire
