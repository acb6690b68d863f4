// The inner loop of the matrix product's tile on AVX2, instruction by instruction; included once for each instruction set, empty for the others.
//
// A compiler that may choose copies sums between registers and spills some of them, since all 16 are in use. A step is 19.5 instructions here, 12 of them multiply-adds.
#if defined(QUIRE_OPS_CPU_MATMUL_ROUNDS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_OPS_CPU_MATMUL_ROUNDS_INL_H
#undef QUIRE_OPS_CPU_MATMUL_ROUNDS_INL_H
#else
#define QUIRE_OPS_CPU_MATMUL_ROUNDS_INL_H
#endif

#include "ops/cpu/matmul-inl.h"

#if HWY_TARGET == HWY_AVX2

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

static_assert(tile_rows == 4 && tile_vectors == 3 && tile_steps == 8);

// One step of k: `t` is s or d, `size` that of a number; panels are three vectors wide, sums are operands 0 to rows * vectors - 1.
#define QUIRE_LOAD(p, j, to) "vmovaps " #p "*96+" #j "*32(%[b]),%%" #to "\n\t"
#define QUIRE_BROADCAST_OF(a, t, size, p, i) "vbroadcasts" #t " " #p "*4*" #size "+" #i "*" #size "(%[" #a "]),%%ymm15\n\t"
#define QUIRE_BROADCAST(t, size, p, i) QUIRE_BROADCAST_OF(a, t, size, p, i)
#define QUIRE_MULTIPLY_ADD(t, from, sum) "vfmadd231p" #t " %%" #from ",%%ymm15,%" #sum "\n\t"
#define QUIRE_ROW_OF_3(t, size, p, i, s0, s1, s2) \
  QUIRE_BROADCAST(t, size, p, i) QUIRE_MULTIPLY_ADD(t, ymm12, s0) QUIRE_MULTIPLY_ADD(t, ymm13, s1) QUIRE_MULTIPLY_ADD(t, ymm14, s2)
#define QUIRE_STEP_OF_3(t, size, p)                                                                                          \
  QUIRE_LOAD(p, 0, ymm12) QUIRE_LOAD(p, 1, ymm13) QUIRE_LOAD(p, 2, ymm14)                                                    \
  QUIRE_ROW_OF_3(t, size, p, 0, 0, 1, 2) QUIRE_ROW_OF_3(t, size, p, 1, 3, 4, 5) QUIRE_ROW_OF_3(t, size, p, 2, 6, 7, 8)       \
  QUIRE_ROW_OF_3(t, size, p, 3, 9, 10, 11)
#define QUIRE_ROW_OF_2(t, size, p, i, s0, s1) QUIRE_BROADCAST(t, size, p, i) QUIRE_MULTIPLY_ADD(t, ymm12, s0) QUIRE_MULTIPLY_ADD(t, ymm13, s1)
#define QUIRE_STEP_OF_2(t, size, p)                                                                                          \
  QUIRE_LOAD(p, 0, ymm12) QUIRE_LOAD(p, 1, ymm13)                                                                            \
  QUIRE_ROW_OF_2(t, size, p, 0, 0, 1) QUIRE_ROW_OF_2(t, size, p, 1, 2, 3) QUIRE_ROW_OF_2(t, size, p, 2, 4, 5)                \
  QUIRE_ROW_OF_2(t, size, p, 3, 6, 7)
#define QUIRE_ROW_OF_1(a, t, size, p, i, s0) QUIRE_BROADCAST_OF(a, t, size, p, i) QUIRE_MULTIPLY_ADD(t, ymm12, s0)
#define QUIRE_STEP_OF_1(t, size, p)                                                                                          \
  QUIRE_LOAD(p, 0, ymm12)                                                                                                    \
  QUIRE_ROW_OF_1(a, t, size, p, 0, 0) QUIRE_ROW_OF_1(a, t, size, p, 1, 1) QUIRE_ROW_OF_1(a, t, size, p, 2, 2)                \
  QUIRE_ROW_OF_1(a, t, size, p, 3, 3) QUIRE_ROW_OF_1(below, t, size, p, 0, 4) QUIRE_ROW_OF_1(below, t, size, p, 1, 5)        \
  QUIRE_ROW_OF_1(below, t, size, p, 2, 6) QUIRE_ROW_OF_1(below, t, size, p, 3, 7)
