// Register tiles and packing of the matrix product, for each instruction set. See ops/cpu/matmul.h.
#include "ops/cpu/matmul.h"

#include <algorithm>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/matmul_tiles.cpp"
#include "ops/cpu/targets.h"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Accumulators, two vectors of B and one of A fill the 32 registers of AVX-512 (14 x 2) and the 16 of AVX2 (6 x 2).
// Portable vectors are single numbers: a small square of them.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
constexpr int tile_rows = 4, tile_vectors = 4;
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int tile_rows = 14, tile_vectors = 2;
#else
constexpr int tile_rows = 6, tile_vectors = 2;
#endif

template <class T> using AccumulatorOf = std::conditional_t<std::is_same_v<T, double>, double, float>;
template <class A> using Tag = hn::ScalableTag<A>;
template <class A> constexpr int64_t lanes = static_cast<int64_t>(hn::MaxLanes(Tag<A>()));
template <class A> constexpr int64_t panel_columns = tile_vectors * lanes<A>;

HWY_INLINE double widen(double x) { return x; }
HWY_INLINE float widen(float x) { return x; }
HWY_INLINE float widen(bf16 x) { return static_cast<float>(x); }

/// As many values as the tag's vector holds, widened.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_widened(D d, const T* x) {
  if constexpr (std::is_same_v<T, bf16>) {
    const hn::RebindToUnsigned<D> bits;
    const hn::Rebind<uint16_t, D> half_bits;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(bits, hn::LoadU(half_bits, reinterpret_cast<const uint16_t*>(x)))));
  } else {
    return hn::LoadU(d, x);
  }
}

/// One tile: c[rows, panel] = or += a[rows, depth] b[depth, panel].
template <int rows, class A>
HWY_INLINE void tile(int64_t depth, const A* HWY_RESTRICT a, int64_t a_row, int64_t a_step, const A* HWY_RESTRICT b, A* HWY_RESTRICT c, int64_t c_row, bool add) {
  const Tag<A> d;
  using V = hn::Vec<Tag<A>>;
  V sum[rows][tile_vectors];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; ++j) sum[i][j] = hn::Zero(d);
    hwy::Prefetch(c + i * c_row);
    hwy::Prefetch(c + i * c_row + panel_columns<A> - 1);
  }
  // Few pointers and strides reach all rows, so that none of them leaves its register.
  const A* HWY_RESTRICT a0 = a;
  const A* HWY_RESTRICT a5 = rows > 5 ? a + 5 * a_row : a;
  const A* HWY_RESTRICT a10 = rows > 10 ? a + 10 * a_row : a;
  const int64_t a_row3 = 3 * a_row;
  for (int64_t p = 0; p < depth; ++p) {
    V right[tile_vectors];
#pragma GCC unroll 4
    for (int j = 0; j < tile_vectors; ++j) right[j] = hn::Load(d, b + j * lanes<A>);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const A* base = i < 5 ? a0 : i < 10 ? a5 : a10;
      const int r = i % 5;
      const V left = hn::Set(d, r == 0 ? base[0] : r == 1 ? base[a_row] : r == 2 ? base[2 * a_row] : r == 3 ? base[a_row3] : base[4 * a_row]);
#pragma GCC unroll 4
      for (int j = 0; j < tile_vectors; ++j) sum[i][j] = hn::MulAdd(left, right[j], sum[i][j]);
    }
    a0 += a_step;
    a5 += a_step;
    a10 += a_step;
    b += panel_columns<A>;
  }
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
template <int rows, class A>
HWY_NOINLINE void tile_any(int64_t depth, const A* a, int64_t a_row, int64_t a_step, const A* b, A* c, int64_t c_row, int64_t columns, bool add) {
  const bool whole = columns == panel_columns<A>;
  HWY_ALIGN A buffer[rows * panel_columns<A>];
  tile<rows, A>(depth, a, a_row, a_step, b, whole ? c : buffer, whole ? c_row : panel_columns<A>, add && whole);
  if (whole) return;
  for (int i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const A value = buffer[i * panel_columns<A> + j];
      c[i * c_row + j] = add ? c[i * c_row + j] + value : value;
    }
}

