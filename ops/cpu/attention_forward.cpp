// Attention's forward kernel: tiles of 48 queries by a tile of keys, online softmax (Milakov and Gimelshein, 2018; FlashAttention).
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/cpu/attention.h"
#include "ops/cpu/attention_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_forward.cpp"
#include "ops/cpu/targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

/// Keys of one document and key/value head: transposed and scaled by tile [tiles, head_dim, tile keys], values by row [keys, padded].
template <class T, class A = accumulator_t<T>>
void pack_keys(const AttentionForwardArgs& args, const AttentionDocument& document, int64_t kv_head, int64_t tile, A* keys, A* values) {
  constexpr int64_t tile_keys = attention_tile_keys<A>;
  const int64_t padded = attention_padded<A>(args.head_dim), count = std::min(tile_keys, document.key_count - tile * tile_keys);
  int32_t local[tile_keys], global[tile_keys];
  locate(document.keys, tile * tile_keys, count, local, global);
  const int64_t head = kv_head * args.head_dim;
  pack_transposed<T>(static_cast<const T*>(args.k) + head, args.k_row, local, count, args.head_dim, static_cast<A>(args.scale), keys);
  pack_rows<T>(static_cast<const T*>(args.v) + head, args.v_row, local, count, args.head_dim, values, padded);
}

/// Turns the scores of one row in columns [begin, end) of a tile into exp(score - maximum), zero outside of [first, last), and brings
/// maximum, sum and output of the row up to date. Columns are relative to the tile.
template <class A>
HWY_INLINE void online_softmax(A* HWY_RESTRICT scores, int64_t begin, int64_t end, int64_t first, int64_t last, A& maximum, A& sum,
                               A* HWY_RESTRICT out, int64_t width) {
  const hn::ScalableTag<A> d;
  const int64_t lanes = lanes_of<A>();
  if (first >= last) {
    for (int64_t c = begin; c < end; c += lanes) hn::StoreU(hn::Zero(d), d, scores + c);
    return;
  }
  const A lowest = -std::numeric_limits<A>::infinity();
  auto largest = hn::Set(d, lowest);
  for (int64_t c = begin; c < end; c += lanes) {
    auto x = hn::LoadU(d, scores + c);
    if (c < first || c + lanes > last) x = hn::IfThenElse(within(d, c, first, last), x, hn::Set(d, lowest));
    largest = hn::Max(largest, x);
  }
  const A now = std::max(maximum, hn::GetLane(hn::MaxOfLanes(d, largest)));
  const auto shift = hn::Set(d, now);
  auto total = hn::Zero(d);
  for (int64_t c = begin; c < end; c += lanes) {
    auto p = exponential(d, hn::Sub(hn::LoadU(d, scores + c), shift));
    if (c < first || c + lanes > last) p = hn::IfThenElseZero(within(d, c, first, last), p);
    total = hn::Add(total, p);
    hn::StoreU(p, d, scores + c);
  }
  const A added = hn::GetLane(hn::SumOfLanes(d, total));
  if (now > maximum && sum != 0) {
    const auto factor = exponential(d, hn::Set(d, maximum - now));
    for (int64_t i = 0; i < width; i += lanes) hn::StoreU(hn::Mul(factor, hn::LoadU(d, out + i)), d, out + i);
    sum *= hn::GetLane(factor);
  }
  maximum = now;
  sum += added;
}

template <class T, class A>
void write_row(const A* HWY_RESTRICT from, A factor, int64_t width, T* HWY_RESTRICT to) {
  const hn::ScalableTag<A> d;
  const int64_t lanes = lanes_of<A>();
  const auto by = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + lanes <= width; i += lanes) store(d, hn::Mul(by, hn::LoadU(d, from + i)), to + i);
  for (; i < width; ++i) store_one(factor * from[i], to + i);
}

