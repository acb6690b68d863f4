// Attention's backward kernel: probabilities are recomputed from the log-sum-exp tile by tile (FlashAttention). Blocks of keys outside, tiles of
// queries inside; dk and dv of a block are complete when it is left, dq grows block by block, all in fixed order within the document.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/cpu/attention.h"
#include "ops/cpu/attention_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_backward.cpp"
#include "ops/cpu/targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

/// What a thread works with. Keys of a block: transposed by tile (scaled), values transposed by tile, keys by row, and sums dk, dv by row.
/// Queries of a tile: q, dout and the sum dq by row; probabilities and score gradients [tile rows, tile stride].
template <class A>
struct Backward {
  A *keys_transposed, *values_transposed, *keys, *dk, *dv, *query, *dout, *dq, *probabilities, *dscores;
  int64_t padded;
  /// Whether sums of a group of keys hold anything yet, by tile.
  static constexpr int64_t key_groups = (attention_tile_keys<A> + tile_rows - 1) / tile_rows;
  bool dk_started[attention_block_keys<A> / attention_tile_keys<A>][key_groups], dv_started[attention_block_keys<A> / attention_tile_keys<A>][key_groups];

  Backward(A* memory, int64_t head_dim) : padded(attention_padded<A>(head_dim)) {
    constexpr int64_t tiles = attention_block_keys<A> / attention_tile_keys<A>;
    const int64_t block = attention_block_keys<A> * padded, rows = attention_tile_rows * padded;
    const int64_t transposed = tiles * attention_transposed_tile<A>(head_dim);
    keys_transposed = memory;
    values_transposed = keys_transposed + transposed;
    keys = values_transposed + transposed;
    dk = keys + block;
    dv = dk + block;
    query = dv + block;
    dout = query + rows;
    dq = dout + rows;
    probabilities = dq + rows;
    dscores = probabilities + attention_tile_rows * attention_tile_stride<A>;
  }
};

template <class T, class A = accumulator_t<T>>
void pack_block(const AttentionBackwardArgs& args, const AttentionDocument& document, int64_t kv_head, int64_t origin, int64_t count,
                Backward<A>& m) {
  constexpr int64_t tile_keys = attention_tile_keys<A>;
  const int64_t width = args.head_dim, transposed = attention_transposed_tile<A>(width);
  const T *k = static_cast<const T*>(args.k) + kv_head * width, *v = static_cast<const T*>(args.v) + kv_head * width;
  for (int64_t begin = 0; begin < count; begin += tile_keys) {
    const int64_t here = std::min(tile_keys, count - begin);
    int32_t local[tile_keys], global[tile_keys];
    locate(document.keys, origin + begin, here, local, global);
    pack_transposed<T>(k, args.k_row, local, here, width, static_cast<A>(args.scale), m.keys_transposed + begin / tile_keys * transposed);
    pack_transposed<T>(v, args.v_row, local, here, width, A{1}, m.values_transposed + begin / tile_keys * transposed);
    pack_rows<T>(k, args.k_row, local, here, width, m.keys + begin * m.padded, m.padded);
  }
  for (auto& tile : m.dk_started) std::fill(std::begin(tile), std::end(tile), false);
  for (auto& tile : m.dv_started) std::fill(std::begin(tile), std::end(tile), false);
}

/// Zeros in the sums of keys that no query reads.
template <class A>
void finish_block(int64_t count, const Backward<A>& m) {
  for (int64_t begin = 0; begin < count; begin += attention_tile_keys<A>)
    for (int64_t key = begin; key < std::min(begin + attention_tile_keys<A>, count); ++key) {
      const int64_t tile = begin / attention_tile_keys<A>, group = (key - begin) / tile_rows;
      if (!m.dk_started[tile][group]) std::fill_n(m.dk + key * m.padded, m.padded, A{0});
      if (!m.dv_started[tile][group]) std::fill_n(m.dv + key * m.padded, m.padded, A{0});
    }
}

