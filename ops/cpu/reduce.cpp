// Sums and sums of squares in f64 on the CPU.
#include "ops/cpu/elementwise.h"
#include "ops/kernels.h"
#include "runtime/rank.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/reduce.cpp"
#include "ops/cpu/targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

using Wide = hn::ScalableTag<double>;

HWY_INLINE hn::Vec<Wide> widened(Wide d, const double* p, int64_t n) { return load_first(d, p, n); }
template <class T>
HWY_INLINE hn::Vec<Wide> widened(Wide d, const T* p, int64_t n) {
  return hn::PromoteTo(d, load_first(hn::Rebind<float, Wide>(), p, n));
}

template <class T>
double sum(const T* x, int64_t count, bool squared) {
  const Wide d;
  if (!squared) return sum_of(d, count, [&](int64_t i, int64_t n) HWY_ATTR { return widened(d, x + i, n); });
  return sum_of(d, count, [&](int64_t i, int64_t n) HWY_ATTR {
    const auto v = widened(d, x + i, n);
    return hn::Mul(v, v);
  });
}

void reduce_range(const ReduceArgs& args, int64_t begin, int64_t end, double* result) {
  by_type(args.type, [&](auto t) HWY_ATTR {
    *result = sum(static_cast<const decltype(t)*>(args.x) + begin, end - begin, args.power == 2);
  });
}

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace {

HWY_EXPORT(reduce_range);

bool can_reduce(const ReduceArgs& args) { return is_floating(args.type) && (args.power == 1 || args.power == 2); }

void reduce(Rank& rank, const ReduceArgs& args) {
  constexpr int64_t chunk_elements = 4096, chunks_per_task = 8;
  const auto range = QUIRE_PICK(rank, reduce_range);
  const int64_t chunks = chunks_of(args.count, chunk_elements);
  Workspace workspace(rank.stack());
  double* partials = workspace.take<double>(chunks);
  rank.pool().parallel_for(chunks_of(chunks, chunks_per_task), [&](int64_t task, int) {
    for (int64_t chunk = task * chunks_per_task; chunk < std::min(chunks, (task + 1) * chunks_per_task); ++chunk)
      range(args, chunk * chunk_elements, std::min(args.count, (chunk + 1) * chunk_elements), partials + chunk);
  });
  double sum = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partials[chunk];
  *args.result = sum;
}

bool can_square(const SquaresArgs& args) { return is_floating(args.type); }

void squares(Rank& rank, const SquaresArgs& args) {
  for (const SquaresTensor& tensor : args.tensors) reduce(rank, ReduceArgs{args.type, tensor.count, 2, tensor.x, tensor.result});
}

}  // namespace

template <>
KernelList<ReduceArgs> cpu_kernels<ReduceArgs>() {
  static constexpr Kernel<ReduceArgs> list[] = {{"vector", can_reduce, reduce}};
  return list;
}

template <>
KernelList<SquaresArgs> cpu_kernels<SquaresArgs>() {
  static constexpr Kernel<SquaresArgs> list[] = {{"vector", can_square, squares}};
  return list;
}

}  // namespace quire
#endif
