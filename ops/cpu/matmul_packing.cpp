// Packing of the matrix product's operands, for each instruction set. See ops/cpu/matmul.h.
#include "ops/cpu/matmul.h"

#include <algorithm>
#include <type_traits>

#include "ops/cpu/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/matmul_packing.cpp"
#include "ops/cpu/targets.h"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
/// A vector whose block b of 128 bits holds values [p, p + values in a block) of row b * (values in a block).
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const hn::TFromD<D>* const* rows, int64_t p) {
  if constexpr (hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) <= 16) {
    return hn::LoadU(d, rows[0] + p);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, load_blocks(half, rows + hn::MaxLanes(D()) / 2, p), load_blocks(half, rows, p));
  }
}

/// The same of bf16: blocks of four are put together before they are widened.
template <class D>
HWY_INLINE hn::Vec<D> load_block_bits(D d, const bf16* const* rows, int64_t p) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return hn::LoadU(d, reinterpret_cast<const uint16_t*>(rows[0] + p));
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, load_block_bits(half, rows + hn::MaxLanes(D()) / 2, p), load_block_bits(half, rows, p));
  }
}
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const bf16* const* rows, int64_t p) {
  const auto bits = load_block_bits(hn::Rebind<uint16_t, D>(), rows, p);
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<D>(), bits)));
}
#endif

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
/// Transposes as many steps as a block of 128 bits holds values: out[s * out_step + r] = rows[r][p + s].
template <class D, class T>
HWY_INLINE void transpose_block(D d, const T* const* rows, int64_t p, hn::TFromD<D>* out, int64_t out_step) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    const hn::Repartition<double, D> wide;
    const auto x0 = load_blocks(d, rows, p), x1 = load_blocks(d, rows + 1, p), x2 = load_blocks(d, rows + 2, p), x3 = load_blocks(d, rows + 3, p);
    const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, x0, x1)), high01 = hn::BitCast(wide, hn::InterleaveUpper(d, x0, x1));
    const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, x2, x3)), high23 = hn::BitCast(wide, hn::InterleaveUpper(d, x2, x3));
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, out);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, out + out_step);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d, out + 2 * out_step);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d, out + 3 * out_step);
  } else {
    const auto x0 = load_blocks(d, rows, p), x1 = load_blocks(d, rows + 1, p);
    hn::StoreU(hn::InterleaveLower(d, x0, x1), d, out);
    hn::StoreU(hn::InterleaveUpper(d, x0, x1), d, out + out_step);
  }
}
#endif

#if HWY_TARGET == HWY_AVX2
/// Eight steps of four rows at once: out[s * out_step + r] = rows[r][p + s].
template <class T>
HWY_INLINE void transpose_four(const T* const* rows, int64_t p, float* out, int64_t out_step) {
  const Tag<float> d;
  const hn::Half<Tag<float>> half;
  const hn::Repartition<double, Tag<float>> wide;
  const auto x0 = load(d, rows[0] + p), x1 = load(d, rows[1] + p), x2 = load(d, rows[2] + p), x3 = load(d, rows[3] + p);
  const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, x0, x1)), high01 = hn::BitCast(wide, hn::InterleaveUpper(d, x0, x1));
  const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, x2, x3)), high23 = hn::BitCast(wide, hn::InterleaveUpper(d, x2, x3));
  // Steps s and s + 4 in the blocks of one vector.
  const hn::Vec<Tag<float>> steps[] = {hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)),
                                       hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23))};
#pragma GCC unroll 4
  for (int64_t s = 0; s < 4; ++s) {
    hn::StoreU(hn::LowerHalf(half, steps[s]), half, out + s * out_step);
    hn::StoreU(hn::UpperHalf(half, steps[s]), half, out + (s + 4) * out_step);
  }
}
#else
template <class T>
void transpose_four(const T* const*, int64_t, float*, int64_t) {}
#endif

