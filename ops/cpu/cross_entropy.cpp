// Cross-entropy of rows of logits on the CPU, with z-loss (Chowdhery et al., 2022: z_weight * lse^2).
#include <cmath>
#include <limits>

#include "ops/cpu/elementwise.h"
#include "ops/kernels.h"
#include "runtime/rank.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/cross_entropy.cpp"
#include "ops/cpu/targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/elementwise-inl.h"
#include "ops/cpu/exponential-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

constexpr int32_t ignored_target = -100;

template <class A>
void forward_rows(const CrossEntropyForwardArgs& args, int64_t begin, int64_t end) {
  const hn::ScalableTag<A> d;
  constexpr A minus_infinity = -std::numeric_limits<A>::infinity();
  for (int64_t row = begin; row < end; ++row) {
    const A* x = static_cast<const A*>(args.logits) + row * args.vocabulary;
    auto largest = hn::Set(d, minus_infinity);
    for_each_vector(d, args.vocabulary, [&](int64_t i, int64_t n) HWY_ATTR {
      largest = hn::Max(largest, load_first(d, x + i, n, minus_infinity));
    });
    const A most = hn::GetLane(hn::MaxOfLanes(d, largest));
    const auto shift = hn::Set(d, most);
    // The terms of the largest logits, e^0 each, are counted apart, so that log1p keeps the digits of a sum that is all but 1.
    auto tops = hn::Zero(d);
    const A rest = sum_of(d, args.vocabulary, [&](int64_t i, int64_t n) HWY_ATTR {
      const auto logit = load_first(d, x + i, n, minus_infinity);
      const auto top = hn::Eq(logit, shift);
      tops = hn::Add(tops, hn::IfThenElseZero(top, hn::Set(d, A(1))));
      return hn::IfThenZeroElse(top, exponential(d, hn::Sub(logit, shift)));
    });
    const A log_sum = std::log1p(hn::GetLane(hn::SumOfLanes(d, tops)) - A(1) + rest);
    const A lse = most + log_sum;
    const int32_t target = args.targets[row];
    static_cast<A*>(args.lse)[row] = lse;
    // (most - x) + log_sum keeps the digits that lse - x would lose where the logits are large.
    static_cast<A*>(args.nll)[row] =
        target == ignored_target ? A(0) : (most - x[target]) + log_sum + static_cast<A>(args.z_weight) * lse * lse;
  }
}

template <class T>
void backward_rows(const CrossEntropyBackwardArgs& args, int64_t begin, int64_t end) {
  using A = AccumulatorType<T>;
  const Tag<T> d;
  const A scale = static_cast<A>(*args.scale);
  for (int64_t row = begin; row < end; ++row) {
    const A* x = static_cast<const A*>(args.logits) + row * args.vocabulary;
    T* dx = static_cast<T*>(args.dlogits) + row * args.vocabulary;
    const int32_t target = args.targets[row];
    if (target == ignored_target) {
      std::fill(dx, dx + args.vocabulary, T{});
      continue;
    }
    const A lse = static_cast<const A*>(args.lse)[row];
    const auto shift = hn::Set(d, lse), factor = hn::Set(d, scale);
    const auto weight = hn::Set(d, A(1) + A(2) * static_cast<A>(args.z_weight) * lse);
    const auto target_softmax = exponential(d, hn::Sub(hn::Set(d, x[target]), shift));  // before dx, which may be x, is written
    for_each_vector(d, args.vocabulary, [&](int64_t i, int64_t n) HWY_ATTR {
      const auto softmax = exponential(d, hn::Sub(load_first(d, x + i, n), shift));
      store_first(d, hn::Mul(factor, hn::Mul(softmax, weight)), dx + i, n);
    });
    store_first(d, hn::Mul(factor, hn::Sub(hn::Mul(target_softmax, weight), hn::Set(d, A(1)))), dx + target, 1);
  }
}