template <class A>
void multiply(const MatmulRows& a, const void* panel, int64_t depth, int64_t rows, int64_t columns, void* c_pointer, int64_t c_row, bool add) {
  const A* b = static_cast<const A*>(panel);
  A* c = static_cast<A*>(c_pointer);
  const A* data = static_cast<const A*>(a.data);
  for (; rows >= tile_rows; rows -= tile_rows) {
    tile_any<tile_rows, A>(depth, data, a.row, a.step, b, c, c_row, columns, add);
    data += a.tile;
    c += tile_rows * c_row;
  }
  const auto some = [&]<int count>(std::integral_constant<int, count>) HWY_ATTR {
    if constexpr (count < tile_rows) {
      if (rows < count) return;
      tile_any<count, A>(depth, data, a.row, a.step, b, c, c_row, columns, add);
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

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
/// A vector whose block b of 128 bits holds consecutive values from row b * (values in a block).
template <class D, class T>
HWY_INLINE hn::Vec<D> load_blocks(D d, const T* x, int64_t row) {
  if constexpr (hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) <= 16) {
    return load_widened(d, x);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, load_blocks(half, x + static_cast<int64_t>(hn::MaxLanes(D()) / 2) * row, row), load_blocks(half, x, row));
  }
}
#endif

/// Transposes steps [0, returned) of a vector's width of columns: out[p * panel + j] = x[j * row + p].
template <class T>
HWY_INLINE int64_t transpose_columns(const T* x, int64_t row, int64_t depth, AccumulatorOf<T>* out) {
  int64_t p = 0;
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  using A = AccumulatorOf<T>;
  const Tag<A> d;
  constexpr int64_t panel = panel_columns<A>;
  if constexpr (sizeof(A) == 4) {
    const hn::Repartition<double, Tag<A>> wide;
    for (; p + 4 <= depth; p += 4, out += 4 * panel) {
      const auto x0 = load_blocks(d, x + p, row), x1 = load_blocks(d, x + p + row, row);
      const auto x2 = load_blocks(d, x + p + 2 * row, row), x3 = load_blocks(d, x + p + 3 * row, row);
      const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, x0, x1)), high01 = hn::BitCast(wide, hn::InterleaveUpper(d, x0, x1));
      const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, x2, x3)), high23 = hn::BitCast(wide, hn::InterleaveUpper(d, x2, x3));
      hn::Store(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, out);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, out + panel);
      hn::Store(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d, out + 2 * panel);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d, out + 3 * panel);
    }
  } else {
    for (; p + 2 <= depth; p += 2, out += 2 * panel) {
      const auto x0 = load_blocks(d, x + p, row), x1 = load_blocks(d, x + p + row, row);
      hn::Store(hn::InterleaveLower(d, x0, x1), d, out);
      hn::Store(hn::InterleaveUpper(d, x0, x1), d, out + panel);
    }
  }
#else
  (void)x, (void)row, (void)depth, (void)out;
#endif
  return p;
}

template <class T>
void pack_b(const void* b_pointer, int64_t b_row, int64_t b_col, int64_t depth, int64_t columns, void* panel) {
  using A = AccumulatorOf<T>;
  const Tag<A> d;
  const T* b = static_cast<const T*>(b_pointer);
  A* out = static_cast<A*>(panel);
  constexpr int64_t width = panel_columns<A>;
  if (columns == width && b_col == 1) {
    for (int64_t p = 0; p < depth; ++p) {
      hwy::Prefetch(b + std::min(p + 16, depth - 1) * b_row);  // far apart: the processor does not foresee them
      for (int j = 0; j < tile_vectors; ++j) hn::Store(load_widened(d, b + p * b_row + j * lanes<A>), d, out + p * width + j * lanes<A>);
    }
    return;
  }
  int64_t done = 0;
  if (columns == width && b_row == 1)
    for (int j = 0; j < tile_vectors; ++j) done = transpose_columns(b + j * lanes<A> * b_col, b_col, depth, out + j * lanes<A>);
  for (int64_t p = done; p < depth; ++p) {
    for (int64_t j = 0; j < columns; ++j) out[p * width + j] = widen(b[p * b_row + j * b_col]);
    for (int64_t j = columns; j < width; ++j) out[p * width + j] = 0;
  }
}

