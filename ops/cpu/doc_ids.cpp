// Document starts, ids, positions and tile ranges on the CPU. Starts and ids are scans (prefix maximum, prefix sum) over marks of where
// documents begin: each chunk is summarised, the summaries are combined in order, and each chunk is filled in from what came before it.
#include "ops/cpu/doc_ids.h"

#include "ops/cpu/elementwise.h"
#include "ops/kernels.h"
#include "runtime/rank.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/doc_ids.cpp"
#include "ops/cpu/targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

using Marks = hn::ScalableTag<int32_t>;
using Block = hn::CappedTag<int32_t, 4>;

/// Token i > 0 begins a document when token i - 1 is EOS.
struct AfterEos {
  const int32_t* tokens;
  int32_t eos;
  template <class D> HWY_INLINE hn::Mask<D> operator()(D d, int64_t i) const { return hn::Eq(hn::LoadU(d, tokens + i - 1), hn::Set(d, eos)); }
  bool at(int64_t i) const { return tokens[i - 1] == eos; }
};

/// Token i > 0 begins a document when its value (a start or an id) differs from that of token i - 1.
struct AtChange {
  const int32_t* values;
  template <class D> HWY_INLINE hn::Mask<D> operator()(D d, int64_t i) const { return hn::Ne(hn::LoadU(d, values + i - 1), hn::LoadU(d, values + i)); }
  bool at(int64_t i) const { return values[i - 1] != values[i]; }
};

/// Inclusive scan of the lanes of a block: lane l becomes the combination of lanes 0 to l (0 is neutral).
template <class V, class Combine>
HWY_INLINE V scanned(V v, Combine combine) {
#if HWY_TARGET != HWY_SCALAR  // which has a single lane
  const Block block;
  v = combine(v, hn::ShiftLeftLanes<1>(block, v));
  v = combine(v, hn::ShiftLeftLanes<2>(block, v));
#else
  (void)combine;
#endif
  return v;
}

/// The last token of [begin, end), begin > 0, that begins a document, or -1.
template <class Begins>
int32_t last_beginning(const Begins& begins, int64_t begin, int64_t end) {
  const Marks d;
  const int64_t lanes = lanes_of(d);
  while (end - begin >= lanes && hn::AllFalse(d, begins(d, end - lanes))) end -= lanes;
  while (end > begin && !begins.at(end - 1)) --end;
  return end > begin ? static_cast<int32_t>(end - 1) : -1;
}

/// starts[i] for i in [begin, end), begin > 0, where the document of token begin - 1 starts at `start`.
template <class Begins>
void fill_starts(const Begins& begins, int64_t begin, int64_t end, int32_t start, int32_t* starts) {
  const Marks d;
  const Block block;
  const int64_t lanes = lanes_of(d), block_lanes = lanes_of(block);
  const auto later = [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); };
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    hn::StoreU(hn::Set(d, start), d, starts + i);
    if (hn::AllFalse(d, begins(d, i))) continue;
    for (int64_t j = i; j < i + lanes; j += block_lanes) {
      const auto index = hn::Iota(block, static_cast<int32_t>(j));
      const auto own = hn::IfThenElseZero(begins(block, j), index);
      hn::StoreU(hn::Max(scanned(own, later), hn::Set(block, start)), block, starts + j);
      start = starts[j + block_lanes - 1];
    }
  }
  for (; i < end; ++i) starts[i] = start = begins.at(i) ? static_cast<int32_t>(i) : start;
}

template <class Begins>
int32_t count_beginnings(const Begins& begins, int64_t begin, int64_t end) {
  const Marks d;
  const int64_t lanes = lanes_of(d);
  int64_t count = 0, i = begin;
  for (; i + lanes <= end; i += lanes) count += static_cast<int64_t>(hn::CountTrue(d, begins(d, i)));
  for (; i < end; ++i) count += begins.at(i);
  return static_cast<int32_t>(count);
}

/// ids[i] for i in [begin, end), begin > 0, where token begin - 1 has the id `id`.
template <class Begins>
void fill_ids(const Begins& begins, int64_t begin, int64_t end, int32_t id, int32_t* ids) {
  const Marks d;
  const Block block;
  const int64_t lanes = lanes_of(d), block_lanes = lanes_of(block);
  const auto total = [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); };
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    hn::StoreU(hn::Set(d, id), d, ids + i);
    if (hn::AllFalse(d, begins(d, i))) continue;
    for (int64_t j = i; j < i + lanes; j += block_lanes) {
      const auto own = hn::IfThenElseZero(begins(block, j), hn::Set(block, 1));
      hn::StoreU(hn::Add(scanned(own, total), hn::Set(block, id)), block, ids + j);
      id = ids[j + block_lanes - 1];
    }
  }
  for (; i < end; ++i) ids[i] = id += begins.at(i);
}