void cross_entropy_forward_rows(const CrossEntropyForwardArgs& args, int64_t begin, int64_t end) {
  if (args.type == DType::f64) forward_rows<double>(args, begin, end);
  else forward_rows<float>(args, begin, end);
}
void cross_entropy_backward_rows(const CrossEntropyBackwardArgs& args, int64_t begin, int64_t end) {
  by_type(args.type, [&](auto t) HWY_ATTR { backward_rows<decltype(t)>(args, begin, end); });
}

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace {

constexpr int32_t ignored = -100;

HWY_EXPORT(cross_entropy_forward_rows);
HWY_EXPORT(cross_entropy_backward_rows);

template <class Args>
void in_rows(Rank& rank, const Args& args, void (*rows)(const Args&, int64_t, int64_t)) {
  const int64_t chunk_rows = rows_per_task(args.vocabulary);
  rank.pool().parallel_for(chunks_of(args.rows, chunk_rows), [&](int64_t chunk, int) {
    rows(args, chunk * chunk_rows, std::min(args.rows, (chunk + 1) * chunk_rows));
  });
}
void forward(Rank& rank, const CrossEntropyForwardArgs& args) { in_rows(rank, args, QUIRE_PICK(rank, cross_entropy_forward_rows)); }
void backward(Rank& rank, const CrossEntropyBackwardArgs& args) { in_rows(rank, args, QUIRE_PICK(rank, cross_entropy_backward_rows)); }

template <class A>
void reference_forward(const CrossEntropyForwardArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const A* x = static_cast<const A*>(args.logits) + row * args.vocabulary;
    const A most = *std::max_element(x, x + args.vocabulary);
    A sum = 0;
    for (int64_t i = 0; i < args.vocabulary; ++i) sum += std::exp(x[i] - most);
    const A lse = most + std::log(sum);
    const int32_t target = args.targets[row];
    static_cast<A*>(args.lse)[row] = lse;
    static_cast<A*>(args.nll)[row] = target == ignored ? A(0) : lse - x[target] + static_cast<A>(args.z_weight) * lse * lse;
  }
}

template <class T>
void reference_backward(const CrossEntropyBackwardArgs& args) {
  using A = AccumulatorType<T>;
  for (int64_t row = 0; row < args.rows; ++row) {
    const A* x = static_cast<const A*>(args.logits) + row * args.vocabulary;
    const int32_t target = args.targets[row];
    const A lse = static_cast<const A*>(args.lse)[row], weight = A(1) + A(2) * static_cast<A>(args.z_weight) * lse;
    for (int64_t i = 0; i < args.vocabulary; ++i) {
      const A gradient = std::exp(x[i] - lse) * weight - (i == target ? A(1) : A(0));
      static_cast<T*>(args.dlogits)[row * args.vocabulary + i] = target == ignored ? T{} : rounded<T>(static_cast<A>(*args.scale) * gradient);
    }
  }
}

}  // namespace

template <>
KernelList<CrossEntropyForwardArgs> cpu_kernels<CrossEntropyForwardArgs>() {
  static constexpr Kernel<CrossEntropyForwardArgs> list[] = {
      {"vector", floating_type<CrossEntropyForwardArgs>, forward},
      {"reference", floating_type<CrossEntropyForwardArgs>,
       [](Rank&, const CrossEntropyForwardArgs& args) {
         by_type(args.type, [&](auto t) { reference_forward<AccumulatorType<decltype(t)>>(args); });
       }},
  };
  return list;
}

template <>
KernelList<CrossEntropyBackwardArgs> cpu_kernels<CrossEntropyBackwardArgs>() {
  static constexpr Kernel<CrossEntropyBackwardArgs> list[] = {
      {"vector", floating_type<CrossEntropyBackwardArgs>, backward},
      {"reference", floating_type<CrossEntropyBackwardArgs>,
       [](Rank&, const CrossEntropyBackwardArgs& args) { by_type(args.type, [&](auto t) { reference_backward<decltype(t)>(args); }); }},
  };
  return list;
}

}  // namespace quire
#endif
