// SwiGLU on the CPU (Shazeer, 2020): silu(gate) * up with silu(x) = x / (1 + e^-x).
#include <cmath>

#include "ops/cpu/elementwise.h"
#include "ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/swiglu.cpp"
#include "ops/cpu/targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/elementwise-inl.h"
#include "ops/cpu/exponential-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

template <class T>
void forward_range(const SwigluForwardArgs& args, int64_t begin, int64_t end) {
  const Tag<T> d;
  const T* gate = static_cast<const T*>(args.gate) + begin;
  const T* up = static_cast<const T*>(args.up) + begin;
  T* y = static_cast<T*>(args.y) + begin;
  for_each_vector(d, end - begin, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto x = load_first(d, gate + i, n);
    store_first(d, hn::Mul(hn::Mul(x, logistic(d, x).value), load_first(d, up + i, n)), y + i, n);
  });
}

/// silu'(x) = s (1 + x (1 - s)) with s = 1 / (1 + e^-x).
template <class T>
void backward_range(const SwigluBackwardArgs& args, int64_t begin, int64_t end) {
  const Tag<T> d;
  const T* gate = static_cast<const T*>(args.gate) + begin;
  const T* up = static_cast<const T*>(args.up) + begin;
  const T* dy = static_cast<const T*>(args.dy) + begin;
  T* dgate = static_cast<T*>(args.dgate) + begin;
  T* dup = static_cast<T*>(args.dup) + begin;
  const auto one = hn::Set(d, AccumulatorType<T>(1));
  for_each_vector(d, end - begin, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto x = load_first(d, gate + i, n), gradient = load_first(d, dy + i, n);
    const auto s = logistic(d, x);
    const auto slope = hn::Mul(s.value, hn::MulAdd(x, s.complement, one));
    const auto gate_gradient = hn::Mul(hn::Mul(gradient, load_first(d, up + i, n)), slope);
    store_first(d, hn::Mul(gradient, hn::Mul(x, s.value)), dup + i, n);
    store_first(d, gate_gradient, dgate + i, n);
  });
}

void swiglu_forward_range(const SwigluForwardArgs& args, int64_t begin, int64_t end) {
  by_type(args.type, [&](auto t) HWY_ATTR { forward_range<decltype(t)>(args, begin, end); });
}
void swiglu_backward_range(const SwigluBackwardArgs& args, int64_t begin, int64_t end) {
  by_type(args.type, [&](auto t) HWY_ATTR { backward_range<decltype(t)>(args, begin, end); });
}

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace {

HWY_EXPORT(swiglu_forward_range);
HWY_EXPORT(swiglu_backward_range);

void forward(Rank& rank, const SwigluForwardArgs& args) { in_ranges(rank, args, QUIRE_PICK(rank, swiglu_forward_range)); }
void backward(Rank& rank, const SwigluBackwardArgs& args) { in_ranges(rank, args, QUIRE_PICK(rank, swiglu_backward_range)); }

template <class T>
void reference_forward(const SwigluForwardArgs& args) {
  using A = AccumulatorType<T>;
  for (int64_t i = 0; i < args.count; ++i) {
    const A x = read(static_cast<const T*>(args.gate)[i]);
    static_cast<T*>(args.y)[i] = rounded<T>(x / (A(1) + std::exp(-x)) * read(static_cast<const T*>(args.up)[i]));
  }
}

template <class T>
void reference_backward(const SwigluBackwardArgs& args) {
  using A = AccumulatorType<T>;
  for (int64_t i = 0; i < args.count; ++i) {
    const A x = read(static_cast<const T*>(args.gate)[i]), dy = read(static_cast<const T*>(args.dy)[i]);
    const A s = A(1) / (A(1) + std::exp(-x));
    static_cast<T*>(args.dgate)[i] = rounded<T>(dy * read(static_cast<const T*>(args.up)[i]) * s * (A(1) + x * (A(1) - s)));
    static_cast<T*>(args.dup)[i] = rounded<T>(dy * x * s);
  }
}

}  // namespace

template <>
KernelList<SwigluForwardArgs> cpu_kernels<SwigluForwardArgs>() {
  static constexpr Kernel<SwigluForwardArgs> list[] = {
      {"vector", floating_type<SwigluForwardArgs>, forward},
      {"reference", floating_type<SwigluForwardArgs>,
       [](Rank&, const SwigluForwardArgs& args) { by_type(args.type, [&](auto t) { reference_forward<decltype(t)>(args); }); }},
  };
  return list;
}

template <>
KernelList<SwigluBackwardArgs> cpu_kernels<SwigluBackwardArgs>() {
  static constexpr Kernel<SwigluBackwardArgs> list[] = {
      {"vector", floating_type<SwigluBackwardArgs>, backward},
      {"reference", floating_type<SwigluBackwardArgs>,
       [](Rank&, const SwigluBackwardArgs& args) { by_type(args.type, [&](auto t) { reference_backward<decltype(t)>(args); }); }},
  };
  return list;
}

}  // namespace quire
#endif