/// Probability of a score. None is above its log-sum-exp, unless that is of other keys: then results are wrong, but finite.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V probability_of(D d, V score, V lse) { return exponential(d, at_most(d, largest_power<hn::TFromD<D>>, hn::Sub(score, lse))); }
/// Gradient of a score from its probability and dout v.
template <class V>
HWY_INLINE V gradient_of(V probability, V product, V delta, V scale) { return hn::Mul(hn::Mul(probability, scale), hn::Sub(product, delta)); }

/// Probabilities and score gradients of one row from its scores and dout v, in the whole vectors of columns that touch [first, last); zero outside of it.
template <class A, Columns columns>
HWY_INLINE void row_gradient(A* HWY_RESTRICT p, A* HWY_RESTRICT ds, int64_t first, int64_t last, A lse, A delta, A scale) {
  const hn::ScalableTag<A> d;
  const int64_t lanes = lanes_of<A>();
  if (columns == Columns::all) last = attention_tile_keys<A>;
  if (columns != Columns::some) first = 0;
  const int64_t whole = last / lanes * lanes;  // from here on vectors are cut
  const auto shift = hn::Set(d, lse), less = hn::Set(d, delta), factor = hn::Set(d, scale);
  QUIRE_UNROLL
  for (int64_t c = first / lanes * lanes; c < whole; c += lanes) {
    auto probability = probability_of(d, hn::LoadU(d, p + c), shift);
    if (columns == Columns::some && c < first) probability = hn::IfThenElseZero(within(d, c, first, last), probability);
    auto gradient = gradient_of(probability, hn::LoadU(d, ds + c), less, factor);
    if (columns == Columns::some && c < first) gradient = hn::IfThenElseZero(within(d, c, first, last), gradient);
    hn::StoreU(probability, d, p + c);
    hn::StoreU(gradient, d, ds + c);
  }
  if (columns == Columns::all || whole == last) return;
  const auto inside = within(d, whole, first, last);
  const auto probability = hn::IfThenElseZero(inside, probability_of(d, hn::LoadU(d, p + whole), shift));
  const auto gradient = gradient_of(probability, hn::LoadU(d, ds + whole), less, factor);
  hn::StoreU(probability, d, p + whole);
  hn::StoreU(hn::IfThenElseZero(inside, gradient), d, ds + whole);
}

/// Zeros in columns [begin, end), whole vectors, of a row of probabilities and of score gradients.
template <class A>
HWY_INLINE void clear_columns(A* p, A* ds, int64_t begin, int64_t end) {
  const hn::ScalableTag<A> d;
  for (; begin < end; begin += lanes_of<A>()) {
    hn::StoreU(hn::Zero(d), d, p + begin);
    hn::StoreU(hn::Zero(d), d, ds + begin);
  }
}

/// sums += weights^T rows over the keys [0, count) of a tile: dv from probabilities and dout, dk from score gradients and q. A group of keys takes
/// only the rows that read one of them.
template <class A>
void add_key_gradients(const AttentionRows& rows, int64_t origin, int64_t count, int64_t vectors, const A* weights, const A* values, int64_t padded, A* sums,
                       bool* started) {
  constexpr int64_t stride = attention_tile_stride<A>;
  int64_t begin = 0, end = rows.count;
  for (int64_t key = 0; key < count; key += tile_rows) {
    const int64_t group = std::min(tile_rows, count - key), low = origin + key, high = low + group;
    while (begin < rows.count && rows.last[begin] <= low) ++begin;
    end = rows.count;
    while (end > begin && rows.first[end - 1] >= high) --end;
    if (begin >= end) continue;
    bool& any = started[key / tile_rows];
    multiply_rows<A>(group, vectors, end - begin, weights + begin * stride + key, 1, stride, values + begin * padded, padded, sums + key * padded, padded, any);
    any = true;
  }
}

