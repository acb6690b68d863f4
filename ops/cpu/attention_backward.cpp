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
/// Queries of a tile: q, dout and the sum dq by row; probabilities and score gradients [tile queries, tile keys].
template <class A>
struct Backward {
  A *keys_transposed, *values_transposed, *keys, *dk, *dv, *query, *dout, *dq, *probabilities, *dscores;
  int64_t padded;

  Backward(A* memory, int64_t head_dim) : padded(attention_padded<A>(head_dim)) {
    const int64_t block = attention_block_keys<A> * padded, rows = attention_tile_queries * padded;
    keys_transposed = memory;
    values_transposed = keys_transposed + block;
    keys = values_transposed + block;
    dk = keys + block;
    dv = dk + block;
    query = dv + block;
    dout = query + rows;
    dq = dout + rows;
    probabilities = dq + rows;
    dscores = probabilities + attention_tile_queries * attention_tile_keys<A>;
  }
};

template <class T, class A = accumulator_t<T>>
void pack_block(const AttentionBackwardArgs& args, const AttentionDocument& document, int64_t kv_head, int64_t origin, int64_t count,
                Backward<A>& m) {
  constexpr int64_t tile_keys = attention_tile_keys<A>;
  const int64_t width = args.head_dim;
  const T *k = static_cast<const T*>(args.k) + kv_head * width, *v = static_cast<const T*>(args.v) + kv_head * width;
  for (int64_t begin = 0; begin < count; begin += tile_keys) {
    const int64_t here = std::min(tile_keys, count - begin);
    int32_t local[tile_keys], global[tile_keys];
    locate(document.keys, origin + begin, here, local, global);
    pack_transposed<T>(k, args.k_row, local, here, width, static_cast<A>(args.scale), m.keys_transposed + begin * width);
    pack_transposed<T>(v, args.v_row, local, here, width, A{1}, m.values_transposed + begin * width);
    pack_rows<T>(k, args.k_row, local, here, width, m.keys + begin * m.padded, m.padded);
  }
  std::fill_n(m.dk, count * m.padded, A{0});
  std::fill_n(m.dv, count * m.padded, A{0});
}

/// Probabilities and score gradients of one row from its scores and dout v; zero outside of [first, last) over the whole tile.
template <class A>
HWY_INLINE void row_gradient(A* HWY_RESTRICT p, A* HWY_RESTRICT ds, int64_t begin, int64_t end, int64_t first, int64_t last, A lse, A delta, A scale) {
  const hn::ScalableTag<A> d;
  const int64_t lanes = lanes_of<A>();
  const auto zero = hn::Zero(d), shift = hn::Set(d, lse), less = hn::Set(d, delta), factor = hn::Set(d, scale);
  if (first >= last) begin = end = 0;
  for (int64_t c = 0; c < begin; c += lanes) {
    hn::StoreU(zero, d, p + c);
    hn::StoreU(zero, d, ds + c);
  }
  for (int64_t c = begin; c < end; c += lanes) {
    auto probability = exponential(d, hn::Sub(hn::LoadU(d, p + c), shift));
    auto gradient = hn::Mul(hn::Mul(probability, factor), hn::Sub(hn::LoadU(d, ds + c), less));
    if (c < first || c + lanes > last) {
      const auto inside = within(d, c, first, last);
      probability = hn::IfThenElseZero(inside, probability);
      gradient = hn::IfThenElseZero(inside, gradient);
    }
    hn::StoreU(probability, d, p + c);
    hn::StoreU(gradient, d, ds + c);
  }
  for (int64_t c = end; c < attention_tile_keys<A>; c += lanes) {
    hn::StoreU(zero, d, p + c);
    hn::StoreU(zero, d, ds + c);
  }
}

/// dv += p^T dout and dk += ds^T q over the keys [0, count) of a tile. A group of keys takes only the rows that read one of them.
template <class A>
void add_key_gradients(const AttentionRows& rows, int64_t origin, int64_t count, int64_t tile_offset, int64_t vectors, const Backward<A>& m) {
  constexpr int64_t tile_keys = attention_tile_keys<A>;
  int64_t begin = 0, end = rows.count;
  for (int64_t key = 0; key < count; key += tile_rows) {
    const int64_t group = std::min(tile_rows, count - key), low = origin + key, high = low + group;
    while (begin < rows.count && rows.last[begin] <= low) ++begin;
    end = rows.count;
    while (end > begin && rows.first[end - 1] >= high) --end;
    if (begin >= end) continue;
    const int64_t at = begin * tile_keys + key, place = (tile_offset + key) * m.padded;
    multiply_rows<A>(group, vectors, end - begin, m.probabilities + at, 1, tile_keys, m.dout + begin * m.padded, m.padded, m.dv + place, m.padded, true);
    multiply_rows<A>(group, vectors, end - begin, m.dscores + at, 1, tile_keys, m.query + begin * m.padded, m.padded, m.dk + place, m.padded, true);
  }
}

