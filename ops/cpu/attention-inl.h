// The parts that attention's kernels are made of, compiled once per instruction set: small matrix products in registers,
// packing. Included by each kernel file after Highway's own headers; no ordinary include guard, for that reason.
#if defined(QUIRE_ATTENTION_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef HWY_TARGET_TOGGLE
#undef QUIRE_ATTENTION_INL
#else
#define QUIRE_ATTENTION_INL
#endif

#include <hwy/cache_control.h>
#include "ops/cpu/attention_tile-inl.h"
#include "ops/cpu/exponential-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// Rows and vectors of the register tile: 6 x 2 accumulators for 16 registers, 6 x 4 for 32.
constexpr int64_t tile_rows = attention_group_rows;
constexpr int64_t tile_vectors = HWY_MAX_BYTES >= 64 ? 4 : 2;

/// What a row reads of a tile's columns: all of them (so that the compiler knows the number), the first ones (below the diagonal), or some (windows).
enum class Columns { all, first, some };

/// The type that values of storage type T are computed in.
template <class T> struct Accumulator { using type = T; };
template <> struct Accumulator<bf16> { using type = float; };
template <class T> using accumulator_t = typename Accumulator<T>::type;

template <class A> HWY_INLINE int64_t lanes_of() { return static_cast<int64_t>(hn::Lanes(hn::ScalableTag<A>())); }

/// C[rows, vectors] += A B, with A(i, k) = a[i * a_row + k * a_column] and rows of B and C contiguous. Every element is one chain of additions in
/// ascending k, so its bits depend neither on the tile's shape nor on its place.
template <class A, int rows, int vectors>
HWY_INLINE void multiply_tile(int64_t depth, const A* HWY_RESTRICT a, int64_t a_row, int64_t a_column, const A* HWY_RESTRICT b, int64_t b_row,
                   A* HWY_RESTRICT c, int64_t c_row, bool accumulate) {
#if HWY_TARGET == HWY_AVX2
  if constexpr (rows == 6 && vectors == 2) return multiply_six_by_two(depth, a, a_row, a_column, b, b_row, c, c_row, accumulate);
#endif
  const hn::ScalableTag<A> d;
  const int64_t lanes = lanes_of<A>();
  hn::Vec<decltype(d)> sum[rows][vectors];
  QUIRE_UNROLL
  for (int i = 0; i < rows; ++i) {
    QUIRE_UNROLL
    for (int j = 0; j < vectors; ++j) sum[i][j] = accumulate ? hn::LoadU(d, c + i * c_row + j * lanes) : hn::Zero(d);
  }
  for (int64_t k = 0; k < depth; ++k) {
    hn::Vec<decltype(d)> right[vectors];
    QUIRE_UNROLL
    for (int j = 0; j < vectors; ++j) right[j] = hn::LoadU(d, b + j * lanes);
    QUIRE_UNROLL
    for (int i = 0; i < rows; ++i) {
      const auto left = hn::Set(d, a[i * a_row]);
      QUIRE_UNROLL
      for (int j = 0; j < vectors; ++j) sum[i][j] = hn::MulAdd(left, right[j], sum[i][j]);
    }
    a += a_column;
    b += b_row;
  }
  QUIRE_UNROLL
  for (int i = 0; i < rows; ++i) {
    QUIRE_UNROLL
    for (int j = 0; j < vectors; ++j) hn::StoreU(sum[i][j], d, c + i * c_row + j * lanes);
  }
}