/// A tile of queries: what it reads of lse and delta, and whether dq of its groups of rows holds anything yet.
template <class A>
struct BackwardRows {
  const AttentionRows& rows;
  A lse[attention_tile_rows], delta[attention_tile_rows];
  bool started[attention_row_groups];
};

/// Row r against the keys [start, start + count) of a tile: probabilities `p` and score gradients `ds`, in all columns of the tile.
template <class A>
HWY_INLINE void row_gradients(const BackwardRows<A>& t, int64_t r, int64_t start, int64_t count, A scale, A* p, A* ds) {
  constexpr int64_t tile_keys = attention_tile_keys<A>;
  const int64_t lanes = lanes_of<A>(), first = std::max<int64_t>(t.rows.first[r] - start, 0), last = std::min(t.rows.last[r] - start, count);
  // Rows that read nothing at all (lse -infinity) contribute nothing.
  if (first >= last || t.lse[r] == -std::numeric_limits<A>::infinity()) return clear_columns(p, ds, 0, tile_keys);
  if (first == 0 && last == tile_keys) return row_gradient<A, Columns::all>(p, ds, first, last, t.lse[r], t.delta[r], scale);
  if (first == 0) row_gradient<A, Columns::first>(p, ds, first, last, t.lse[r], t.delta[r], scale);
  else row_gradient<A, Columns::some>(p, ds, first, last, t.lse[r], t.delta[r], scale);
  clear_columns(p, ds, 0, first / lanes * lanes);
  clear_columns(p, ds, chunks_of(last, lanes) * lanes, tile_keys);
}

#if HWY_TARGET == HWY_AVX2
constexpr bool scores_stay_in_registers = true;
/// Rows [row, row + 6) against all keys of a tile: `rows` [.., padded] times `keys` [width, tile stride], and from a vector of sums `make(row, place in scores, sums)`
/// makes what is written to `to` [tile rows, tile stride]. Storing sums and reading them again would take as long as some of the multiply-adds.
template <class A, class Make>
HWY_INLINE void write_whole_rows(int64_t row, int64_t width, const A* rows, int64_t padded, const A* keys, A* to, const Make& make) {
  const hn::ScalableTag<A> d;
  constexpr int64_t stride = attention_tile_stride<A>, lanes = static_cast<int64_t>(hn::MaxLanes(d));
  for (int64_t column = 0; column < attention_tile_keys<A>; column += 2 * lanes) {
    hn::Vec<decltype(d)> sums[6][2];
    sum_six_by_two<A>(width, rows + row * padded, padded, keys + column, stride, sums);
    QUIRE_UNROLL
    for (int i = 0; i < 6; ++i) {
      QUIRE_UNROLL
      for (int j = 0; j < 2; ++j) {
        const int64_t place = (row + i) * stride + column + j * lanes;
        hn::StoreU(make(row + i, place, sums[i][j]), d, to + place);
      }
    }
  }
}

template <class A>
void whole_probabilities(const BackwardRows<A>& t, int64_t row, int64_t width, const A* keys, const Backward<A>& m) {
  const hn::ScalableTag<A> d;
  write_whole_rows<A>(row, width, m.query, m.padded, keys, m.probabilities,
                      [&](int64_t r, int64_t, auto score) HWY_ATTR { return probability_of(d, score, hn::Set(d, t.lse[r])); });
}

template <class A>
void whole_gradients(const BackwardRows<A>& t, int64_t row, int64_t width, const A* values, A scale, const Backward<A>& m) {
  const hn::ScalableTag<A> d;
  write_whole_rows<A>(row, width, m.dout, m.padded, values, m.dscores, [&](int64_t r, int64_t place, auto product) HWY_ATTR {
    return gradient_of(hn::LoadU(d, m.probabilities + place), product, hn::Set(d, t.delta[r]), hn::Set(d, scale));
  });
}
#else
constexpr bool scores_stay_in_registers = false;
template <class A> void whole_probabilities(const BackwardRows<A>&, int64_t, int64_t, const A*, const Backward<A>&) {}
template <class A> void whole_gradients(const BackwardRows<A>&, int64_t, int64_t, const A*, A, const Backward<A>&) {}
#endif