/// Queries of one tile and head against all packed keys.
template <class T, class A = accumulator_t<T>>
void forward_tile(const AttentionForwardArgs& args, const AttentionDocument& document, int64_t head, int64_t begin, int64_t count,
                  const A* keys, const A* values, A* scratch, int64_t& computed) {
  constexpr int64_t tile_keys = attention_tile_keys<A>, tile_queries = attention_tile_queries;
  const int64_t lanes = lanes_of<A>(), width = args.head_dim, padded = attention_padded<A>(width), vectors = chunks_of(width, lanes);
  const AttentionRows rows = attention_rows(document, begin, count, args.window);
  A *query = scratch, *out = query + tile_queries * padded, *scores = out + tile_queries * padded;
  A maximum[tile_queries], sum[tile_queries];
  pack_rows<T>(static_cast<const T*>(args.q) + head * width, args.q_row, rows.local, count, width, query, padded);
  std::fill_n(out, count * padded, A{0});
  std::fill_n(maximum, count, -std::numeric_limits<A>::infinity());
  std::fill_n(sum, count, A{0});
  int64_t first, last;
  rows.range(0, count, first, last);
  for (int64_t tile = first < last ? first / tile_keys : 0; tile * tile_keys < last; ++tile) {
    const int64_t origin = tile * tile_keys;
    for (int64_t row = 0; row < count; row += tile_rows) {
      const int64_t group = std::min(tile_rows, count - row);
      rows.range(row, row + group, first, last);
      const int64_t from = std::max<int64_t>(first - origin, 0), to = std::min(last - origin, tile_keys);
      if (from >= to) continue;
      const int64_t column = from / lanes * lanes, end = chunks_of(to, lanes) * lanes;
      multiply_rows<A>(group, (end - column) / lanes, width, query + row * padded, padded, 1, keys + tile * tile_keys * width + column, tile_keys,
                       scores + row * tile_keys + column, tile_keys, false);
      computed += group * (end - column);
      for (int64_t r = row; r < row + group; ++r)
        online_softmax<A>(scores + r * tile_keys, column, end, rows.first[r] - origin, rows.last[r] - origin, maximum[r], sum[r],
                          out + r * padded, vectors * lanes);
      multiply_rows<A>(group, vectors, to - from, scores + row * tile_keys + from, tile_keys, 1, values + (origin + from) * padded, padded,
                       out + row * padded, padded, true);
    }
    rows.range(0, count, first, last);
  }
  for (int64_t r = 0; r < count; ++r) {
    const bool empty = rows.first[r] >= rows.last[r];
    const A factor = empty ? A{0} : A{1} / sum[r];
    const int64_t place = rows.local[r] * args.out_row + head * width;
    if (args.accumulate_out) write_row(out + r * padded, factor, width, static_cast<A*>(args.out) + place);
    else write_row(out + r * padded, factor, width, static_cast<T*>(args.out) + place);
    static_cast<A*>(args.lse)[rows.local[r] * args.heads + head] =
        empty ? -std::numeric_limits<A>::infinity() : maximum[r] + std::log(sum[r]);
  }
}

template <class T, class A = accumulator_t<T>>
int64_t forward_unit(const AttentionForwardArgs& args, const AttentionPlan& plan, const AttentionUnit& unit, void* shared, void* memory) {
  constexpr int64_t tile_keys = attention_tile_keys<A>;
  const int64_t padded = attention_padded<A>(args.head_dim), tiles = chunks_of(plan.longest_private, tile_keys);
  A* scratch = static_cast<A*>(memory);
  int64_t computed = 0;
  for (int32_t index = unit.document; index < unit.document + unit.documents; ++index) {
    const AttentionDocument& document = plan.documents[index];
    A *keys = scratch, *values = keys + tiles * tile_keys * padded;
    A* tile_memory = values + tiles * tile_keys * padded;
    if (document.shared_tile >= 0) {
      const int64_t size = plan.shared_tiles * tile_keys * padded;
      keys = static_cast<A*>(shared) + unit.kv_head * 2 * size + document.shared_tile * tile_keys * padded;
      values = keys + size;
    } else {
      for (int64_t tile = 0; tile * tile_keys < document.key_count; ++tile)
        pack_keys<T>(args, document, unit.kv_head, tile, keys + tile * tile_keys * args.head_dim, values + tile * tile_keys * padded);
    }
    const int64_t end = std::min(unit.row_end, document.query_count);
    for (int64_t head = unit.head_begin; head < unit.head_end; ++head)
      for (int64_t begin = unit.row_begin; begin < end; begin += attention_tile_queries)
        forward_tile<T>(args, document, head, begin, std::min(attention_tile_queries, end - begin), keys, values, tile_memory, computed);
  }
  return computed;
}

/// Packs one tile of a document's keys in shared memory [kv_heads, 2, shared tiles, tile keys, padded].
template <class T, class A = accumulator_t<T>>
void forward_pack(const AttentionForwardArgs& args, const AttentionPlan& plan, const AttentionDocument& document, int64_t kv_head, int64_t tile,
                  void* shared) {
  constexpr int64_t tile_keys = attention_tile_keys<A>;
  const int64_t padded = attention_padded<A>(args.head_dim), size = plan.shared_tiles * tile_keys * padded;
  A* keys = static_cast<A*>(shared) + kv_head * 2 * size + document.shared_tile * tile_keys * padded;
  pack_keys<T>(args, document, kv_head, tile, keys + tile * tile_keys * args.head_dim, keys + size + tile * tile_keys * padded);
}

}  // namespace

AttentionForwardKernels forward_kernels(DType type) {
  switch (type) {
    case DType::f64: return {forward_pack<double>, forward_unit<double>};
    case DType::f32: return {forward_pack<float>, forward_unit<float>};
    default: return {forward_pack<bf16>, forward_unit<bf16>};
  }
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
HWY_EXPORT(forward_kernels);
AttentionForwardKernels attention_forward_kernels(const Rank& rank, DType type) { return QUIRE_PICK(rank, forward_kernels)(type); }
}  // namespace quire
#endif
