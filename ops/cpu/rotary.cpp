// Rotary positions on the CPU (Su et al., 2021), half-split convention.
#include "ops/cpu/elementwise.h"
#include "ops/kernels.h"
#include "runtime/rank.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rotary.cpp"
#include "ops/cpu/targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

template <class T, class D>
void rotate(D d, const RotaryArgs& args, int64_t begin, int64_t end) {
  using A = AccumulatorType<T>;
  const int64_t half = args.head_dim / 2;
  const auto direction = hn::Set(d, args.inverse ? A(-1) : A(1));
  for (int64_t token = begin; token < end; ++token) {
    const int64_t position = args.positions[token];
    const A* cosine = static_cast<const A*>(args.cosine) + position * half;
    const A* sine = static_cast<const A*>(args.sine) + position * half;
    for (int64_t head = 0; head < args.heads; ++head) {
      const int64_t at = (token * args.heads + head) * args.head_dim;
      const T* x = static_cast<const T*>(args.x) + at;
      T* y = static_cast<T*>(args.y) + at;
      for_each_vector(d, half, [&](int64_t i, int64_t n) HWY_ATTR {
        const auto c = load_first(d, cosine + i, n);
        const auto s = hn::Mul(load_first(d, sine + i, n), direction);
        const auto first = load_first(d, x + i, n), second = load_first(d, x + half + i, n);
        store_first(d, hn::Sub(hn::Mul(first, c), hn::Mul(second, s)), y + i, n);
        store_first(d, hn::Add(hn::Mul(second, c), hn::Mul(first, s)), y + half + i, n);
      });
    }
  }
}

void rotary_tokens(const RotaryArgs& args, int64_t begin, int64_t end) {
  by_type(args.type, [&](auto t) HWY_ATTR {
    using T = decltype(t);
    const Tag<T> d;
    const hn::CappedTag<AccumulatorType<T>, 4> narrow;  // for heads so small that half of one does not fill a vector
    if (args.head_dim / 2 < lanes_of(d)) rotate<T>(narrow, args, begin, end);
    else rotate<T>(d, args, begin, end);
  });
}

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace {

HWY_EXPORT(rotary_tokens);

void rotary(Rank& rank, const RotaryArgs& args) {
  const auto tokens = QUIRE_PICK(rank, rotary_tokens);
  const int64_t chunk = rows_per_task(args.heads * args.head_dim);
  rank.pool().parallel_for(chunks_of(args.tokens, chunk), [&](int64_t c, int) {
    tokens(args, c * chunk, std::min(args.tokens, (c + 1) * chunk));
  });
}

template <class T>
void reference_rotary(const RotaryArgs& args) {
  using A = AccumulatorType<T>;
  const int64_t half = args.head_dim / 2;
  for (int64_t row = 0; row < args.tokens * args.heads; ++row) {
    const int64_t table = args.positions[row / args.heads] * half;
    const T* x = static_cast<const T*>(args.x) + row * args.head_dim;
    T* y = static_cast<T*>(args.y) + row * args.head_dim;
    for (int64_t i = 0; i < half; ++i) {
      const A c = static_cast<const A*>(args.cosine)[table + i];
      const A s = static_cast<const A*>(args.sine)[table + i] * (args.inverse ? A(-1) : A(1));
      const A first = read(x[i]), second = read(x[i + half]);
      y[i] = rounded<T>(first * c - second * s);
      y[i + half] = rounded<T>(second * c + first * s);
    }
  }
}

bool even_head(const RotaryArgs& args) { return is_floating(args.type) && args.head_dim % 2 == 0; }

}  // namespace

template <>
KernelList<RotaryArgs> cpu_kernels<RotaryArgs>() {
  static constexpr Kernel<RotaryArgs> list[] = {
      {"vector", even_head, rotary},
      {"reference", even_head,
       [](Rank&, const RotaryArgs& args) { by_type(args.type, [&](auto t) { reference_rotary<decltype(t)>(args); }); }},
  };
  return list;
}

}  // namespace quire
#endif
