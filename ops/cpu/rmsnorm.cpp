// RMS normalisation on the CPU (Zhang and Sennrich, 2019).
#include <cmath>

#include "ops/cpu/elementwise.h"
#include "ops/kernels.h"
#include "runtime/rank.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rmsnorm.cpp"
#include "ops/cpu/targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

template <class T>
void forward_rows(const RmsNormForwardArgs& args, int64_t begin, int64_t end) {
  using A = AccumulatorType<T>;
  const Tag<T> d;
  const T* gain = static_cast<const T*>(args.gain);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.width;
    T* y = static_cast<T*>(args.y) + row * args.width;
    A squares;
    if (args.added == nullptr) {
      squares = sum_of(d, args.width, [&](int64_t i, int64_t n) HWY_ATTR {
        const auto v = load_first(d, x + i, n);
        return hn::Mul(v, v);
      });
    } else {
      const T* added = static_cast<const T*>(args.added) + row * args.width;
      T* sum = static_cast<T*>(args.sum) + row * args.width;
      squares = sum_of(d, args.width, [&](int64_t i, int64_t n) HWY_ATTR {
        auto v = hn::Add(load_first(d, x + i, n), load_first(d, added + i, n));
        store_first(d, v, sum + i, n);
        if constexpr (!std::is_same_v<T, A>) v = load_first(d, sum + i, n);  // as rounded: what backward reads
        return hn::Mul(v, v);
      });
      x = sum;
    }
    const A rstd = A(1) / std::sqrt(squares / static_cast<A>(args.width) + static_cast<A>(args.eps));
    static_cast<A*>(args.rstd)[row] = rstd;
    const auto scale = hn::Set(d, rstd);
    for_each_vector(d, args.width, [&](int64_t i, int64_t n) HWY_ATTR {
      store_first(d, hn::Mul(hn::Mul(load_first(d, x + i, n), scale), load_first(d, gain + i, n)), y + i, n);
    });
  }
}

/// With h = x rstd and g = dy gain: dx = rstd (g - h mean(g h)); partial [width] = sum over these rows of dy h.
template <class T, bool adds>
void backward_rows(const RmsNormBackwardArgs& args, int64_t begin, int64_t end, AccumulatorType<T>* partial) {
  using A = AccumulatorType<T>;
  const Tag<T> d;
  const T* gain = static_cast<const T*>(args.gain);
  const T* so_far = static_cast<const T*>(args.so_far);
  for (int64_t i = 0; i < args.width; ++i) partial[i] = A(0);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.width;
    const T* dy = static_cast<const T*>(args.dy) + row * args.width;
    T* dx = static_cast<T*>(args.dx) + row * args.width;
    const A rstd = static_cast<const A*>(args.rstd)[row];
    const auto scale = hn::Set(d, rstd);
    const A dot = sum_of(d, args.width, [&](int64_t i, int64_t n) HWY_ATTR {
      const auto gradient = load_first(d, dy + i, n);
      const auto along = hn::Mul(gradient, hn::Mul(load_first(d, x + i, n), scale));
      store_first(d, hn::Add(load_first(d, partial + i, n), along), partial + i, n);
      return hn::Mul(along, load_first(d, gain + i, n));
    });
    const auto mean = hn::Set(d, dot / static_cast<A>(args.width));
    for_each_vector(d, args.width, [&](int64_t i, int64_t n) HWY_ATTR {
      const auto normal = hn::Mul(load_first(d, x + i, n), scale);
      const auto g = hn::Mul(load_first(d, dy + i, n), load_first(d, gain + i, n));
      auto gradient = hn::Mul(scale, hn::NegMulAdd(normal, mean, g));
      if constexpr (adds) gradient = hn::Add(load_first(d, so_far + row * args.width + i, n), gradient);
      store_first(d, gradient, dx + i, n);
    });
  }
}