/// Whether rows [row, row + rows) fill a register tile, and each reads all keys of a whole tile of them.
template <class A>
bool reads_whole(const BackwardRows<A>& t, int64_t row, int64_t rows, int64_t start, int64_t count) {
  if (!scores_stay_in_registers || rows < tile_rows || count < attention_tile_keys<A>) return false;
  for (int64_t r = row; r < row + rows; ++r)
    if (t.rows.first[r] > start || t.rows.last[r] < start + count || t.lse[r] == -std::numeric_limits<A>::infinity()) return false;
  return true;
}

/// One tile of queries against one tile of keys: [start, start + count), at `offset` in the block. One product after the other over all rows, so
/// that only one operand has to stay in the first-level cache at a time.
template <class A>
void backward_tile(BackwardRows<A>& t, int64_t start, int64_t count, int64_t offset, int64_t width, A scale, Backward<A>& m, AttentionPairs& pairs) {
  constexpr int64_t stride = attention_tile_stride<A>;
  const int64_t lanes = lanes_of<A>(), vectors = chunks_of(width, lanes), transposed = offset / attention_tile_keys<A> * attention_transposed_tile<A>(width);
  const AttentionRows& rows = t.rows;
  struct Group { int64_t rows, from, to, column, end; bool whole; } groups[attention_row_groups];
  for (int64_t row = 0; row < rows.count; row += tile_rows) {
    Group& g = groups[row / tile_rows];
    g.rows = std::min(tile_rows, rows.count - row);
    g.from = std::max<int64_t>(rows.groups[row / tile_rows].first - start, 0);
    g.to = std::min(rows.groups[row / tile_rows].last - start, count);
    if (g.from >= g.to) g.from = g.to = 0;
    g.column = g.from / lanes * lanes;
    g.end = chunks_of(g.to, lanes) * lanes;
    g.whole = reads_whole(t, row, g.rows, start, count);
    if (g.whole) whole_probabilities<A>(t, row, width, m.keys_transposed + transposed, m);
    else multiply_rows<A>(g.rows, (g.end - g.column) / lanes, width, m.query + row * m.padded, m.padded, 1, m.keys_transposed + transposed + g.column,
                          stride, m.probabilities + row * stride + g.column, stride, false);
    pairs.computed += g.rows * (g.end - g.column);
  }
  for (int64_t row = 0; row < rows.count; row += tile_rows) {
    const Group& g = groups[row / tile_rows];
    if (g.whole) {
      whole_gradients<A>(t, row, width, m.values_transposed + transposed, scale, m);
      continue;
    }
    multiply_rows<A>(g.rows, (g.end - g.column) / lanes, width, m.dout + row * m.padded, m.padded, 1, m.values_transposed + transposed + g.column,
                     stride, m.dscores + row * stride + g.column, stride, false);
    for (int64_t r = row; r < row + g.rows; ++r) row_gradients(t, r, start, count, scale, m.probabilities + r * stride, m.dscores + r * stride);
  }
  for (int64_t row = 0; row < rows.count; row += tile_rows) {
    const Group& g = groups[row / tile_rows];
    if (g.from >= g.to) continue;
    multiply_rows<A>(g.rows, vectors, g.to - g.from, m.dscores + row * stride + g.from, stride, 1, m.keys + (offset + g.from) * m.padded, m.padded,
                     m.dq + row * m.padded, m.padded, t.started[row / tile_rows]);
    t.started[row / tile_rows] = true;
  }
  add_key_gradients<A>(rows, start, count, vectors, m.probabilities, m.dout, m.padded, m.dv + offset * m.padded, m.dv_started[offset / attention_tile_keys<A>]);
  add_key_gradients<A>(rows, start, count, vectors, m.dscores, m.query, m.padded, m.dk + offset * m.padded, m.dk_started[offset / attention_tile_keys<A>]);
}

