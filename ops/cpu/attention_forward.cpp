// Attention's forward kernel: tiles of queries and heads by tiles of keys, online softmax (Milakov and Gimelshein, 2018; FlashAttention).
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
#include <hwy/contrib/math/math-inl.h>
#include "ops/cpu/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

/// Where tiles of one document and key/value head lie: keys transposed and scaled [tiles, head_dim, tile stride], values [keys, padded].
template <class A>
struct PackedKeys {
  A *keys, *values;
};

template <class T, class A = accumulator_t<T>>
void pack_keys(const AttentionForwardArgs& args, const AttentionDocument& document, int64_t kv_head, int64_t tile, const PackedKeys<A>& packed) {
  constexpr int64_t tile_keys = attention_tile_keys<A>;
  const int64_t padded = attention_padded<A>(args.head_dim), count = std::min(tile_keys, document.key_count - tile * tile_keys);
  int32_t local[tile_keys], global[tile_keys];
  locate(document.keys, tile * tile_keys, count, local, global);
  const int64_t head = kv_head * args.head_dim;
  pack_transposed<T>(static_cast<const T*>(args.k) + head, args.k_row, local, count, args.head_dim, static_cast<A>(args.scale),
                     packed.keys + tile * attention_transposed_tile<A>(args.head_dim));
  pack_rows<T>(static_cast<const T*>(args.v) + head, args.v_row, local, count, args.head_dim, packed.values + tile * tile_keys * padded, padded);
}

/// A tile of queries on its way through the keys.
template <class A>
struct ForwardTile {
  static constexpr int64_t sum_stride = HWY_MAX_BYTES / sizeof(A);
  const AttentionRows& rows;
  A *query, *out, *scores;  ///< [rows, padded], [rows, padded], [rows, tile stride]
  A maximum[attention_tile_rows];
  alignas(64) A sum[attention_tile_rows * sum_stride];  ///< one per lane
  bool started[attention_row_groups];  ///< whether `out` of the group holds anything yet

  ForwardTile(const AttentionRows& all, A* memory, int64_t padded)
      : rows(all), query(memory), out(query + attention_tile_rows * padded), scores(out + attention_tile_rows * padded) {
    std::fill_n(maximum, rows.count, -std::numeric_limits<A>::infinity());
    std::fill_n(sum, rows.count * sum_stride, A{0});
    std::fill_n(started, attention_row_groups, false);
  }
};

/// A row's maximum is let grow by so much before its sums are scaled again: e^8 does no harm to them, and after the first keys few rows need it.
constexpr int maximum_slack = 8;

/// Turns the scores of one row in columns [begin, end) of a tile into exp(score - maximum), zero outside of [first, last), and brings
/// maximum, sum (one per lane) and output of the row up to date. Columns are relative to the tile; first < last.
template <class A, Columns columns>
HWY_INLINE void online_softmax(A* HWY_RESTRICT scores, int64_t begin, int64_t end, int64_t first, int64_t last, A& maximum, A* HWY_RESTRICT sum,
                               A* HWY_RESTRICT out, int64_t width) {
  const hn::ScalableTag<A> d;
  const int64_t lanes = lanes_of<A>();
  if (columns == Columns::all) begin = 0, end = last = attention_tile_keys<A>;
  if (columns == Columns::some) begin = std::max(begin, first / lanes * lanes);
  const int64_t whole = last / lanes * lanes;  // from here on vectors are cut
  const auto cut = [&](int64_t c) { return columns == Columns::some && c < first; };
  const auto lowest = hn::Set(d, -std::numeric_limits<A>::infinity());
  auto largest = lowest;
  QUIRE_UNROLL
  for (int64_t c = begin; c < whole; c += lanes) {
    auto x = hn::LoadU(d, scores + c);
    if (cut(c)) x = hn::IfThenElse(within(d, c, first, last), x, lowest);
    largest = hn::Max(largest, x);
  }
  if (columns != Columns::all && whole < last) largest = hn::Max(largest, hn::IfThenElse(within(d, whole, first, last), hn::LoadU(d, scores + whole), lowest));
  const A now = hn::GetLane(hn::MaxOfLanes(d, largest));
  auto total = hn::LoadU(d, sum);
  if (now > maximum + maximum_slack) {
    if (maximum != -std::numeric_limits<A>::infinity()) {
      const auto factor = exponential(d, hn::Set(d, maximum - now));
      for (int64_t i = 0; i < width; i += lanes) hn::StoreU(hn::Mul(factor, hn::LoadU(d, out + i)), d, out + i);
      total = hn::Mul(total, factor);
    }
    maximum = now;
  }
  const auto shift = hn::Set(d, maximum);
  QUIRE_UNROLL
  for (int64_t c = begin; c < whole; c += lanes) {
    auto p = exponential(d, hn::Sub(hn::LoadU(d, scores + c), shift));
    if (cut(c)) p = hn::IfThenElseZero(within(d, c, first, last), p);
    total = hn::Add(total, p);
    hn::StoreU(p, d, scores + c);
  }
  if (columns != Columns::all && whole < last) {
    const auto p = hn::IfThenElseZero(within(d, whole, first, last), exponential(d, hn::Sub(hn::LoadU(d, scores + whole), shift)));
    total = hn::Add(total, p);
    hn::StoreU(p, d, scores + whole);
  }
  hn::StoreU(total, d, sum);
}