void rmsnorm_forward_rows(const RmsNormForwardArgs& args, int64_t begin, int64_t end) {
  by_type(args.type, [&](auto t) HWY_ATTR { forward_rows<decltype(t)>(args, begin, end); });
}
void rmsnorm_backward_rows(const RmsNormBackwardArgs& args, int64_t begin, int64_t end, void* partial) {
  by_type(args.type, [&](auto t) HWY_ATTR {
    using T = decltype(t);
    auto* sums = static_cast<AccumulatorType<T>*>(partial);
    if (args.so_far == nullptr) backward_rows<T, false>(args, begin, end, sums);
    else backward_rows<T, true>(args, begin, end, sums);
  });
}

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace {

HWY_EXPORT(rmsnorm_forward_rows);
HWY_EXPORT(rmsnorm_backward_rows);

void forward(Rank& rank, const RmsNormForwardArgs& args) {
  const auto rows = QUIRE_PICK(rank, rmsnorm_forward_rows);
  const int64_t chunk_rows = rows_per_task(args.width);
  rank.pool().parallel_for(chunks_of(args.rows, chunk_rows), [&](int64_t chunk, int) {
    rows(args, chunk * chunk_rows, std::min(args.rows, (chunk + 1) * chunk_rows));
  });
}

/// Rows whose contributions to the gain's gradient are added up before chunks are combined. Depends on the width alone.
int64_t backward_chunk(int64_t width) { return std::max<int64_t>(64, rows_per_task(width)); }

/// dgain += the chunks' partial sums, in ascending order.
template <class A>
void add_partials(Rank& rank, const A* partials, int64_t chunks, int64_t width, A* dgain) {
  constexpr int64_t columns = 256;
  rank.pool().parallel_for(chunks_of(width, columns), [&](int64_t block, int) {
    for (int64_t i = block * columns; i < std::min(width, (block + 1) * columns); ++i) {
      A sum = 0;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partials[chunk * width + i];
      dgain[i] += sum;
    }
  });
}

void backward(Rank& rank, const RmsNormBackwardArgs& args) {
  const auto rows = QUIRE_PICK(rank, rmsnorm_backward_rows);
  const int64_t chunk_rows = backward_chunk(args.width), chunks = chunks_of(args.rows, chunk_rows);
  by_type(args.type, [&](auto t) {
    using A = AccumulatorType<decltype(t)>;
    Workspace workspace(rank.stack());
    A* partials = workspace.take<A>(chunks * args.width);
    rank.pool().parallel_for(chunks, [&](int64_t chunk, int) {
      rows(args, chunk * chunk_rows, std::min(args.rows, (chunk + 1) * chunk_rows), partials + chunk * args.width);
    });
    add_partials(rank, partials, chunks, args.width, static_cast<A*>(args.dgain));
  });
}

template <class T>
void reference_forward(const RmsNormForwardArgs& args) {
  using A = AccumulatorType<T>;
  for (int64_t row = 0; row < args.rows; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.width;
    if (args.added != nullptr) {
      T* sum = static_cast<T*>(args.sum) + row * args.width;
      for (int64_t i = 0; i < args.width; ++i) sum[i] = rounded<T>(read(x[i]) + read(static_cast<const T*>(args.added)[row * args.width + i]));
      x = sum;
    }
    A squares = 0;
    for (int64_t i = 0; i < args.width; ++i) squares += read(x[i]) * read(x[i]);
    const A rstd = A(1) / std::sqrt(squares / static_cast<A>(args.width) + static_cast<A>(args.eps));
    static_cast<A*>(args.rstd)[row] = rstd;
    for (int64_t i = 0; i < args.width; ++i)
      static_cast<T*>(args.y)[row * args.width + i] = rounded<T>(read(x[i]) * rstd * read(static_cast<const T*>(args.gain)[i]));
  }
}

template <class T>
void reference_backward(const RmsNormBackwardArgs& args) {
  using A = AccumulatorType<T>;
  const T* gain = static_cast<const T*>(args.gain);
  for (int64_t row = 0; row < args.rows; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.width;
    const T* dy = static_cast<const T*>(args.dy) + row * args.width;
    const A rstd = static_cast<const A*>(args.rstd)[row];
    A dot = 0;
    for (int64_t i = 0; i < args.width; ++i) {
      static_cast<A*>(args.dgain)[i] += read(dy[i]) * read(x[i]) * rstd;
      dot += read(dy[i]) * read(gain[i]) * read(x[i]) * rstd;
    }
    const A mean = dot / static_cast<A>(args.width);
    for (int64_t i = 0; i < args.width; ++i) {
      const A so_far = args.so_far != nullptr ? read(static_cast<const T*>(args.so_far)[row * args.width + i]) : A(0);
      static_cast<T*>(args.dx)[row * args.width + i] = rounded<T>(so_far + rstd * (read(dy[i]) * read(gain[i]) - read(x[i]) * rstd * mean));
    }
  }
}

}  // namespace

template <>
KernelList<RmsNormForwardArgs> cpu_kernels<RmsNormForwardArgs>() {
  static constexpr Kernel<RmsNormForwardArgs> list[] = {
      {"vector", floating_type<RmsNormForwardArgs>, forward},
      {"reference", floating_type<RmsNormForwardArgs>,
       [](Rank&, const RmsNormForwardArgs& args) { by_type(args.type, [&](auto t) { reference_forward<decltype(t)>(args); }); }},
  };
  return list;
}

template <>
KernelList<RmsNormBackwardArgs> cpu_kernels<RmsNormBackwardArgs>() {
  static constexpr Kernel<RmsNormBackwardArgs> list[] = {
      {"vector", floating_type<RmsNormBackwardArgs>, backward},
      {"reference", floating_type<RmsNormBackwardArgs>,
       [](Rank&, const RmsNormBackwardArgs& args) { by_type(args.type, [&](auto t) { reference_backward<decltype(t)>(args); }); }},
  };
  return list;
}

}  // namespace quire
#endif