/// Packs the tile of queries that `t.rows` names, and reads their lse and delta.
template <class T, class A = accumulator_t<T>>
void pack_queries(const AttentionBackwardArgs& args, BackwardRows<A>& t, Backward<A>& m) {
  for (int64_t r = 0; r < t.rows.count; ++r) {
    const int64_t place = t.rows.local[r] * args.heads + t.rows.head[r];
    t.lse[r] = static_cast<const A*>(args.lse)[place];
    t.delta[r] = static_cast<const A*>(args.delta)[place];
  }
  std::fill_n(t.started, attention_row_groups, false);
  pack_rows<T>(static_cast<const T*>(args.q), args.q_row, t.rows, args.head_dim, m.query, m.padded);
  pack_rows<T>(static_cast<const T*>(args.dout), args.dout_row, t.rows, args.head_dim, m.dout, m.padded);
}

template <class A>
void add_row(const A* HWY_RESTRICT from, int64_t width, A* HWY_RESTRICT to) {
  for (int64_t i = 0; i < width; ++i) to[i] += from[i];
}

/// Adds a row of sums to a gradient, or is the first to write it.
template <class A>
void give_row(const A* HWY_RESTRICT from, int64_t width, A* HWY_RESTRICT to, bool first) {
  if (first) std::copy_n(from, width, to);
  else add_row(from, width, to);
}

/// Where rows of partial sums of a document's part (1 or later) begin, dk or dv.
template <class A>
A* partial_rows(const AttentionBackwardArgs& args, const AttentionPlan& plan, const AttentionDocument& document, int64_t part, bool values,
                const void* partial) {
  const int64_t row = (values ? plan.partial_keys : 0) + document.partial_keys + (part - 1) * document.key_count;
  return static_cast<A*>(const_cast<void*>(partial)) + row * args.kv_heads * args.head_dim;
}

/// Gives the sums of a block's keys to dk and dv, or to the part's own rows [key_count, kv_heads, head_dim] where there are any.
template <class A>
void give_key_gradients(const AttentionBackwardArgs& args, const AttentionDocument& document, int64_t kv_head, int64_t origin, int64_t count,
                        const Backward<A>& m, A* partial_dk, A* partial_dv) {
  constexpr int64_t tile_keys = attention_tile_keys<A>;
  const int64_t width = args.head_dim;
  for (int64_t begin = 0; begin < count; begin += tile_keys) {
    const int64_t here = std::min(tile_keys, count - begin);
    int32_t local[tile_keys], global[tile_keys];
    locate(document.keys, origin + begin, here, local, global);
    for (int64_t i = 0; i < here; ++i) {
      const A *dk = m.dk + (begin + i) * m.padded, *dv = m.dv + (begin + i) * m.padded;
      if (partial_dk) {
        const int64_t place = ((origin + begin + i) * args.kv_heads + kv_head) * width;
        std::copy_n(dk, width, partial_dk + place);
        std::copy_n(dv, width, partial_dv + place);
      } else {
        give_row(dk, width, static_cast<A*>(args.dk) + local[i] * args.dk_row + kv_head * width, args.overwrite);
        give_row(dv, width, static_cast<A*>(args.dv) + local[i] * args.dv_row + kv_head * width, args.overwrite);
      }
    }
  }
}