/// Queries of one tile and head against keys [origin, origin + count) of the block.
template <class T, class A = accumulator_t<T>>
void backward_tile(const AttentionBackwardArgs& args, AttentionRows& rows, int64_t head, int64_t origin, int64_t count, Backward<A>& m,
                   int64_t& computed) {
  constexpr int64_t tile_keys = attention_tile_keys<A>;
  const int64_t lanes = lanes_of<A>(), width = args.head_dim, vectors = chunks_of(width, lanes);
  A lse[attention_tile_queries], delta[attention_tile_queries];
  for (int64_t r = 0; r < rows.count; ++r) {
    lse[r] = static_cast<const A*>(args.lse)[rows.local[r] * args.heads + head];
    delta[r] = static_cast<const A*>(args.delta)[rows.local[r] * args.heads + head];
  }
  pack_rows<T>(static_cast<const T*>(args.q) + head * width, args.q_row, rows.local, rows.count, width, m.query, m.padded);
  pack_rows<T>(static_cast<const T*>(args.dout) + head * width, args.dout_row, rows.local, rows.count, width, m.dout, m.padded);
  std::fill_n(m.dq, rows.count * m.padded, A{0});
  for (int64_t tile = 0; tile < count; tile += tile_keys) {
    const int64_t start = origin + tile, here = std::min(tile_keys, count - tile);
    int64_t tile_first, tile_last;
    rows.range(0, rows.count, tile_first, tile_last);
    if (tile_first >= start + here || tile_last <= start) continue;
    for (int64_t row = 0; row < rows.count; row += tile_rows) {
      const int64_t group = std::min(tile_rows, rows.count - row);
      int64_t first, last;
      rows.range(row, row + group, first, last);
      const int64_t from = std::max<int64_t>(first - start, 0), to = std::min(last - start, here);
      const int64_t column = from < to ? from / lanes * lanes : 0, end = from < to ? chunks_of(to, lanes) * lanes : 0;
      A *p = m.probabilities + row * tile_keys, *ds = m.dscores + row * tile_keys;
      if (from < to) {
        multiply_rows<A>(group, (end - column) / lanes, width, m.query + row * m.padded, m.padded, 1, m.keys_transposed + tile * width + column,
                         tile_keys, p + column, tile_keys, false);
        multiply_rows<A>(group, (end - column) / lanes, width, m.dout + row * m.padded, m.padded, 1, m.values_transposed + tile * width + column,
                         tile_keys, ds + column, tile_keys, false);
        computed += group * (end - column);
      }
      for (int64_t r = row; r < row + group; ++r) {
        // Rows that read nothing at all (lse -infinity) contribute nothing.
        const int64_t row_last = lse[r] == -std::numeric_limits<A>::infinity() ? 0 : rows.last[r] - start;
        row_gradient<A>(m.probabilities + r * tile_keys, m.dscores + r * tile_keys, column, end, rows.first[r] - start, row_last, lse[r], delta[r],
                        static_cast<A>(args.scale));
      }
      if (from < to)
        multiply_rows<A>(group, vectors, to - from, ds + from, tile_keys, 1, m.keys + (tile + from) * m.padded, m.padded, m.dq + row * m.padded,
                         m.padded, true);
    }
    add_key_gradients<A>(rows, start, here, tile, vectors, m);
  }
}

template <class A>
void add_row(const A* HWY_RESTRICT from, int64_t width, A* HWY_RESTRICT to) {
  for (int64_t i = 0; i < width; ++i) to[i] += from[i];
}

template <class T, class A = accumulator_t<T>>
void backward_block(const AttentionBackwardArgs& args, const AttentionDocument& document, const AttentionUnit& unit, int64_t origin,
                    int64_t count, Backward<A>& m, int64_t& computed) {
  const int64_t width = args.head_dim;
  pack_block<T>(args, document, unit.kv_head, origin, count, m);
  for (int64_t head = unit.head_begin; head < unit.head_end; ++head)
    for (int64_t begin = 0; begin < document.query_count; begin += attention_tile_queries) {
      AttentionRows rows = attention_rows(document, begin, std::min(attention_tile_queries, document.query_count - begin), args.window);
      int64_t first, last;
      rows.range(0, rows.count, first, last);
      if (first >= origin + count || last <= origin) continue;
      backward_tile<T>(args, rows, head, origin, count, m, computed);
      A* dq = static_cast<A*>(args.dq);
      for (int64_t r = 0; r < rows.count; ++r)
        add_row(m.dq + r * m.padded, width, dq + (rows.local[r] * args.heads + head) * width);
    }
  for (int64_t begin = 0; begin < count; begin += attention_tile_keys<A>) {
    const int64_t here = std::min(attention_tile_keys<A>, count - begin);
    int32_t local[attention_tile_keys<A>], global[attention_tile_keys<A>];
    locate(document.keys, origin + begin, here, local, global);
    for (int64_t i = 0; i < here; ++i) {
      const int64_t place = (local[i] * args.kv_heads + unit.kv_head) * width;
      add_row(m.dk + (begin + i) * m.padded, width, static_cast<A*>(args.dk) + place);
      add_row(m.dv + (begin + i) * m.padded, width, static_cast<A*>(args.dv) + place);
    }
  }
}

template <class T, class A = accumulator_t<T>>
int64_t backward_unit(const AttentionBackwardArgs& args, const AttentionPlan& plan, const AttentionUnit& unit, void* memory) {
  Backward<A> m(static_cast<A*>(memory), args.head_dim);
  int64_t computed = 0;
  for (int32_t index = unit.document; index < unit.document + unit.documents; ++index) {
    const AttentionDocument& document = plan.documents[index];
    for (int64_t origin = 0; origin < document.key_count; origin += attention_block_keys<A>)
      backward_block<T>(args, document, unit, origin, std::min(attention_block_keys<A>, document.key_count - origin), m, computed);
  }
  return computed;
}

}  // namespace

AttentionBackwardKernels backward_kernels(DType type) {
  switch (type) {
    case DType::f64: return {backward_unit<double>};
    case DType::f32: return {backward_unit<float>};
    default: return {backward_unit<bf16>};
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
