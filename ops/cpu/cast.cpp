// Conversions between the floating types on the CPU.
#include <bit>
#include <cmath>
#include <cstring>

#include "ops/cpu/elementwise.h"
#include "ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/cast.cpp"
#include "ops/cpu/targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

/// To the nearest float with an odd last bit where x is no float: rounding that to bf16 rounds x once.
inline float rounded_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  const double back = static_cast<double>(nearest);
  if (back == x || x != x) return nearest;
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  return std::bit_cast<float>((std::abs(back) > std::abs(x) ? bits - 1 : bits) | 1u);
}

template <class From, class To>
void convert(const From* from, To* to, int64_t count) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(From));
  } else if constexpr (std::is_same_v<From, double> && std::is_same_v<To, bf16>) {
    for (int64_t i = 0; i < count; ++i) to[i] = bf16(rounded_to_odd(from[i]));
  } else if constexpr (std::is_same_v<From, double> || std::is_same_v<To, double>) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(read(from[i]));
  } else {
    const hn::ScalableTag<float> d;
    for_each_vector(d, count, [&](int64_t i, int64_t n) HWY_ATTR { store_first(d, load_first(d, from + i, n), to + i, n); });
  }
}

void cast_range(const CastArgs& args, int64_t begin, int64_t end) {
  by_type(args.from_type, [&](auto from) HWY_ATTR {
    by_type(args.to_type, [&](auto to) HWY_ATTR {
      convert(static_cast<const decltype(from)*>(args.from) + begin, static_cast<decltype(to)*>(args.to) + begin, end - begin);
    });
  });
}

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace {

HWY_EXPORT(cast_range);

bool can_cast(const CastArgs& args) { return is_floating(args.from_type) && is_floating(args.to_type); }
void cast(Rank& rank, const CastArgs& args) { in_ranges(rank, args, QUIRE_PICK(rank, cast_range)); }

}  // namespace

template <>
KernelList<CastArgs> cpu_kernels<CastArgs>() {
  static constexpr Kernel<CastArgs> list[] = {{"vector", can_cast, cast}};
  return list;
}

}  // namespace quire
#endif