/// Zeros in columns [begin, end): whole vectors.
template <class A>
HWY_INLINE void clear_columns(A* row, int64_t begin, int64_t end) {
  const hn::ScalableTag<A> d;
  for (; begin < end; begin += lanes_of<A>()) hn::StoreU(hn::Zero(d), d, row + begin);
}

/// The scores of rows [row, row + group) in columns [column, end) of a tile of keys become their probabilities, up to a factor.
template <class A>
HWY_INLINE void group_softmax(ForwardTile<A>& t, int64_t row, int64_t group, int64_t origin, int64_t column, int64_t end, int64_t padded, int64_t width) {
  constexpr int64_t tile_keys = attention_tile_keys<A>, stride = attention_tile_stride<A>;
  const int64_t lanes = lanes_of<A>();
  for (int64_t r = row; r < row + group; ++r) {
    const int64_t first = std::max<int64_t>(t.rows.first[r] - origin, 0), last = std::min(t.rows.last[r] - origin, tile_keys);
    A *scores = t.scores + r * stride, *sum = t.sum + r * t.sum_stride, *out = t.out + r * padded;
    if (first >= last) {
      clear_columns(scores, column, end);
    } else if (first == 0 && last == tile_keys) {
      online_softmax<A, Columns::all>(scores, column, end, first, last, t.maximum[r], sum, out, width);
    } else {
      if (first <= column) online_softmax<A, Columns::first>(scores, column, end, first, last, t.maximum[r], sum, out, width);
      else online_softmax<A, Columns::some>(scores, column, end, first, last, t.maximum[r], sum, out, width);
      clear_columns(scores, column, first / lanes * lanes);
      clear_columns(scores, chunks_of(last, lanes) * lanes, end);
    }
  }
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

/// One tile of queries against one tile of keys. Scores of all rows come first, then the weighted values, so that only one operand of the two
/// products has to stay in the first-level cache at a time.
template <class A>
void forward_tile(ForwardTile<A>& t, int64_t tile, int64_t width, const A* keys, const A* values, AttentionPairs& pairs) {
  constexpr int64_t tile_keys = attention_tile_keys<A>, stride = attention_tile_stride<A>;
  const int64_t lanes = lanes_of<A>(), padded = attention_padded<A>(width), vectors = chunks_of(width, lanes), origin = tile * tile_keys;
  const AttentionRows& rows = t.rows;
  int64_t from[attention_row_groups], to[attention_row_groups];
  for (int64_t row = 0, g = 0; row < rows.count; row += tile_rows, ++g) {
    const int64_t group = std::min(tile_rows, rows.count - row);
    from[g] = std::max<int64_t>(rows.groups[g].first - origin, 0);
    to[g] = std::min(rows.groups[g].last - origin, tile_keys);
    if (from[g] >= to[g]) continue;
    const int64_t column = from[g] / lanes * lanes, end = chunks_of(to[g], lanes) * lanes;
    multiply_rows<A>(group, (end - column) / lanes, width, t.query + row * padded, padded, 1, keys + column, stride,
                     t.scores + row * stride + column, stride, false);
    pairs.computed += group * (end - column);
    group_softmax<A>(t, row, group, origin, column, end, padded, vectors * lanes);
  }
  for (int64_t row = 0, g = 0; row < rows.count; row += tile_rows, ++g) {
    if (from[g] >= to[g]) continue;
    multiply_rows<A>(std::min(tile_rows, rows.count - row), vectors, to[g] - from[g], t.scores + row * stride + from[g], stride, 1,
                     values + from[g] * padded, padded, t.out + row * padded, padded, t.started[g]);
    t.started[g] = true;
  }
}

/// A tile's results: out of its sums, and log-sum-exp.
template <class T, class A = accumulator_t<T>>
void write_tile(const AttentionForwardArgs& args, const ForwardTile<A>& t, int64_t padded) {
  const hn::ScalableTag<A> d;
  const int64_t lanes = lanes_of<A>();
  alignas(64) A sums[attention_tile_rows], logarithms[attention_tile_rows];
  for (int64_t r = 0; r < t.rows.count; ++r) sums[r] = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, t.sum + r * t.sum_stride)));
  std::fill(sums + t.rows.count, sums + chunks_of(t.rows.count, lanes) * lanes, A{1});
  for (int64_t r = 0; r < t.rows.count; r += lanes) hn::StoreU(hn::Log(d, hn::LoadU(d, sums + r)), d, logarithms + r);
  for (int64_t r = 0; r < t.rows.count; ++r) {
    const bool empty = t.rows.first[r] >= t.rows.last[r];
    const A factor = empty ? A{0} : A{1} / sums[r];
    if (empty) std::fill_n(t.out + r * padded, padded, A{0});
    const int64_t local = t.rows.local[r], head = t.rows.head[r], place = local * args.out_row + head * args.head_dim;
    if (args.accumulate_out) write_row(t.out + r * padded, factor, args.head_dim, static_cast<A*>(args.out) + place);
    else write_row(t.out + r * padded, factor, args.head_dim, static_cast<T*>(args.out) + place);
    static_cast<A*>(args.lse)[local * args.heads + head] = empty ? -std::numeric_limits<A>::infinity() : t.maximum[r] + logarithms[r];
  }
}