/// The same for any number of vectors: one tile after the other.
template <class A, int rows>
void multiply_tiles(int64_t vectors, int64_t depth, const A* HWY_RESTRICT a, int64_t a_row, int64_t a_column, const A* HWY_RESTRICT b, int64_t b_row,
                    A* HWY_RESTRICT c, int64_t c_row, bool accumulate) {
  const int64_t lanes = lanes_of<A>();
  const A* const below = c + rows * c_row;
  for (; vectors >= tile_vectors; vectors -= tile_vectors, b += tile_vectors * lanes, c += tile_vectors * lanes) {
    const A* next = vectors > tile_vectors ? c + tile_vectors * lanes : below;  // probably
    QUIRE_UNROLL
    for (int i = 0; i < rows; ++i) hwy::Prefetch(next + i * c_row);
    multiply_tile<A, rows, tile_vectors>(depth, a, a_row, a_column, b, b_row, c, c_row, accumulate);
  }
  if constexpr (tile_vectors == 4) {
    if (vectors == 3) return multiply_tile<A, rows, 3>(depth, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    if (vectors == 2) return multiply_tile<A, rows, 2>(depth, a, a_row, a_column, b, b_row, c, c_row, accumulate);
  }
  if (vectors == 1) multiply_tile<A, rows, 1>(depth, a, a_row, a_column, b, b_row, c, c_row, accumulate);
}

/// The same for up to `tile_rows` rows.
template <class A>
HWY_INLINE void multiply_rows(int64_t rows, int64_t vectors, int64_t depth, const A* a, int64_t a_row, int64_t a_column, const A* b, int64_t b_row,
                              A* c, int64_t c_row, bool accumulate) {
  switch (rows) {
    case 1: return multiply_tiles<A, 1>(vectors, depth, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    case 2: return multiply_tiles<A, 2>(vectors, depth, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    case 3: return multiply_tiles<A, 3>(vectors, depth, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    case 4: return multiply_tiles<A, 4>(vectors, depth, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    case 5: return multiply_tiles<A, 5>(vectors, depth, a, a_row, a_column, b, b_row, c, c_row, accumulate);
    default: return multiply_tiles<A, 6>(vectors, depth, a, a_row, a_column, b, b_row, c, c_row, accumulate);
  }
}

/// Largest x that exponential takes.
template <class A> constexpr A largest_power = std::is_same_v<A, double> ? A(709) : A(88);

/// x, but `high` where it is more; NaN stays NaN.
template <class D, class V = hn::Vec<D>> HWY_INLINE V at_most(D d, hn::TFromD<D> high, V x) {
#if HWY_TARGET == HWY_SCALAR
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, high)), hn::Set(d, high), x);
#else
  return hn::Min(hn::Set(d, high), x);
#endif
}

/// Vector of A from storage T.
template <class D> HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* from) { return hn::LoadU(d, from); }
template <class D> HWY_INLINE hn::Vec<D> load(D d, const bf16* from) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> half;
  const auto bits = hn::LoadU(half, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}
HWY_INLINE float load_one(const bf16* from) { return static_cast<float>(*from); }
template <class A> HWY_INLINE A load_one(const A* from) { return *from; }
HWY_INLINE void store_one(float value, bf16* to) { *to = bf16(value); }
template <class A> HWY_INLINE void store_one(A value, A* to) { *to = value; }

/// Vector of A to storage T, rounded to nearest even.
template <class D> HWY_INLINE void store(D d, hn::Vec<D> value, hn::TFromD<D>* to) { hn::StoreU(value, d, to); }
template <class D> HWY_INLINE void store([[maybe_unused]] D d, hn::Vec<D> value, bf16* to) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> half;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
  const auto number = hn::RebindMask(du, hn::Eq(value, value));
  hn::StoreU(hn::TruncateTo(half, hn::IfThenElse(number, rounded, quiet)), half, reinterpret_cast<uint16_t*>(to));
}

/// Rows of tokens lie apart, in far memory: while one is read, the one so many further is fetched.
constexpr int64_t rows_ahead = 16;
template <class T>
HWY_INLINE void fetch_row(const T* row, int64_t width) {
  for (int64_t i = 0; i < width; i += 64 / static_cast<int64_t>(sizeof(T))) hwy::Prefetch(row + i);
}

/// Row of `width` values of T as A, followed by zeros up to `padded`.
template <class T, class A = accumulator_t<T>>
void widen_row(const T* HWY_RESTRICT from, int64_t width, A* HWY_RESTRICT to, int64_t padded) {
  const hn::ScalableTag<A> d;
  const int64_t lanes = lanes_of<A>();
  int64_t i = 0;
  for (; i + lanes <= width; i += lanes) hn::StoreU(load(d, from + i), d, to + i);
  for (; i < width; ++i) to[i] = load_one(from + i);
  for (; i < padded; ++i) to[i] = 0;
}

/// Rows `tokens[0..count)` of `base` (head already added), packed [count, padded].
template <class T, class A = accumulator_t<T>>
void pack_rows(const T* base, int64_t stride, const int32_t* tokens, int64_t count, int64_t width, A* to, int64_t padded) {
  for (int64_t i = 0; i < count; ++i) widen_row(base + tokens[i] * stride, width, to + i * padded, padded);
}
/// The rows of a tile, of all heads' values at `base`.
template <class T, class A = accumulator_t<T>>
void pack_rows(const T* base, int64_t stride, const AttentionRows& rows, int64_t width, A* to, int64_t padded) {
  const auto row = [&](int64_t i) { return base + rows.local[i] * stride + rows.head[i] * width; };
  for (int64_t i = 0; i < rows.count; ++i) {
    if (i + rows_ahead < rows.count) fetch_row(row(i + rows_ahead), width);
    widen_row(row(i), width, to + i * padded, padded);
  }
}

