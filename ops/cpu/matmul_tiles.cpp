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

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

/// Where a tile's rows of A lie: packed ones at a[p * tile_rows + i], others at a[p * step + i * row].
struct Packed {};
struct InPlace {
  int64_t row, step;
};

template <class A> using Vector = hn::Vec<Tag<A>>;
template <int rows, class A> using Sums = Vector<A>[rows][tile_vectors];

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
template <class A>
HWY_INLINE void multiply_add(A left, const Vector<A> (&right)[tile_vectors], Vector<A> (&sum)[tile_vectors]) {
  const auto all = hn::Set(Tag<A>(), left);
#pragma GCC unroll 4
  for (int j = 0; j < tile_vectors; ++j) accumulate(sum[j], all, right[j]);
}

template <class A>
HWY_INLINE void load_panel(const A* b, Vector<A> (&right)[tile_vectors]) {
#pragma GCC unroll 4
  for (int j = 0; j < tile_vectors; ++j) right[j] = hn::Load(Tag<A>(), b + j * lanes<A>);
}

template <int steps, int rows, class A>
HWY_INLINE void packed_steps(const A* HWY_RESTRICT a, const A* HWY_RESTRICT b, Sums<rows, A>& sum) {
#pragma GCC unroll 4
  for (int p = 0; p < steps; ++p) {
    Vector<A> right[tile_vectors];
    load_panel(b + p * panel_columns<A>, right);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) multiply_add(a[p * tile_rows + i], right, sum[i]);
  }
}

template <int rows, class A>
HWY_INLINE void sum_products(Packed, int64_t depth, const A* HWY_RESTRICT a, const A* HWY_RESTRICT b, Sums<rows, A>& sum) {
  int64_t p = 0;
  for (; p + tile_steps <= depth; p += tile_steps) {
    packed_steps<tile_steps, rows, A>(a, b, sum);
    a += tile_steps * tile_rows;
    b += tile_steps * panel_columns<A>;
  }
  for (; p < depth; ++p, a += tile_rows, b += panel_columns<A>) packed_steps<1, rows, A>(a, b, sum);
}

template <int rows, class A>
HWY_INLINE void sum_products(InPlace at, int64_t depth, const A* HWY_RESTRICT a, const A* HWY_RESTRICT b, Sums<rows, A>& sum) {
  // Few pointers and strides reach all rows, so that none of them leaves its register.
  const A* HWY_RESTRICT a0 = a;
  const A* HWY_RESTRICT a5 = rows > 5 ? a + 5 * at.row : a;
  const A* HWY_RESTRICT a10 = rows > 10 ? a + 10 * at.row : a;
  const int64_t row = at.row, row3 = 3 * at.row;
  for (int64_t p = 0; p < depth; ++p) {
    Vector<A> right[tile_vectors];
    load_panel(b, right);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const A* base = i < 5 ? a0 : i < 10 ? a5 : a10;
      const int r = i % 5;
      multiply_add(r == 0 ? base[0] : r == 1 ? base[row] : r == 2 ? base[2 * row] : r == 3 ? base[row3] : base[4 * row], right, sum[i]);
    }
    a0 += at.step;
    a5 += at.step;
    a10 += at.step;
    b += panel_columns<A>;
  }
}

/// One tile: c[rows, panel] = or += a[rows, depth] b[depth, panel].
template <int rows, class A, class Rows>
HWY_INLINE void tile(Rows layout, int64_t depth, const A* a, const A* b, A* HWY_RESTRICT c, int64_t c_row, bool add) {
  const Tag<A> d;
  Sums<rows, A> sum;
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; ++j) sum[i][j] = hn::Zero(d);
    hwy::Prefetch(c + i * c_row);
    hwy::Prefetch(c + i * c_row + panel_columns<A> - 1);
  }
  sum_products<rows, A>(layout, depth, a, b, sum);
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; ++j) {
      A* at = c + i * c_row + j * lanes<A>;
      hn::StoreU(add ? hn::Add(hn::LoadU(d, at), sum[i][j]) : sum[i][j], d, at);
    }
  }
}

/// A tile with fewer columns than a panel goes through a buffer, so that nothing right of C is touched.
template <int rows, class A, class Rows>
HWY_NOINLINE void tile_any(Rows layout, int64_t depth, const A* a, const A* b, A* c, int64_t c_row, int64_t columns, bool add) {
  const bool whole = columns == panel_columns<A>;
  HWY_ALIGN A buffer[rows * panel_columns<A>];
  tile<rows, A>(layout, depth, a, b, whole ? c : buffer, whole ? c_row : panel_columns<A>, add && whole);
  if (whole) return;
  for (int i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const A value = buffer[i * panel_columns<A> + j];
      c[i * c_row + j] = add ? c[i * c_row + j] + value : value;
    }
}

/// Tiles of `tile_rows` rows, then lower ones.
template <class A, class Rows>
void multiply_tiles(Rows layout, const MatmulRows& a, const A* b, int64_t depth, int64_t rows, int64_t columns, A* c, int64_t c_row, bool add) {
  const A* data = static_cast<const A*>(a.data);
  for (; rows >= tile_rows; rows -= tile_rows) {
    tile_any<tile_rows, A>(layout, depth, data, b, c, c_row, columns, add);
    data += a.tile;
    c += tile_rows * c_row;
  }
  const auto some = [&]<int count>(std::integral_constant<int, count>) HWY_ATTR {
    if constexpr (count < tile_rows) {
      if (rows < count) return;
      tile_any<count, A>(layout, depth, data, b, c, c_row, columns, add);
      data += count * a.row;
      c += count * c_row;
      rows -= count;
    }
  };
  some(std::integral_constant<int, 8>());
  some(std::integral_constant<int, 4>());
  some(std::integral_constant<int, 2>());
  some(std::integral_constant<int, 1>());
}

template <class A>
void multiply(const MatmulRows& a, const void* panel, int64_t depth, int64_t rows, int64_t columns, void* c, int64_t c_row, bool add) {
  const A* b = static_cast<const A*>(panel);
  if (a.row == 1 && a.step == tile_rows) multiply_tiles(Packed{}, a, b, depth, rows, columns, static_cast<A*>(c), c_row, add);
  else multiply_tiles(InPlace{a.row, a.step}, a, b, depth, rows, columns, static_cast<A*>(c), c_row, add);
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
