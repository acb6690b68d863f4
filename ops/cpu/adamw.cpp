// AdamW on the CPU (Loshchilov and Hutter, 2019).
#include "ops/cpu/elementwise.h"
#include "ops/kernels.h"

#ifndef QUIRE_OPS_CPU_ADAMW
#define QUIRE_OPS_CPU_ADAMW
namespace quire {
namespace {

/// What a range of elements is of.
struct OneTensor {
  const AdamWArgs& all;
  const AdamWTensor& tensor;
  int64_t count;
};

}  // namespace
}  // namespace quire
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/adamw.cpp"
#include "ops/cpu/targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

template <class T>
void update(const OneTensor& args, int64_t begin, int64_t end) {
  using A = AccumulatorType<T>;
  const Tag<T> d;
  const OptimizerScalars& s = *args.all.scalars;
  const AdamWTensor& tensor = args.tensor;
  const auto constant = [&](double x) HWY_ATTR { return hn::Set(d, static_cast<A>(x)); };
  const auto keep1 = constant(args.all.beta1), take1 = constant(1 - args.all.beta1);
  const auto keep2 = constant(args.all.beta2), take2 = constant(1 - args.all.beta2);
  const auto unbias1 = constant(1 / s.bias1), unbias2 = constant(1 / s.bias2);
  const auto rate = constant(s.learning_rate), clip = constant(s.clip), eps = constant(args.all.eps), decay = constant(tensor.weight_decay);
  const A* gradient = static_cast<const A*>(tensor.gradient) + begin;
  A* master = static_cast<A*>(tensor.master) + begin;
  A* moment1 = static_cast<A*>(tensor.moment1) + begin;
  A* moment2 = static_cast<A*>(tensor.moment2) + begin;
  T* value = tensor.value ? static_cast<T*>(tensor.value) + begin : nullptr;
  for_each_vector(d, end - begin, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto g = hn::Mul(load_first(d, gradient + i, n), clip);
    const auto m = hn::Add(hn::Mul(keep1, load_first(d, moment1 + i, n)), hn::Mul(take1, g));
    const auto v = hn::Add(hn::Mul(keep2, load_first(d, moment2 + i, n)), hn::Mul(take2, hn::Mul(g, g)));
    store_first(d, m, moment1 + i, n);
    store_first(d, v, moment2 + i, n);
    const auto step = hn::Div(hn::Mul(m, unbias1), hn::Add(hn::Sqrt(hn::Mul(v, unbias2)), eps));
    const auto weight = load_first(d, master + i, n);
    const auto updated = hn::Sub(weight, hn::Mul(rate, hn::Add(step, hn::Mul(decay, weight))));
    store_first(d, updated, master + i, n);
    if (value) store_first(d, updated, value + i, n);
  });
}

void adamw_range(const OneTensor& args, int64_t begin, int64_t end) {
  by_type(args.all.type, [&](auto t) HWY_ATTR { update<decltype(t)>(args, begin, end); });
}

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace {

HWY_EXPORT(adamw_range);

void adamw(Rank& rank, const AdamWArgs& args) {
  if (args.scalars->skip != 0) return;
  const auto range = QUIRE_PICK(rank, adamw_range);
  for (const AdamWTensor& tensor : args.tensors) in_ranges(rank, OneTensor{args, tensor, tensor.count}, range);
}

}  // namespace

template <>
KernelList<AdamWArgs> cpu_kernels<AdamWArgs>() {
  static constexpr Kernel<AdamWArgs> list[] = {{"vector", floating_type<AdamWArgs>, adamw}};
  return list;
}

}  // namespace quire
#endif