/// Rows that are contiguous in k stay rows.
template <class T>
MatmulRows widen_rows(const T* a, int64_t a_row, int64_t rows, int64_t depth, AccumulatorOf<T>* out) {
  using A = AccumulatorOf<T>;
  const Tag<A> d;
  const int64_t out_row = matmul_depth + 16;  // not a power of two: rows of a tile must not meet in one cache set
  for (int64_t i = 0; i < rows; ++i) {
    const T* from = a + i * a_row;
    A* to = out + i * out_row;
    int64_t p = 0;
    for (; p + lanes<A> <= depth; p += lanes<A>) hn::StoreU(load_widened(d, from + p), d, to + p);
    for (; p < depth; ++p) to[p] = widen(from[p]);
  }
  return {out, tile_rows * out_row, out_row, 1};
}

/// Rows that are contiguous in i become panels out[t][p][r] of one tile's rows each.
template <class T>
MatmulRows pack_a(const void* a_pointer, int64_t a_row, int64_t a_col, int64_t rows, int64_t readable, int64_t depth, void* out_pointer) {
  using A = AccumulatorOf<T>;
  const Tag<A> d;
  const T* a = static_cast<const T*>(a_pointer);
  A* out = static_cast<A*>(out_pointer);
  if (a_col == 1) return widen_rows(a, a_row, rows, depth, out);
  constexpr int64_t vectors = (tile_rows + lanes<A> - 1) / lanes<A>;
  const int64_t panel = depth * tile_rows + 16;  // whole vectors are written, which reach past a panel's end
  const int64_t fast = a_row == 1 ? std::min((rows + tile_rows - 1) / tile_rows, readable < vectors * lanes<A> ? 0 : (readable - vectors * lanes<A>) / tile_rows + 1) : 0;
  for (int64_t p = 0; p < depth; ++p) {
    const T* from = a + p * a_col;
    A* to = out + p * tile_rows;
    for (int64_t i = 0; i < rows; i += 64 / static_cast<int64_t>(sizeof(T))) hwy::Prefetch(a + std::min(p + 8, depth - 1) * a_col + i * a_row);
    for (int64_t t = 0; t < fast; ++t)
      for (int64_t v = 0; v < vectors; ++v) hn::StoreU(load_widened(d, from + t * tile_rows + v * lanes<A>), d, to + t * panel + v * lanes<A>);
    for (int64_t i = fast * tile_rows; i < rows; ++i) to[i / tile_rows * panel + i % tile_rows] = widen(from[i * a_row]);
  }
  return {out, panel, 1, tile_rows};
}

void round_rows(const float* sum, int64_t sum_row, int64_t rows, int64_t columns, void* c_pointer, int64_t c_row, bool add) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* from = sum + i * sum_row;
    bf16* to = static_cast<bf16*>(c_pointer) + i * c_row;
    if (add)
      for (int64_t j = 0; j < columns; ++j) to[j] = bf16(static_cast<float>(to[j]) + from[j]);
    else
      for (int64_t j = 0; j < columns; ++j) to[j] = bf16(from[j]);
  }
}

template <class T>
MatmulTiles tiles_of() {
  using A = AccumulatorOf<T>;
  return {tile_rows, panel_columns<A>, pack_b<T>, pack_a<T>, multiply<A>, std::is_same_v<T, bf16> ? round_rows : nullptr};
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
