// Sums of two arrays on the CPU.
#include "ops/cpu/elementwise.h"
#include "ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/add.cpp"
#include "ops/cpu/targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

/// `into` may be `a` or `b`.
void sum_range(const SumArgs& args, int64_t begin, int64_t end) {
  by_type(args.type, [&](auto t) HWY_ATTR {
    using T = decltype(t);
    const Tag<T> d;
    const T* a = static_cast<const T*>(args.a) + begin;
    const T* b = static_cast<const T*>(args.b) + begin;
    T* into = static_cast<T*>(args.into) + begin;
    for_each_vector(d, end - begin, [&](int64_t i, int64_t n) HWY_ATTR {
      store_first(d, hn::Add(load_first(d, a + i, n), load_first(d, b + i, n)), into + i, n);
    });
  });
}

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace {

HWY_EXPORT(sum_range);

void sum(Rank& rank, const SumArgs& args) { in_ranges(rank, args, QUIRE_PICK(rank, sum_range)); }
void add(Rank& rank, const AddArgs& args) { sum(rank, {args.type, args.count, args.into, args.from, args.into}); }

}  // namespace

template <>
KernelList<AddArgs> cpu_kernels<AddArgs>() {
  static constexpr Kernel<AddArgs> list[] = {{"vector", floating_type<AddArgs>, add}};
  return list;
}

template <>
KernelList<SumArgs> cpu_kernels<SumArgs>() {
  static constexpr Kernel<SumArgs> list[] = {{"vector", floating_type<SumArgs>, sum}};
  return list;
}

}  // namespace quire
#endif