/// out[p * out_step + r] = x[min(r, rows - 1) * x_row + p] for p < depth in ascending order and each r of a whole vector. Meanwhile the rows
/// that lie `ahead` elements further are fetched.
template <class D, class T>
HWY_INLINE void transpose([[maybe_unused]] D d, const T* x, int64_t x_row, int64_t rows, int64_t depth, AccumulatorType<T>* out, int64_t out_step, [[maybe_unused]] int64_t ahead) {
  using A [[maybe_unused]] = AccumulatorType<T>;
  constexpr int64_t count = hn::MaxLanes(D());
  const T* row[count];
  for (int64_t r = 0; r < count; ++r) row[r] = x + std::min(r, rows - 1) * x_row;
  int64_t p = 0;
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  constexpr int64_t block = 16 / sizeof(A), line = 64 / sizeof(T);
  for (; p + line <= depth; p += line) {
    if (ahead != 0)
      for (int64_t r = 0; r < count; ++r) hwy::Prefetch(row[r] + ahead + p);
    if constexpr (count == 4 && lanes<A> == 8) {
      for (int64_t s = 0; s < line; s += 8, out += 8 * out_step) transpose_four(row, p + s, out, out_step);
    } else {
      for (int64_t s = 0; s < line; s += block, out += block * out_step) transpose_block(d, row, p + s, out, out_step);
    }
  }
  for (; p + block <= depth; p += block, out += block * out_step) transpose_block(d, row, p, out, out_step);
#endif
  for (; p < depth; ++p, out += out_step)
    for (int64_t r = 0; r < count; ++r) out[r] = read(row[r][p]);
}

/// Columns that are contiguous: whole rows of some panels, step by step.
template <int panels, class T>
void pack_rows_of_b(const T* b, int64_t b_row, int64_t depth, AccumulatorType<T>* out) {
  using A = AccumulatorType<T>;
  const Tag<A> d;
  constexpr int64_t width = panel_columns<A>, line = 64 / sizeof(T);
  for (int64_t p = 0; p < depth; ++p) {
    // Far apart: the processor does not foresee them.
    for (int64_t j = 0; j < panels * width; j += line) hwy::Prefetch(b + std::min(p + 16, depth - 1) * b_row + j);
    for (int64_t j = 0; j < panels; ++j)  // known numbers: few rows of A make this the product's main work
      for (int v = 0; v < tile_vectors; ++v)
        hn::Store(load(d, b + p * b_row + j * width + v * lanes<A>), d, out + (j * depth + p) * width + v * lanes<A>);
  }
}

template <class T>
void pack_b(const void* b_pointer, int64_t b_row, int64_t b_col, int64_t depth, int64_t columns, void* panels) {
  using A = AccumulatorType<T>;
  const T* b = static_cast<const T*>(b_pointer);
  A* out = static_cast<A*>(panels);
  constexpr int64_t width = panel_columns<A>;
  int64_t done = 0;
  if (b_col == 1) {
    for (; done + 4 * width <= columns; done += 4 * width) pack_rows_of_b<4>(b + done, b_row, depth, out + done * depth);
    for (; done + width <= columns; done += width) pack_rows_of_b<1>(b + done, b_row, depth, out + done * depth);
  } else if (b_row == 1) {
    for (; done < columns; done += width)
      for (int64_t j = done; j < done + width; j += lanes<A>) {
        const int64_t first = std::min(j, columns - 1), after = first + lanes<A> < columns ? lanes<A> * b_col : 0;
        transpose(Tag<A>(), b + first * b_col, b_col, columns - first, depth, out + done * depth + j - done, width, after);
      }
  }
  for (; done < columns; done += width)
    for (int64_t p = 0; p < depth; ++p)
      for (int64_t j = 0; j < width; ++j) out[done * depth + p * width + j] = done + j < columns ? read(b[p * b_row + (done + j) * b_col]) : A(0);
}

/// Vectors that cover a tile's rows, no wider than need be; the last one may reach past them.
template <class A> using RowTag = hn::CappedTag<A, tile_rows <= 4 ? 4 : 16>;
template <class A> constexpr int64_t row_lanes = hn::MaxLanes(RowTag<A>());
template <class A> constexpr int64_t row_vectors = (tile_rows + row_lanes<A> - 1) / row_lanes<A>;

