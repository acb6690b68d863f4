// The register tile of attention's products on AVX2, instruction by instruction; included once for each instruction set, empty for the others.
//
// 6 rows by 2 vectors, eight steps a round: a step is 20.6 instructions, 12 of them multiply-adds. (See ops/cpu/matmul-inl.h on why they count.)
#if defined(QUIRE_OPS_CPU_ATTENTION_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_OPS_CPU_ATTENTION_TILE_INL_H
#undef QUIRE_OPS_CPU_ATTENTION_TILE_INL_H
#else
#define QUIRE_OPS_CPU_ATTENTION_TILE_INL_H
#endif

#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX2

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// `t` is s or d, `size` that of a number. Sums of row i are QUIRE_SUM(2 i) and QUIRE_SUM(2 i + 1), rows of B ymm12 and ymm13, one value of A ymm14 or ymm15.
#define QUIRE_TWO(t, from, temporary, s0, s1)                                                                  \
  "vbroadcasts" #t " " from ",%%" #temporary "\n\tvfmadd231p" #t " %%ymm12,%%" #temporary "," QUIRE_SUM(s0) "\n\t" \
  "vfmadd231p" #t " %%ymm13,%%" #temporary "," QUIRE_SUM(s1) "\n\t"
#define QUIRE_RIGHT(at) "vmovups (%[b]" at "),%%ymm12\n\tvmovups 32(%[b]" at "),%%ymm13\n\t"
// Rows of A `row` bytes apart, steps next to each other.
#define QUIRE_BY_ROW(t, size, k, at)                                                                           \
  QUIRE_RIGHT(at)                                                                                              \
  QUIRE_TWO(t, #k "*" #size "(%[a])", ymm14, 0, 1) QUIRE_TWO(t, #k "*" #size "(%[a],%[row])", ymm15, 2, 3)             \
  QUIRE_TWO(t, #k "*" #size "(%[a],%[row],2)", ymm14, 4, 5) QUIRE_TWO(t, #k "*" #size "(%[a],%[row3])", ymm15, 6, 7)   \
  QUIRE_TWO(t, #k "*" #size "(%[a],%[row],4)", ymm14, 8, 9) QUIRE_TWO(t, #k "*" #size "(%[a],%[row5])", ymm15, 10, 11)
// Steps `step` bytes apart, rows next to each other.
#define QUIRE_BY_STEP(t, size, to, at)                                                                         \
  QUIRE_RIGHT(at)                                                                                              \
  QUIRE_TWO(t, "0*" #size "(%[a]" to ")", ymm14, 0, 1) QUIRE_TWO(t, "1*" #size "(%[a]" to ")", ymm15, 2, 3)            \
  QUIRE_TWO(t, "2*" #size "(%[a]" to ")", ymm14, 4, 5) QUIRE_TWO(t, "3*" #size "(%[a]" to ")", ymm15, 6, 7)            \
  QUIRE_TWO(t, "4*" #size "(%[a]" to ")", ymm14, 8, 9) QUIRE_TWO(t, "5*" #size "(%[a]" to ")", ymm15, 10, 11)
#define QUIRE_FOUR_BY_ROW(t, size, k0, k1, k2, k3)                                                             \
  QUIRE_BY_ROW(t, size, k0, "") QUIRE_BY_ROW(t, size, k1, ",%[b_row]") QUIRE_BY_ROW(t, size, k2, ",%[b_row],2")                    \
  QUIRE_BY_ROW(t, size, k3, ",%[b_row3]") "lea (%[b],%[b_row],4),%[b]\n\t"
#define QUIRE_FOUR_BY_STEP(t, size)                                                                            \
  QUIRE_BY_STEP(t, size, "", "") QUIRE_BY_STEP(t, size, ",%[step]", ",%[b_row]")                               \
  QUIRE_BY_STEP(t, size, ",%[step],2", ",%[b_row],2") QUIRE_BY_STEP(t, size, ",%[step3]", ",%[b_row3]")        \
  "lea (%[a],%[step],4),%[a]\n\tlea (%[b],%[b_row],4),%[b]\n\t"
#define QUIRE_EACH_ROW(one) one(0, 1) one(2, 3) one(4, 5) one(6, 7) one(8, 9) one(10, 11)
#define QUIRE_LOAD_ROW(s0, s1) "vmovups (%[at])," QUIRE_SUM(s0) "\n\tvmovups 32(%[at])," QUIRE_SUM(s1) "\n\tadd %[c_row],%[at]\n\t"
#define QUIRE_CLEAR_ROW(s0, s1) QUIRE_CLEAR(s0) QUIRE_CLEAR(s1)
#define QUIRE_CLEAR(s) "vxorps " QUIRE_SUM(s) "," QUIRE_SUM(s) "," QUIRE_SUM(s) "\n\t"
#define QUIRE_STORE_ROW(s0, s1) "vmovups " QUIRE_SUM(s0) ",(%[c])\n\tvmovups " QUIRE_SUM(s1) ",32(%[c])\n\tadd %[c_row],%[c]\n\t"
// Whole rounds of eight steps, then single steps.
#define QUIRE_STEPS(eight, one)                                                                                \
  "test %[rounds],%[rounds]\n\tjz 4f\n.p2align 5\n3:\n\t" eight "dec %[rounds]\n\tjnz 3b\n4:\n\ttest %[rest],%[rest]\n\t"            \
  "jz 6f\n5:\n\t" one "dec %[rest]\n\tjnz 5b\n6:\n\t"
#define QUIRE_STEPS_BY_ROW(t, size)                                                                            \
  QUIRE_STEPS(QUIRE_FOUR_BY_ROW(t, size, 0, 1, 2, 3) QUIRE_FOUR_BY_ROW(t, size, 4, 5, 6, 7) "add $8*" #size ",%[a]\n\t",           \
              QUIRE_BY_ROW(t, size, 0, "") "add $" #size ",%[a]\n\tadd %[b_row],%[b]\n\t")
#define QUIRE_STEPS_BY_STEP(t, size)                                                                           \
  QUIRE_STEPS(QUIRE_FOUR_BY_STEP(t, size) QUIRE_FOUR_BY_STEP(t, size), QUIRE_BY_STEP(t, size, "", "") "add %[step],%[a]\n\tadd %[b_row],%[b]\n\t")
#define QUIRE_TILE(steps)                                                                                      \
  "test %[at],%[at]\n\tjz 1f\n\t" QUIRE_EACH_ROW(QUIRE_LOAD_ROW) "jmp 2f\n1:\n\t" QUIRE_EACH_ROW(QUIRE_CLEAR_ROW) "2:\n\t" steps QUIRE_EACH_ROW(QUIRE_STORE_ROW)
#define QUIRE_CLOBBERS                                                                                         \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory"
#define QUIRE_TILE_BY_ROW(t, size)                                                                             \
  __asm__ volatile(QUIRE_TILE(QUIRE_STEPS_BY_ROW(t, size))                                                     \
                   : [a] "+&r"(a), [b] "+&r"(b), [c] "+&r"(c), [at] "+&r"(at), [rounds] "+&r"(rounds), [rest] "+&r"(rest)                \
                   : [row] "r"(row), [row3] "r"(3 * row), [row5] "r"(5 * row), [b_row] "r"(b_bytes), [b_row3] "r"(3 * b_bytes), [c_row] "r"(c_bytes) \
                   : QUIRE_CLOBBERS)
#define QUIRE_TILE_BY_STEP(t, size)                                                                            \
  __asm__ volatile(QUIRE_TILE(QUIRE_STEPS_BY_STEP(t, size))                                                    \
                   : [a] "+&r"(a), [b] "+&r"(b), [c] "+&r"(c), [at] "+&r"(at), [rounds] "+&r"(rounds), [rest] "+&r"(rest)                \
                   : [step] "r"(step), [step3] "r"(3 * step), [b_row] "r"(b_bytes), [b_row3] "r"(3 * b_bytes), [c_row] "r"(c_bytes)   \
                   : QUIRE_CLOBBERS)
// Here sums begin and end in memory, in registers of this file's choice.
#define QUIRE_SUM(i) "%%ymm" #i

/// C[6, 2 vectors] = or += A B, each multiply-add rounded once, in ascending k: A(i, k) = a[i * a_row + k * a_column], of which one is 1. Strides in elements.
template <class A>
HWY_INLINE void multiply_six_by_two(int64_t depth, const A* a, int64_t a_row, int64_t a_column, const A* b, int64_t b_row, A* c, int64_t c_row, bool accumulate) {
  constexpr int64_t size = sizeof(A);
  int64_t rounds = depth / 8, rest = depth % 8;
  const int64_t b_bytes = b_row * size, c_bytes = c_row * size;
  A* at = accumulate ? c : nullptr;
  if (a_column == 1) {
    const int64_t row = a_row * size;
    if constexpr (size == 4) QUIRE_TILE_BY_ROW(s, 4);
    else QUIRE_TILE_BY_ROW(d, 8);
  } else {
    const int64_t step = a_column * size;
    if constexpr (size == 4) QUIRE_TILE_BY_STEP(s, 4);
    else QUIRE_TILE_BY_STEP(d, 8);
  }
}

// The same by row from sums of zero, which stay in registers of the compiler's choice.
#undef QUIRE_SUM
#define QUIRE_SUM(i) "%" #i
#define QUIRE_SUMS_OF(i) "=&x"(sums[i][0].raw), "=&x"(sums[i][1].raw)
#define QUIRE_SUMS_BY_ROW(t, size)                                                                             \
  __asm__ volatile(QUIRE_EACH_ROW(QUIRE_CLEAR_ROW) QUIRE_STEPS_BY_ROW(t, size)                                 \
                   : QUIRE_SUMS_OF(0), QUIRE_SUMS_OF(1), QUIRE_SUMS_OF(2), QUIRE_SUMS_OF(3), QUIRE_SUMS_OF(4), QUIRE_SUMS_OF(5),     \
                     [a] "+&r"(a), [b] "+&r"(b), [rounds] "+&r"(rounds), [rest] "+&r"(rest)                                           \
                   : [row] "r"(row), [row3] "r"(3 * row), [row5] "r"(5 * row), [b_row] "r"(b_bytes), [b_row3] "r"(3 * b_bytes)                           \
                   : "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory")

/// sums = A B of 6 rows and 2 vectors: A(i, k) = a[i * a_row + k], each multiply-add rounded once, in ascending k.
template <class A>
HWY_INLINE void sum_six_by_two(int64_t depth, const A* a, int64_t a_row, const A* b, int64_t b_row, hn::Vec<hn::ScalableTag<A>> (&sums)[6][2]) {
  constexpr int64_t size = sizeof(A);
  int64_t rounds = depth / 8, rest = depth % 8;
  const int64_t b_bytes = b_row * size, row = a_row * size;
  if constexpr (size == 4) QUIRE_SUMS_BY_ROW(s, 4);
  else QUIRE_SUMS_BY_ROW(d, 8);
}

#undef QUIRE_TWO
#undef QUIRE_RIGHT
#undef QUIRE_BY_ROW
#undef QUIRE_BY_STEP
#undef QUIRE_FOUR_BY_ROW
#undef QUIRE_FOUR_BY_STEP
#undef QUIRE_EACH_ROW
#undef QUIRE_LOAD_ROW
#undef QUIRE_CLEAR_ROW
#undef QUIRE_CLEAR
#undef QUIRE_STORE_ROW
#undef QUIRE_STEPS
#undef QUIRE_STEPS_BY_ROW
#undef QUIRE_STEPS_BY_STEP
#undef QUIRE_TILE
#undef QUIRE_TILE_BY_ROW
#undef QUIRE_TILE_BY_STEP
#undef QUIRE_SUM
#undef QUIRE_SUMS_OF
#undef QUIRE_SUMS_BY_ROW
#undef QUIRE_CLOBBERS

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
#endif