int32_t last_after_eos(const StartsFromEosArgs& args, int64_t begin, int64_t end) {
  return last_beginning(AfterEos{args.tokens, args.eos}, begin, end);
}
void starts_after_eos(const StartsFromEosArgs& args, int64_t begin, int64_t end, int32_t start) {
  fill_starts(AfterEos{args.tokens, args.eos}, begin, end, start, args.starts);
}
int32_t last_at_change(const StartsFromIdsArgs& args, int64_t begin, int64_t end) {
  return last_beginning(AtChange{args.document_ids}, begin, end);
}
void starts_at_change(const StartsFromIdsArgs& args, int64_t begin, int64_t end, int32_t start) {
  fill_starts(AtChange{args.document_ids}, begin, end, start, args.starts);
}
int32_t documents_in(const DocumentIdsArgs& args, int64_t begin, int64_t end) {
  return count_beginnings(AtChange{args.starts}, begin, end);
}
void ids_at_change(const DocumentIdsArgs& args, int64_t begin, int64_t end, int32_t id) {
  fill_ids(AtChange{args.starts}, begin, end, id, args.document_ids);
}

void positions_range(const PositionsArgs& args, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) args.positions[i] = args.indices[i] - args.starts[i];
}

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace {

HWY_EXPORT(last_after_eos);
HWY_EXPORT(starts_after_eos);
HWY_EXPORT(last_at_change);
HWY_EXPORT(starts_at_change);
HWY_EXPORT(documents_in);
HWY_EXPORT(ids_at_change);
HWY_EXPORT(positions_range);

/// Fills output[0 .. tokens_count) chunk by chunk: summary(chunk) in parallel, combine(before, summary) in order, fill in parallel.
/// Token 0 begins a document and has the value 0.
template <class Args, class Combine>
void scan(Rank& rank, const Args& args, int32_t* output, int32_t (*summary)(const Args&, int64_t, int64_t),
          void (*fill)(const Args&, int64_t, int64_t, int32_t), Combine combine) {
  if (args.tokens_count == 0) return;
  output[0] = 0;
  const int64_t chunks = chunks_of(args.tokens_count, elements_per_task);
  const auto begin_of = [&](int64_t chunk) { return std::max<int64_t>(1, chunk * elements_per_task); };
  const auto end_of = [&](int64_t chunk) { return std::min(args.tokens_count, (chunk + 1) * elements_per_task); };
  Workspace workspace(rank.stack());
  int32_t* before = workspace.take<int32_t>(chunks + 1);
  before[0] = 0;
  rank.pool().parallel_for(chunks - 1, [&](int64_t chunk, int) { before[chunk + 1] = summary(args, begin_of(chunk), end_of(chunk)); });
  for (int64_t chunk = 1; chunk < chunks; ++chunk) before[chunk] = combine(before[chunk - 1], before[chunk]);
  rank.pool().parallel_for(chunks, [&](int64_t chunk, int) { fill(args, begin_of(chunk), end_of(chunk), before[chunk]); });
}

int32_t later_of(int32_t a, int32_t b) { return std::max(a, b); }
int32_t sum_of_two(int32_t a, int32_t b) { return a + b; }

void starts_from_eos(Rank& rank, const StartsFromEosArgs& args) {
  scan(rank, args, args.starts, QUIRE_PICK(rank, last_after_eos), QUIRE_PICK(rank, starts_after_eos), later_of);
}
void starts_from_ids(Rank& rank, const StartsFromIdsArgs& args) {
  scan(rank, args, args.starts, QUIRE_PICK(rank, last_at_change), QUIRE_PICK(rank, starts_at_change), later_of);
}
void document_ids(Rank& rank, const DocumentIdsArgs& args) {
  scan(rank, args, args.document_ids, QUIRE_PICK(rank, documents_in), QUIRE_PICK(rank, ids_at_change), sum_of_two);
}
void positions(Rank& rank, const PositionsArgs& args) {
  const auto range = QUIRE_PICK(rank, positions_range);
  rank.pool().parallel_for(chunks_of(args.tokens_count, elements_per_task), [&](int64_t chunk, int) {
    range(args, chunk * elements_per_task, std::min(args.tokens_count, (chunk + 1) * elements_per_task));
  });
}
void ranges_of_tiles(Rank&, const TileRangesArgs& args) {
  tile_ranges(args.tokens_count, args.tile, args.window, [&](int64_t i) { return args.starts[i]; }, args.first, args.last);
}
bool positive_tile(const TileRangesArgs& args) { return args.tile > 0; }

}  // namespace

template <>
KernelList<StartsFromEosArgs> cpu_kernels<StartsFromEosArgs>() {
  static constexpr Kernel<StartsFromEosArgs> list[] = {{"vector", always<StartsFromEosArgs>, starts_from_eos}};
  return list;
}

template <>
KernelList<DocumentIdsArgs> cpu_kernels<DocumentIdsArgs>() {
  static constexpr Kernel<DocumentIdsArgs> list[] = {{"vector", always<DocumentIdsArgs>, document_ids}};
  return list;
}

template <>
KernelList<StartsFromIdsArgs> cpu_kernels<StartsFromIdsArgs>() {
  static constexpr Kernel<StartsFromIdsArgs> list[] = {{"vector", always<StartsFromIdsArgs>, starts_from_ids}};
  return list;
}

template <>
KernelList<PositionsArgs> cpu_kernels<PositionsArgs>() {
  static constexpr Kernel<PositionsArgs> list[] = {{"vector", always<PositionsArgs>, positions}};
  return list;
}

template <>
KernelList<TileRangesArgs> cpu_kernels<TileRangesArgs>() {
  static constexpr Kernel<TileRangesArgs> list[] = {{"vector", positive_tile, ranges_of_tiles}};
  return list;
}

}  // namespace quire
#endif