/// A tile of queries against all keys of their document.
template <class T, class A = accumulator_t<T>>
void forward_rows(const AttentionForwardArgs& args, const AttentionRows& rows, int64_t key_count, const PackedKeys<A>& packed, A* memory,
                  AttentionPairs& pairs) {
  constexpr int64_t tile_keys = attention_tile_keys<A>;
  const int64_t width = args.head_dim, padded = attention_padded<A>(width);
  ForwardTile<A> t(rows, memory, padded);
  pack_rows<T>(static_cast<const T*>(args.q), args.q_row, rows, width, t.query, padded);
  const auto [first, last] = rows.all;
  pairs.attended += rows.pairs(0, key_count);
  for (int64_t tile = first < last ? first / tile_keys : 0; tile * tile_keys < last; ++tile)
    forward_tile<A>(t, tile, width, packed.keys + tile * attention_transposed_tile<A>(width), packed.values + tile * tile_keys * padded, pairs);
  write_tile<T>(args, t, padded);
}

/// Memory shared by the threads: [kv_heads, shared tiles, head_dim, tile stride], then [kv_heads, shared tiles, tile keys, padded].
template <class A>
PackedKeys<A> shared_keys(const AttentionForwardArgs& args, const AttentionPlan& plan, const AttentionDocument& document, int64_t kv_head,
                          void* shared) {
  const int64_t transposed = attention_transposed_tile<A>(args.head_dim), by_row = attention_row_tile<A>(args.head_dim);
  const int64_t tile = kv_head * plan.shared_tiles + document.shared_tile;
  A* keys = static_cast<A*>(shared);
  return {keys + tile * transposed, keys + args.kv_heads * plan.shared_tiles * transposed + tile * by_row};
}

template <class T, class A = accumulator_t<T>>
AttentionPairs forward_unit(const AttentionForwardArgs& args, const AttentionPlan& plan, const AttentionUnit& unit, void* shared, void* memory) {
  constexpr int64_t tile_keys = attention_tile_keys<A>;
  const int64_t tiles = chunks_of(plan.longest_private, tile_keys);
  A* const private_keys = static_cast<A*>(memory);
  A* const scratch = private_keys + tiles * forward_tile_memory<A>(args.head_dim);
  AttentionPairs pairs;
  for (int32_t index = unit.document; index < unit.document + unit.documents; ++index) {
    const AttentionDocument& document = plan.documents[index];
    PackedKeys<A> packed{private_keys, private_keys + tiles * attention_transposed_tile<A>(args.head_dim)};
    if (document.shared_tile >= 0) packed = shared_keys<A>(args, plan, document, unit.kv_head, shared);
    else
      for (int64_t tile = 0; tile * tile_keys < document.key_count; ++tile) pack_keys<T>(args, document, unit.kv_head, tile, packed);
    const int64_t group = args.heads / args.kv_heads;
    for_each_tile(document, unit.begin, std::min(unit.end, document.query_count), unit.kv_head * group, group, args.window, [&](const AttentionRows& rows) HWY_ATTR {
      forward_rows<T>(args, rows, document.key_count, packed, scratch, pairs);
    });
  }
  return pairs;
}

/// Packs one tile of a document's keys in shared memory.
template <class T, class A = accumulator_t<T>>
void forward_pack(const AttentionForwardArgs& args, const AttentionPlan& plan, const AttentionDocument& document, int64_t kv_head, int64_t tile,
                  void* shared) {
  pack_keys<T>(args, document, kv_head, tile, shared_keys<A>(args, plan, document, kv_head, shared));
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