#define QUIRE_ROUNDS(STEP, t, size, more)                                                                                          \
  ".p2align 5\n1:\n\t" STEP(t, size, 0) STEP(t, size, 1) STEP(t, size, 2) STEP(t, size, 3) STEP(t, size, 4) STEP(t, size, 5) \
  STEP(t, size, 6) STEP(t, size, 7) more "add $32*" #size ",%[a]\n\tadd $768,%[b]\n\tcmp %[end],%[a]\n\tjne 1b\n\t"
#define QUIRE_SUM(i, j) "+x"(sum[i][j].raw)
#define QUIRE_SUMS_OF_3(i) QUIRE_SUM(i, 0), QUIRE_SUM(i, 1), QUIRE_SUM(i, 2)
#define QUIRE_SUMS_OF_2(i) QUIRE_SUM(i, 0), QUIRE_SUM(i, 1)
#define QUIRE_SUMS_OF_1                                                                                                      \
  QUIRE_SUM(0, 0), QUIRE_SUM(1, 0), QUIRE_SUM(2, 0), QUIRE_SUM(3, 0), QUIRE_SUM(4, 0), QUIRE_SUM(5, 0), QUIRE_SUM(6, 0),     \
      QUIRE_SUM(7, 0), [a] "+&r"(a), [below] "+&r"(below), [b] "+&r"(b)
#define QUIRE_RUN(STEP, SUMS, t, size)                                                                                       \
  __asm__ volatile(QUIRE_ROUNDS(STEP, t, size, "") : SUMS(0), SUMS(1), SUMS(2), SUMS(3), [a] "+&r"(a), [b] "+&r"(b)                \
                   : [end] "r"(end) : "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory")

/// sum[i][j] += a[p][i] b[p][j], each rounded once, for `rounds` >= 1 times `tile_steps` steps in ascending order; a and b are moved on.
template <int vectors, class A>
HWY_INLINE void sum_rounds(int64_t rounds, const A*& a, const A*& b, hn::Vec<Tag<A>> (&sum)[tile_rows][vectors]) {
  static_assert(vectors == 2 || vectors == 3);
  const A* const end = a + rounds * tile_steps * tile_rows;
  if constexpr (sizeof(A) == 4 && vectors == 3) QUIRE_RUN(QUIRE_STEP_OF_3, QUIRE_SUMS_OF_3, s, 4);
  else if constexpr (sizeof(A) == 4) QUIRE_RUN(QUIRE_STEP_OF_2, QUIRE_SUMS_OF_2, s, 4);
  else if constexpr (vectors == 3) QUIRE_RUN(QUIRE_STEP_OF_3, QUIRE_SUMS_OF_3, d, 8);
  else QUIRE_RUN(QUIRE_STEP_OF_2, QUIRE_SUMS_OF_2, d, 8);
}

/// The same of one vector for two tiles, the second one's rows at `below`: four sums alone would wait for each other.
template <class A>
HWY_INLINE void sum_rounds_of_two(int64_t rounds, const A*& a, const A*& below, const A*& b, hn::Vec<Tag<A>> (&sum)[2 * tile_rows][1]) {
  const A* const end = a + rounds * tile_steps * tile_rows;
  if constexpr (sizeof(A) == 4)
    __asm__ volatile(QUIRE_ROUNDS(QUIRE_STEP_OF_1, s, 4, "add $32*4,%[below]\n\t") : QUIRE_SUMS_OF_1 : [end] "r"(end) : "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
  else
    __asm__ volatile(QUIRE_ROUNDS(QUIRE_STEP_OF_1, d, 8, "add $32*8,%[below]\n\t") : QUIRE_SUMS_OF_1 : [end] "r"(end) : "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
}

#undef QUIRE_LOAD
#undef QUIRE_BROADCAST
#undef QUIRE_MULTIPLY_ADD
#undef QUIRE_ROW_OF_3
#undef QUIRE_STEP_OF_3
#undef QUIRE_ROW_OF_2
#undef QUIRE_STEP_OF_2
#undef QUIRE_ROUNDS
#undef QUIRE_SUM
#undef QUIRE_SUMS_OF_3
#undef QUIRE_SUMS_OF_2
#undef QUIRE_SUMS_OF_1
#undef QUIRE_ROW_OF_1
#undef QUIRE_STEP_OF_1
#undef QUIRE_BROADCAST_OF
#undef QUIRE_RUN

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
#endif
