// Register tiles of the matrix product, for each instruction set. See ops/cpu/matmul.h.
#include "ops/cpu/matmul.h"

#include <algorithm>
#include <type_traits>

#include "ops/cpu/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/matmul_tiles.cpp"
#include "ops/cpu/targets.h"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/matmul-inl.h"
#include "ops/cpu/matmul_rounds-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

/// Where a tile's rows of A lie: packed ones at a[p * tile_rows + i], others at a[p * step + i * row].
struct Packed {};
struct InPlace {
  int64_t row, step;
};

template <class A> using Vector = hn::Vec<Tag<A>>;
template <int rows, int vectors, class A> using Sums = Vector<A>[rows][vectors];

/// sum += left right, rounded once.
template <class V>
HWY_INLINE void accumulate(V& sum, V left, V right) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  // The instruction is named because GCC, free to choose which operand the result replaces and to mix the steps of an unrolled loop,
  // copies sums between registers and spills some of them.
  if constexpr (sizeof(hn::LaneType<V>) == 8) __asm__ volatile("vfmadd231pd %2, %1, %0" : "+v"(sum.raw) : "v"(left.raw), "v"(right.raw));
  else __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(sum.raw) : "v"(left.raw), "v"(right.raw));
#else
  sum = hn::MulAdd(left, right, sum);
#endif
}

/// sum[...] += left right[...] for one row.
template <int vectors, class A>
HWY_INLINE void multiply_add(A left, const Vector<A> (&right)[vectors], Vector<A> (&sum)[vectors]) {
  const auto all = hn::Set(Tag<A>(), left);
#pragma GCC unroll 4
  for (int j = 0; j < vectors; ++j) accumulate(sum[j], all, right[j]);
}

template <int vectors, class A>
HWY_INLINE void load_panel(const A* b, Vector<A> (&right)[vectors]) {
#pragma GCC unroll 4
  for (int j = 0; j < vectors; ++j) right[j] = hn::Load(Tag<A>(), b + j * lanes<A>);
}

template <int steps, int rows, int vectors, class A>
HWY_INLINE void packed_steps(const A* HWY_RESTRICT a, const A* HWY_RESTRICT b, Sums<rows, vectors, A>& sum) {
#pragma GCC unroll 4
  for (int p = 0; p < steps; ++p) {
    Vector<A> right[vectors];
    load_panel(b + p * panel_columns<A>, right);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) multiply_add<vectors>(a[p * tile_rows + i], right, sum[i]);
  }
}

template <int rows, int vectors, class A>
HWY_INLINE void sum_products(Packed, int64_t depth, const A* a, const A* b, Sums<rows, vectors, A>& sum) {
  int64_t p = depth;
#if HWY_TARGET == HWY_AVX2
  if constexpr (rows == tile_rows && vectors > 1) {
    if (const int64_t rounds = depth / tile_steps; rounds > 0) sum_rounds(rounds, a, b, sum);
    p = depth % tile_steps;
  }
#elif HWY_TARGET == HWY_AVX3
  for (; p >= tile_steps; p -= tile_steps) {
    packed_steps<tile_steps, rows, vectors, A>(a, b, sum);
    a += tile_steps * tile_rows;
    b += tile_steps * panel_columns<A>;
  }
#endif
  for (; p > 0; --p, a += tile_rows, b += panel_columns<A>) packed_steps<1, rows, vectors, A>(a, b, sum);
}

template <int rows, int vectors, class A>
HWY_INLINE void sum_products(InPlace at, int64_t depth, const A* HWY_RESTRICT a, const A* HWY_RESTRICT b, Sums<rows, vectors, A>& sum) {
  // Few pointers and strides reach all rows, so that none of them leaves its register.
  const A* HWY_RESTRICT a0 = a;
  const A* HWY_RESTRICT a5 = rows > 5 ? a + 5 * at.row : a;
  const A* HWY_RESTRICT a10 = rows > 10 ? a + 10 * at.row : a;
  const int64_t row = at.row, row3 = 3 * at.row;
  for (int64_t p = 0; p < depth; ++p) {
    Vector<A> right[vectors];
    load_panel(b, right);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const A* base = i < 5 ? a0 : i < 10 ? a5 : a10;
      const int r = i % 5;
      multiply_add<vectors>(r == 0 ? base[0] : r == 1 ? base[row] : r == 2 ? base[2 * row] : r == 3 ? base[row3] : base[4 * row], right, sum[i]);
    }
    a0 += at.step;
    a5 += at.step;
    a10 += at.step;
    b += panel_columns<A>;
  }
}

