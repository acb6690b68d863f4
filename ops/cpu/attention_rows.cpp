// Attention's row loops: delta of the backward pass, and merging of partial results.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/cpu/attention.h"
#include "ops/cpu/attention_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_rows.cpp"
#include "ops/cpu/targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

template <class T, class A = accumulator_t<T>>
void delta_rows(const AttentionDeltaArgs& args, int64_t begin, int64_t end) {
  const hn::ScalableTag<A> d;
  const int64_t lanes = lanes_of<A>(), width = args.head_dim;
  for (int64_t row = begin * args.heads; row < end * args.heads; ++row) {
    const T *out = static_cast<const T*>(args.out) + row * width, *dout = static_cast<const T*>(args.dout) + row * width;
    auto sum = hn::Zero(d);
    int64_t i = 0;
    for (; i + lanes <= width; i += lanes) sum = hn::MulAdd(load(d, out + i), load(d, dout + i), sum);
    A total = hn::GetLane(hn::SumOfLanes(d, sum));
    for (; i < width; ++i) total += load_one(out + i) * load_one(dout + i);
    static_cast<A*>(args.delta)[row] = total;
  }
}

template <class T, class A = accumulator_t<T>>
void merge_rows(const AttentionMergeArgs& args, int64_t begin, int64_t end) {
  const A lowest = -std::numeric_limits<A>::infinity();
  const int64_t width = args.head_dim;
  for (int64_t row = begin * args.heads; row < end * args.heads; ++row) {
    A* HWY_RESTRICT out = static_cast<A*>(args.out1) + row * width;
    const A* HWY_RESTRICT other = static_cast<const A*>(args.out2) + row * width;
    A& lse = static_cast<A*>(args.lse1)[row];
    const A lse2 = static_cast<const A*>(args.lse2)[row];
    if (lse2 == lowest) continue;
    if (lse == lowest) {
      lse = lse2;
      std::copy_n(other, width, out);
      continue;
    }
    const A most = std::max(lse, lse2), sum = std::exp(lse - most) + std::exp(lse2 - most);
    const A merged = most + std::log(sum), weight = std::exp(lse - most) / sum, weight2 = std::exp(lse2 - most) / sum;
    for (int64_t i = 0; i < width; ++i) out[i] = out[i] * weight + other[i] * weight2;
    lse = merged;
  }
}

}  // namespace

AttentionRowKernels row_kernels(DType type) {
  switch (type) {
    case DType::f64: return {delta_rows<double>, merge_rows<double>};
    case DType::f32: return {delta_rows<float>, merge_rows<float>};
    default: return {delta_rows<bf16>, merge_rows<bf16>};
  }
}

}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
HWY_EXPORT(row_kernels);
AttentionRowKernels attention_row_kernels(const Rank& rank, DType type) { return QUIRE_PICK(rank, row_kernels)(type); }
}  // namespace quire
#endif
