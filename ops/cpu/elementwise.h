// What the elementwise and row-wise CPU kernels share: storage types by DType, their accumulators, and chunk sizes (by shape alone).
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "runtime/dtype.h"
#include "runtime/rank.h"

namespace quire {

/// The type in which values stored as T are computed.
template <class T> using AccumulatorType = std::conditional_t<std::is_same_v<T, double>, double, float>;

constexpr bool is_floating(DType t) { return t == DType::f64 || t == DType::f32 || t == DType::bf16; }

/// Calls f(T{}) with the storage type of `t`, which is a floating one.
template <class F>
void by_type(DType t, F&& f) {
  switch (t) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    case DType::bf16: return f(bf16{});
    default: return;
  }
}

/// A kernel's `can_run` where all that matters is a floating `type`.
template <class Args>
bool floating_type(const Args& args) { return is_floating(args.type); }

/// A kernel's `can_run` where there is nothing to ask.
template <class Args>
bool always(const Args&) { return true; }

/// Elements that one task of an elementwise kernel takes.
constexpr int64_t elements_per_task = 16384;

/// Rows that one task of a row-wise kernel takes. Depends on the width alone.
constexpr int64_t rows_per_task(int64_t width) { return std::clamp<int64_t>(elements_per_task / std::max<int64_t>(width, 1), 1, 1024); }

/// Runs function(args, begin, end) over ranges of [0, args.count) on the rank's threads.
template <class Args>
void in_ranges(Rank& rank, const Args& args, void (*function)(const Args&, int64_t begin, int64_t end)) {
  rank.pool().parallel_for(chunks_of(args.count, elements_per_task), [&](int64_t chunk, int) {
    function(args, chunk * elements_per_task, std::min(args.count, (chunk + 1) * elements_per_task));
  });
}

/// The plain conversions of the reference kernels.
template <class T> AccumulatorType<T> read(T x) { return static_cast<AccumulatorType<T>>(x); }
template <class T> T rounded(AccumulatorType<T> x) { return static_cast<T>(x); }

}  // namespace quire