/// One tile: c[rows, vectors of the panel] = or += a[rows, depth] b[depth, vectors of the panel].
template <int rows, int vectors, class A, class Rows>
HWY_INLINE void tile(Rows layout, int64_t depth, const A* a, const A* b, A* HWY_RESTRICT c, int64_t c_row, bool add) {
  const Tag<A> d;
  Sums<rows, vectors, A> sum;
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) sum[i][j] = hn::Zero(d);
  }
  sum_products<rows, vectors, A>(layout, depth, a, b, sum);
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < vectors; ++j) {
      A* at = c + i * c_row + j * lanes<A>;
      hn::StoreU(add ? hn::Add(hn::LoadU(d, at), sum[i][j]) : sum[i][j], d, at);
    }
  }
}

#if HWY_TARGET == HWY_AVX2
/// Two tiles of one vector each: c[2 * tile_rows, 1 vector] = or += a[...] b[depth, first vector of the panel].
template <class A>
HWY_INLINE void two_tiles(int64_t depth, const A* a, int64_t a_tile, const A* b, A* HWY_RESTRICT c, int64_t c_row, bool add) {
  const Tag<A> d;
  Sums<2 * tile_rows, 1, A> sum;
  const A* below = a + a_tile;
#pragma GCC unroll 8
  for (int i = 0; i < 2 * tile_rows; ++i) sum[i][0] = hn::Zero(d);
  if (const int64_t rounds = depth / tile_steps; rounds > 0) sum_rounds_of_two(rounds, a, below, b, sum);
  for (int64_t p = depth % tile_steps; p > 0; --p, a += tile_rows, below += tile_rows, b += panel_columns<A>)
#pragma GCC unroll 8
    for (int i = 0; i < 2 * tile_rows; ++i) accumulate(sum[i][0], hn::Set(d, i < tile_rows ? a[i] : below[i - tile_rows]), hn::Load(d, b));
#pragma GCC unroll 8
  for (int i = 0; i < 2 * tile_rows; ++i) hn::StoreU(add ? hn::Add(hn::LoadU(d, c + i * c_row), sum[i][0]) : sum[i][0], d, c + i * c_row);
}
#endif

/// A tile whose columns do not fill its vectors goes through a buffer, so that nothing right of C is touched.
template <int rows, int vectors, class A, class Rows>
HWY_NOINLINE void narrow_tile(Rows layout, int64_t depth, const A* a, const A* b, A* c, int64_t c_row, int64_t columns, bool add) {
  constexpr int64_t width = vectors * lanes<A>;
  HWY_ALIGN A buffer[rows * width];
  tile<rows, vectors, A>(layout, depth, a, b, buffer, width, false);
  for (int i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const A value = buffer[i * width + j];
      c[i * c_row + j] = add ? c[i * c_row + j] + value : value;
    }
}

/// Memory that is fetched in parts, one beside each tile.
class Fetching {
 public:
  Fetching(const void* begin, int64_t bytes, int64_t parts)
      : next_(static_cast<const char*>(begin)), end_(next_ + (begin == nullptr ? 0 : bytes)), part_(chunks_of(chunks_of(bytes, line), std::max<int64_t>(1, parts)) * line) {}
  HWY_INLINE void fetch_part() {
    for (const char* end = next_ + std::min<int64_t>(part_, end_ - next_); next_ < end; next_ += line) hwy::Prefetch(next_);
  }

 private:
  static constexpr int64_t line = 64;
  const char *next_, *end_;
  int64_t part_;
};

/// Fetches rows of C that a tile will write.
template <int vectors, class A>
HWY_INLINE void fetch_rows(const A* c, int64_t c_row, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i, c += c_row) {
    hwy::Prefetch(c);
    hwy::Prefetch(c + vectors * lanes<A> - 1);
  }
}

/// Where tiles of some rows are, from the top of A and C down.
template <class A>
struct TileRows {
  const A* a;
  A* c;
  int64_t rows;
};

/// Tiles of `tile_rows` rows whose columns fill their vectors, as many as there are. Each one fetches the rows of C of the one after it and its part of the next panel.
template <int vectors, bool add, class A, class Rows>
HWY_NOINLINE void whole_tiles(Rows layout, int64_t a_tile, const A* b, Fetching next, int64_t depth, int64_t c_row, TileRows<A>& at) {
  fetch_rows<vectors>(at.c, c_row, std::min<int64_t>(at.rows, tile_rows));
#if HWY_TARGET == HWY_AVX2
  if constexpr (vectors == 1 && std::is_same_v<Rows, Packed>)
    for (; at.rows >= 2 * tile_rows; at.rows -= 2 * tile_rows, at.a += 2 * a_tile, at.c += 2 * tile_rows * c_row) {
      fetch_rows<vectors>(at.c + 2 * tile_rows * c_row, c_row, std::min<int64_t>(at.rows - 2 * tile_rows, 2 * tile_rows));
      next.fetch_part();
      two_tiles<A>(depth, at.a, a_tile, b, at.c, c_row, add);
    }
#endif
  for (; at.rows >= tile_rows; at.rows -= tile_rows, at.a += a_tile, at.c += tile_rows * c_row) {
    fetch_rows<vectors>(at.c + tile_rows * c_row, c_row, std::min<int64_t>(at.rows - tile_rows, tile_rows));
    next.fetch_part();
    tile<tile_rows, vectors, A>(layout, depth, at.a, b, at.c, c_row, add);
  }
}