/// Rows that are contiguous in k are transposed, tile by tile.
template <class T>
void pack_along_k(const T* a, int64_t a_row, int64_t rows, int64_t readable, int64_t depth, AccumulatorType<T>* out, int64_t out_tile) {
  using A = AccumulatorType<T>;
  for (int64_t first = 0; first < rows; first += tile_rows, out += out_tile) {
    const int64_t count = std::min<int64_t>(tile_rows, rows - first);
    if (count == 1) {  // generation: one row is worth no transposition
      for (int64_t p = 0; p < depth; ++p) out[p * tile_rows] = read(a[first * a_row + p]);
      continue;
    }
    const int64_t ahead = first + 2 * tile_rows <= readable ? tile_rows * a_row : 0;
    // What a vector writes past the tile's rows is the next step's first rows: they are written after it.
    for (int64_t v = row_vectors<A> - 1; v >= 0; --v)
      if (const int64_t r = v * row_lanes<A>; r < count) transpose(RowTag<A>(), a + (first + r) * a_row, a_row, count - r, depth, out + r, tile_rows, ahead);
  }
}

/// Rows that are contiguous in i are copied as whole vectors where the matrix has the values, some steps of each tile at once: they fill lines of the packed rows.
template <class T>
void pack_along_rows(const T* a, int64_t a_row, int64_t a_col, int64_t rows, int64_t readable, int64_t depth, AccumulatorType<T>* out, int64_t out_tile) {
  using A = AccumulatorType<T>;
  const RowTag<A> d;
  constexpr int64_t reach = row_vectors<A> * row_lanes<A>, together = 4, line = 64 / static_cast<int64_t>(sizeof(T));
  const int64_t fast = a_row == 1 && readable >= reach ? std::min(chunks_of(rows, tile_rows), (readable - reach) / tile_rows + 1) : 0;
  // What a vector writes past the tile's rows is the next step's first rows: they are written after it.
  const auto copy = [&](int64_t t, int64_t p) HWY_ATTR {
    for (int64_t v = 0; v < row_vectors<A>; ++v)
      hn::StoreU(load(d, a + p * a_col + t * tile_rows + v * row_lanes<A>), d, out + t * out_tile + p * tile_rows + v * row_lanes<A>);
  };
  int64_t p = 0;
  for (; p + together <= depth; p += together) {
    if (p + 2 * together <= depth)
      for (int64_t s = together; s < 2 * together; ++s)
        for (int64_t i = 0; i < rows; i += line) hwy::Prefetch(a + (p + s) * a_col + i * a_row);
    for (int64_t t = 0; t < fast; ++t)
      for (int64_t s = 0; s < together; ++s) copy(t, p + s);
  }
  for (; p < depth; ++p)
    for (int64_t t = 0; t < fast; ++t) copy(t, p);
  for (int64_t i = fast * tile_rows; i < rows; ++i)
    for (p = 0; p < depth; ++p) out[i / tile_rows * out_tile + p * tile_rows + i % tile_rows] = read(a[p * a_col + i * a_row]);
}

template <class T>
MatmulRows pack_a(const void* a_pointer, int64_t a_row, int64_t a_col, int64_t rows, int64_t readable, int64_t depth, void* out_pointer) {
  const T* a = static_cast<const T*>(a_pointer);
  auto* out = static_cast<AccumulatorType<T>*>(out_pointer);
  const int64_t tile = depth * tile_rows + 16;  // whole vectors are written, which reach past a tile's end
  if (a_col == 1) pack_along_k(a, a_row, rows, readable, depth, out, tile);
  else pack_along_rows(a, a_row, a_col, rows, readable, depth, out, tile);
  return {out, tile, 1, tile_rows};
}

template <class T>
MatmulPacking packing_of() {
  return {pack_b<T>, pack_a<T>};
}

}  // namespace

MatmulPacking packing_for(DType type) {
  if (type == DType::f64) return packing_of<double>();
  return type == DType::f32 ? packing_of<float>() : packing_of<bf16>();
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {

HWY_EXPORT(packing_for);
MatmulPacking matmul_packing(const Rank& rank, DType type) { return QUIRE_PICK(rank, packing_for)(type); }

}  // namespace quire
#endif
