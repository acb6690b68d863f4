// Conversions between the floating types on CUDA devices, to the bits of the CPU.
#include "ops/cuda/elementwise.h"

namespace quire {
namespace {

using namespace cuda_kernel;

/// To nearest even; a NaN stays one (made quiet) with the upper bits that it has, which the device's own conversion does not keep.
__device__ inline gpu::bf16 nearest_bf16(float x) {
  const uint32_t bits = __float_as_uint(x);
  const uint16_t upper = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40 : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
  gpu::bf16 result;
  memcpy(static_cast<void*>(&result), &upper, sizeof upper);
  return result;
}

/// To the nearest float with an odd last bit where x is no float: rounding that to bf16 rounds x once.
__device__ inline float rounded_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  const double back = static_cast<double>(nearest);
  if (back == x || x != x) return nearest;
  const uint32_t bits = __float_as_uint(nearest);
  return __uint_as_float((fabs(back) > fabs(x) ? bits - 1 : bits) | 1u);
}

template <class To, class From>
__device__ inline To converted(From x) {
  if constexpr (!std::is_same_v<To, gpu::bf16>) return static_cast<To>(widened(x));
  else if constexpr (std::is_same_v<From, double>) return nearest_bf16(rounded_to_odd(x));
  else return nearest_bf16(x);
}

template <class From, class To>
__global__ void convert(int64_t count, const From* from, To* to, bool vectors) {
  constexpr int n = sizeof(From) == 8 || sizeof(To) == 8 ? 4 : 8;
  for (int64_t i = first_of_grid<n>(); i < count; i += stride_of_grid<n>()) {
    From values[n];
    To results[n];
    load(from + i, count - i, vectors, values);
#pragma unroll
    for (int k = 0; k < n; ++k) results[k] = converted<To>(values[k]);
    store(results, to + i, count - i, vectors);
  }
}

bool can_cast(const CastArgs& args) { return is_floating_type(args.from_type) && is_floating_type(args.to_type); }

void cast(Rank& rank, const CastArgs& args) {
  if (args.count == 0) return;
  if (args.from_type == args.to_type) return copy_on_device(rank, args.from, args.to, args.count * size_of(args.from_type));
  by_floating_type(args.from_type, [&](auto from) {
    by_floating_type(args.to_type, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      if constexpr (!std::is_same_v<From, To>)
        gpu::launch(convert<From, To>, dim3(blocks_of(rank, divided_up(args.count, 4 * block_threads))), dim3(block_threads), 0, stream_of(rank),
            args.count, static_cast<const From*>(args.from), static_cast<To*>(args.to), in_vectors(args.from, args.to));
    });
  });
}

}  // namespace

template <>
KernelList<CastArgs> cuda_kernels<CastArgs>() {
  static constexpr Kernel<CastArgs> list[] = {{"vector", can_cast, cast}};
  return list;
}

}  // namespace quire