/// A tile of queries against keys [origin, origin + count), packed in `m`: dq, dk and dv grow.
template <class T, class A = accumulator_t<T>>
void backward_rows(const AttentionBackwardArgs& args, const AttentionRows& rows, int64_t origin, int64_t count, Backward<A>& m, AttentionPairs& pairs) {
  constexpr int64_t tile_keys = attention_tile_keys<A>;
  const int64_t width = args.head_dim;
  const auto [first, last] = rows.all;
  if (first >= origin + count || last <= origin) return;
  pairs.attended += rows.pairs(origin, origin + count);
  BackwardRows<A> t{rows, {}, {}, {}};
  pack_queries<T>(args, t, m);
  for (int64_t offset = 0; offset < count; offset += tile_keys)
    if (first < origin + std::min(offset + tile_keys, count) && last > origin + offset)
      backward_tile<A>(t, origin + offset, std::min(tile_keys, count - offset), offset, width, static_cast<A>(args.scale), m, pairs);
  A* dq = static_cast<A*>(args.dq);
  const bool written = !args.overwrite || first < origin;  // by an earlier block
  for (int64_t r = 0; r < rows.count; ++r) {
    A* to = dq + rows.local[r] * args.dq_row + rows.head[r] * width;
    if (t.started[r / tile_rows]) give_row(m.dq + r * m.padded, width, to, !written);
    else if (!written) std::fill_n(to, width, A{0});
  }
}

template <class T, class A = accumulator_t<T>>
AttentionPairs backward_unit(const AttentionBackwardArgs& args, const AttentionPlan& plan, const AttentionUnit& unit, void* partial, void* memory) {
  Backward<A> m(static_cast<A*>(memory), args.head_dim);
  AttentionPairs pairs;
  for (int32_t index = unit.document; index < unit.document + unit.documents; ++index) {
    const AttentionDocument& document = plan.documents[index];
    const int64_t end = std::min(unit.end, document.query_count), part = unit.begin / document.part_queries, group = args.heads / args.kv_heads;
    A* dk = part > 0 ? partial_rows<A>(args, plan, document, part, false, partial) : nullptr;
    A* dv = part > 0 ? partial_rows<A>(args, plan, document, part, true, partial) : nullptr;
    const auto [first, last] = key_range(document, unit.begin, end, args.window);
    for (int64_t origin = 0; origin < document.key_count; origin += attention_block_keys<A>) {
      const int64_t count = std::min(attention_block_keys<A>, document.key_count - origin);
      if (first < origin + count && last > origin) {
        pack_block<T>(args, document, unit.kv_head, origin, count, m);
        for_each_tile(document, unit.begin, end, unit.kv_head * group, group, args.window, [&](const AttentionRows& rows) HWY_ATTR {
          backward_rows<T>(args, rows, origin, count, m, pairs);
        });
        finish_block(count, m);
      } else {
        if (part == 0 && !args.overwrite) continue;
        std::fill_n(m.dk, count * m.padded, A{0});
        std::fill_n(m.dv, count * m.padded, A{0});
      }
      give_key_gradients<A>(args, document, unit.kv_head, origin, count, m, dk, dv);
    }
  }
  return pairs;
}

template <class A>
void add_parts(const AttentionBackwardArgs& args, const AttentionPlan& plan, const AttentionDocument& document, const void* partial, int64_t begin,
               int64_t end) {
  const int64_t width = args.kv_heads * args.head_dim;
  for (int64_t key = begin; key < end; ++key) {
    int32_t local, global;
    locate(document.keys, key, 1, &local, &global);
    for (int64_t part = 1; part < document.parts(); ++part) {
      add_row(partial_rows<A>(args, plan, document, part, false, partial) + key * width, width, static_cast<A*>(args.dk) + local * args.dk_row);
      add_row(partial_rows<A>(args, plan, document, part, true, partial) + key * width, width, static_cast<A*>(args.dv) + local * args.dv_row);
    }
  }
}

}  // namespace

AttentionBackwardKernels backward_kernels(DType type) {
  switch (type) {
    case DType::f64: return {backward_unit<double>, add_parts<double>};
    case DType::f32: return {backward_unit<float>, add_parts<float>};
    default: return {backward_unit<bf16>, add_parts<float>};
  }
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
HWY_EXPORT(backward_kernels);
AttentionBackwardKernels attention_backward_kernels(const Rank& rank, DType type) { return QUIRE_PICK(rank, backward_kernels)(type); }
}  // namespace quire
#endif