/// Columns [column, column + step) of `to` [width, columns] from `step` rows (one 128-bit block of them), scaled.
template <class A>
HWY_INLINE void transpose_rows(const A* const* rows, int64_t width, A scale, A* to, int64_t columns) {
  constexpr int64_t step = 16 / sizeof(A);
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<A, step> d;
  const auto factor = hn::Set(d, scale);
  for (; i + step <= width; i += step) {
    if constexpr (step == 4) {
      const hn::FixedTag<double, 2> pair;
      const auto row0 = hn::LoadU(d, rows[0] + i), row1 = hn::LoadU(d, rows[1] + i);
      const auto row2 = hn::LoadU(d, rows[2] + i), row3 = hn::LoadU(d, rows[3] + i);
      const auto low01 = hn::BitCast(pair, hn::InterleaveLower(d, row0, row1)), low23 = hn::BitCast(pair, hn::InterleaveLower(d, row2, row3));
      const auto high01 = hn::BitCast(pair, hn::InterleaveUpper(d, row0, row1)), high23 = hn::BitCast(pair, hn::InterleaveUpper(d, row2, row3));
      hn::StoreU(hn::Mul(factor, hn::BitCast(d, hn::InterleaveLower(pair, low01, low23))), d, to + i * columns);
      hn::StoreU(hn::Mul(factor, hn::BitCast(d, hn::InterleaveUpper(pair, low01, low23))), d, to + (i + 1) * columns);
      hn::StoreU(hn::Mul(factor, hn::BitCast(d, hn::InterleaveLower(pair, high01, high23))), d, to + (i + 2) * columns);
      hn::StoreU(hn::Mul(factor, hn::BitCast(d, hn::InterleaveUpper(pair, high01, high23))), d, to + (i + 3) * columns);
    } else {
      const auto row0 = hn::LoadU(d, rows[0] + i), row1 = hn::LoadU(d, rows[1] + i);
      hn::StoreU(hn::Mul(factor, hn::InterleaveLower(d, row0, row1)), d, to + i * columns);
      hn::StoreU(hn::Mul(factor, hn::InterleaveUpper(d, row0, row1)), d, to + (i + 1) * columns);
    }
  }
#endif
  for (; i < width; ++i)
    for (int64_t j = 0; j < step; ++j) to[i * columns + j] = scale * rows[j][i];
}

/// One tile of keys transposed: `to` [width, tile stride], scaled; columns past `count` are zeros up to a whole vector.
template <class T, class A = accumulator_t<T>>
void pack_transposed(const T* base, int64_t stride, const int32_t* tokens, int64_t count, int64_t width, A scale, A* to) {
  constexpr int64_t step = 16 / sizeof(A), columns = attention_tile_stride<A>;
  alignas(64) A widened[std::is_same_v<T, A> ? 1 : step][std::is_same_v<T, A> ? 1 : attention_largest_head];
  alignas(64) A zeros[attention_largest_head];
  const int64_t end = chunks_of(count, 4 * step) * 4 * step;  // whole vectors of any width
  if (count < end) std::fill_n(zeros, width, A{0});
  for (int64_t c = 0; c < end; c += step) {
    const A* rows[step];
    for (int64_t j = 0; j < step; ++j) {
      rows[j] = zeros;
      if (c + j >= count) continue;
      const T* from = base + tokens[c + j] * stride;
      if (c + j + rows_ahead < count) fetch_row(base + tokens[c + j + rows_ahead] * stride, width);
      if constexpr (std::is_same_v<T, A>) {
        rows[j] = from;
      } else {
        widen_row(from, width, widened[j], width);
        rows[j] = widened[j];
      }
    }
    transpose_rows(rows, width, scale, to + c, columns);
  }
}

/// Lanes of a vector at column `column` that lie in [first, last).
template <class D> HWY_INLINE hn::Mask<D> within(D d, int64_t column, int64_t first, int64_t last) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto below_last = hn::FirstN(d, static_cast<size_t>(std::clamp<int64_t>(last - column, 0, lanes)));
  if (first <= column) return below_last;
  return hn::AndNot(hn::FirstN(d, static_cast<size_t>(std::clamp<int64_t>(first - column, 0, lanes))), below_last);
}

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
