// Sizes of the matrix product's register tile, on which tiles and packing agree; compiled once for each instruction set (include
// after hwy/highway.h).
#if defined(QUIRE_OPS_CPU_MATMUL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_OPS_CPU_MATMUL_INL_H
#undef QUIRE_OPS_CPU_MATMUL_INL_H
#else
#define QUIRE_OPS_CPU_MATMUL_INL_H
#endif

#include "ops/cpu/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

// Accumulators, the vectors of B and one of A fill the 32 registers of AVX-512 (14 x 2) and the 16 of AVX2 (4 x 3).
// Portable vectors are single numbers: a small square of them.
//
// Two units multiply and add, yet a core that two threads share may decode only three or four instructions a cycle for one of them: what counts is instructions beside the
// multiply-adds. 4 x 3 has 19 for 12 of them (6 x 2 has 20), and steps of k in one round of the tile's loop share the loop's own ones.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
constexpr int tile_rows = 4, tile_vectors = 4, tile_steps = 1;
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int tile_rows = 14, tile_vectors = 2, tile_steps = 2;
#else
constexpr int tile_rows = 4, tile_vectors = 3, tile_steps = 8;
#endif

template <class T> constexpr int64_t lanes = static_cast<int64_t>(hn::MaxLanes(Tag<T>()));
template <class T> constexpr int64_t panel_columns = tile_vectors * lanes<T>;

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
