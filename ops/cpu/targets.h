// Which instruction sets kernels are compiled for, and how a rank picks one. Every Highway kernel file includes this before any Highway
// header. On x86: portable (plain C++, one lane a vector), AVX2 with FMA, and AVX-512; more would only cost compile time.
//
// A kernel file ops/cpu/double_it.cpp looks like this (it is compiled once per instruction set):
//
//   #include "ops/kernels.h"                                    // ordinary headers first: they must not be compiled per instruction set
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "ops/cpu/double_it.cpp"          // this file
//   #include "ops/cpu/targets.h"
//   #include <hwy/foreach_target.h>
//   #include <hwy/highway.h>
//
//   HWY_BEFORE_NAMESPACE();
//   namespace quire::HWY_NAMESPACE {                            // code here is compiled for each instruction set
//   namespace hn = hwy::HWY_NAMESPACE;
//   void double_it(float* x, int64_t count) {                   // not a template, not overloaded; a lambda in here needs HWY_ATTR
//     const hn::ScalableTag<float> d;
//     const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)); // 1 (portable), 8 (avx2), 16 (avx512)
//     int64_t i = 0;
//     for (; i + lanes <= count; i += lanes) hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, x + i)), d, x + i);
//     for (; i < count; ++i) x[i] += x[i];
//   }
//   }  // namespace quire::HWY_NAMESPACE
//   HWY_AFTER_NAMESPACE();
//
//   #if HWY_ONCE
//   namespace quire {
//   HWY_EXPORT(double_it);                                      // at namespace level
//   static void run_double_it(Rank& rank, const Args& args) {   // QUIRE_PICK chooses by rank.options().instruction_set
//     const auto function = QUIRE_PICK(rank, double_it);
//     rank.pool().parallel_for(..., [&](int64_t chunk, int) { function(...); });
//   }
//   }  // namespace quire
//   #endif
//
// The portable target has vectors of one lane and lacks operations between lanes (shuffles, blocks of 128 bits); SumOfLanes, MulAdd
// (two roundings there), loads and stores exist. Plain loops in these namespaces are vectorised by the compiler for each instruction set.
#pragma once
#if defined(HWY_HIGHWAY_INCLUDED) || defined(HIGHWAY_HWY_DETECT_TARGETS_H_)
#error "include ops/cpu/targets.h before any Highway header"
#endif

#if defined(__x86_64__)
// Numbers instead of names, because older and newer Highway versions know different names: 8 AVX-512 (Skylake level), 9 AVX2,
// 14 SSE2 (the baseline of newer versions), 61 and 62 plain C++ (the baseline of Highway 1.0).
#define HWY_DISABLED_TARGETS (~((1LL << 8) | (1LL << 9) | (1LL << 14) | (1LL << 61) | (1LL << 62)))
#endif
#include <hwy/targets.h>

#include "ops/cpu/instruction_set.h"

namespace quire {

/// The entry for the rank's instruction set in a table made by HWY_EXPORT. Use QUIRE_PICK.
template <class Function, size_t N>
Function pick(const Rank& rank, Function const (&table)[N]) {
  if constexpr (N == 1) return table[0];
  hwy::ChosenTarget chosen;
  chosen.Update(highway_target(rank));
  return table[chosen.GetIndex()];
}

}  // namespace quire

/// Pointer to the version of an HWY_EXPORTed function for the rank's instruction set.
#define QUIRE_PICK(rank, function) ::quire::pick(rank, HWY_DISPATCH_TABLE(function))