/// Tiles of `tile_rows` rows, then lower ones.
template <int vectors, class A, class Rows>
void multiply_tiles(Rows layout, const MatmulRows& a, const A* b, const A* next, int64_t depth, int64_t rows, int64_t columns, A* c, int64_t c_row, bool add) {
  TileRows<A> at{static_cast<const A*>(a.data), c, rows};
  if (columns == vectors * lanes<A>) {
    const Fetching fetching(next, depth * panel_columns<A> * static_cast<int64_t>(sizeof(A)), rows / tile_rows);
    if (add) whole_tiles<vectors, true>(layout, a.tile, b, fetching, depth, c_row, at);
    else whole_tiles<vectors, false>(layout, a.tile, b, fetching, depth, c_row, at);
  }
  for (; at.rows >= tile_rows; at.rows -= tile_rows, at.a += a.tile, at.c += tile_rows * c_row)
    narrow_tile<tile_rows, vectors, A>(layout, depth, at.a, b, at.c, c_row, columns, add);
  const auto some = [&]<int count>(std::integral_constant<int, count>) HWY_ATTR {
    if constexpr (count < tile_rows) {
      if (at.rows < count) return;
      narrow_tile<count, vectors, A>(layout, depth, at.a, b, at.c, c_row, columns, add);
      at.a += count * a.row;
      at.c += count * c_row;
      at.rows -= count;
    }
  };
  some(std::integral_constant<int, 8>());
  some(std::integral_constant<int, 4>());
  some(std::integral_constant<int, 2>());
  some(std::integral_constant<int, 1>());
}

/// As many vectors of the panel as hold the columns.
template <class A, class Rows>
void multiply_vectors(Rows layout, const MatmulRows& a, const A* b, const A* next, int64_t depth, int64_t rows, int64_t columns, A* c, int64_t c_row, bool add) {
  const auto try_with = [&]<int vectors>(std::integral_constant<int, vectors>) HWY_ATTR {
    if (columns > (vectors - 1) * lanes<A>) multiply_tiles<vectors>(layout, a, b, next, depth, rows, columns, c, c_row, add);
    return columns > (vectors - 1) * lanes<A>;
  };
  if (try_with(std::integral_constant<int, tile_vectors>())) return;
  if constexpr (tile_vectors > 2) {
    if constexpr (tile_vectors > 3)
      if (try_with(std::integral_constant<int, 3>())) return;
    if (try_with(std::integral_constant<int, 2>())) return;
  }
  try_with(std::integral_constant<int, 1>());
}

template <class A>
void multiply(const MatmulRows& a, const void* panel, const void* next_panel, int64_t depth, int64_t rows, int64_t columns, void* c, int64_t c_row, bool add) {
  const A *b = static_cast<const A*>(panel), *next = static_cast<const A*>(next_panel);
  if (a.row == 1 && a.step == tile_rows) multiply_vectors(Packed{}, a, b, next, depth, rows, columns, static_cast<A*>(c), c_row, add);
  else multiply_vectors(InPlace{a.row, a.step}, a, b, next, depth, rows, columns, static_cast<A*>(c), c_row, add);
}

void round_rows(const float* sum, int64_t sum_row, int64_t rows, int64_t columns, void* c_pointer, int64_t c_row, bool add) {
  const Tag<bf16> d;
  for (int64_t i = 0; i < rows; ++i) {
    const float* from = sum + i * sum_row;
    bf16* to = static_cast<bf16*>(c_pointer) + i * c_row;
    for_each_vector(d, columns, [&](int64_t j, int64_t n) HWY_ATTR {
      auto value = load_first(d, from + j, n);
      if (add) value = hn::Add(load_first(d, to + j, n), value);
      store_first(d, value, to + j, n);
    });
  }
}

template <class T>
MatmulTiles tiles_of() {
  using A = AccumulatorType<T>;
  // Where 32 registers make high tiles, their many rows need no packing: each value is used for two vectors of 16 (measured with AVX-512).
  return {tile_rows, panel_columns<A>, tile_rows > 8 && !std::is_same_v<T, bf16>, multiply<A>, std::is_same_v<T, bf16> ? round_rows : nullptr};
}

}  // namespace

MatmulTiles tiles_for(DType type) {
  if (type == DType::f64) return tiles_of<double>();
  return type == DType::f32 ? tiles_of<float>() : tiles_of<bf16>();
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {

HWY_EXPORT(tiles_for);
MatmulTiles matmul_tiles(const Rank& rank, DType type) { return QUIRE_PICK(rank, tiles_for)(type); }

}  // namespace quire
#endif
