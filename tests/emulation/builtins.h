// CUDA's built-in variables and functions as kernels name them, on the emulated machine.
#pragma once
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "machine.h"
#include "sanitizers.h"

#define threadIdx (::emulation::position.thread)
#define blockIdx (::emulation::position.block)
#define blockDim (::emulation::position.block_size)
#define gridDim (::emulation::position.grid_size)
#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif
#ifndef __grid_constant__
#define __grid_constant__
#endif
#define EMULATION_LINE uint32_t here = __builtin_LINE()

inline void __syncthreads(EMULATION_LINE) { emulation::block_barrier(here); }
inline int __syncthreads_or(int vote, EMULATION_LINE) { return emulation::block_barrier(here, vote != 0) != 0; }
inline int __syncthreads_count(int vote, EMULATION_LINE) { return emulation::block_barrier(here, vote != 0); }
inline int __syncthreads_and(int vote, EMULATION_LINE) { return emulation::block_barrier(here, vote == 0) == 0; }
inline void __syncwarp(uint32_t mask = emulation::all_lanes, EMULATION_LINE) { emulation::warp_barrier(mask, here); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() {}

namespace emulation {

/// What `source` of the warp brings.
template <class T>
T shuffle(uint32_t mask, T value, int source, uint32_t line) {
  static_assert(sizeof(T) <= sizeof(LaneValue) && std::is_trivially_copyable_v<T>);
  LaneValue mine{};
  std::memcpy(&mine, &value, sizeof(T));
  const Met met = meet(mask, Operation::shuffle, line, mine);
  if ((met.meeting.mask >> source & 1) == 0) fail_kernel("a shuffle reads lane " + std::to_string(source) + ", which is not in its mask");
  const LaneValue read = lane_value(met, source);
  T result;
  std::memcpy(static_cast<void*>(&result), &read, sizeof(T));
  return result;
}
inline int same_part(int from, int lane, int width) { return from >= 0 && from / width == lane / width ? from : lane; }

}  // namespace emulation

template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32, EMULATION_LINE) {
  return emulation::shuffle(mask, value, emulation::lane() / width * width + (source & (width - 1)), here);
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32, EMULATION_LINE) {
  const int lane = emulation::lane();
  return emulation::shuffle(mask, value, emulation::same_part(lane ^ bits, lane, width), here);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned distance, int width = 32, EMULATION_LINE) {
  const int lane = emulation::lane();
  return emulation::shuffle(mask, value, emulation::same_part(lane + static_cast<int>(distance), lane, width), here);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned distance, int width = 32, EMULATION_LINE) {
  const int lane = emulation::lane();
  return emulation::shuffle(mask, value, emulation::same_part(lane - static_cast<int>(distance), lane, width), here);
}
inline uint32_t __ballot_sync(uint32_t mask, int vote, EMULATION_LINE) { return emulation::ballot(mask, vote != 0, here); }
inline int __any_sync(uint32_t mask, int vote, EMULATION_LINE) { return emulation::ballot(mask, vote != 0, here) != 0; }
inline int __all_sync(uint32_t mask, int vote, EMULATION_LINE) { return emulation::ballot(mask, vote == 0, here) == 0; }
inline uint32_t __activemask() { return emulation::all_lanes; }

// Atomic operations on integers. Floating-point ones are left out: their order would change results.
template <class T> concept AtomicInteger = std::is_integral_v<T>;
template <AtomicInteger T> T atomicAdd(T* to, std::type_identity_t<T> value) { return std::atomic_ref<T>(*to).fetch_add(value); }
template <AtomicInteger T> T atomicOr(T* to, std::type_identity_t<T> value) { return std::atomic_ref<T>(*to).fetch_or(value); }
template <AtomicInteger T> T atomicAnd(T* to, std::type_identity_t<T> value) { return std::atomic_ref<T>(*to).fetch_and(value); }
template <AtomicInteger T> T atomicXor(T* to, std::type_identity_t<T> value) { return std::atomic_ref<T>(*to).fetch_xor(value); }
template <AtomicInteger T> T atomicExch(T* to, std::type_identity_t<T> value) { return std::atomic_ref<T>(*to).exchange(value); }
template <AtomicInteger T>
T atomicCAS(T* to, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  std::atomic_ref<T>(*to).compare_exchange_strong(expected, value);
  return expected;
}
template <AtomicInteger T>
T atomicMax(T* to, std::type_identity_t<T> value) {
  const std::atomic_ref<T> cell(*to);
  T old = cell.load();
  while (old < value && !cell.compare_exchange_weak(old, value)) {}
  return old;
}
template <AtomicInteger T>
T atomicMin(T* to, std::type_identity_t<T> value) {
  const std::atomic_ref<T> cell(*to);
  T old = cell.load();
  while (old > value && !cell.compare_exchange_weak(old, value)) {}
  return old;
}

// Numbers. The standard library has the rest under CUDA's names: expf, logf, sqrtf, fmaf, fmaxf, ...
#define EMULATION_MIN_MAX(T)                          \
  constexpr T min(T a, T b) { return b < a ? b : a; } \
  constexpr T max(T a, T b) { return a < b ? b : a; }
EMULATION_MIN_MAX(int)
EMULATION_MIN_MAX(unsigned)
EMULATION_MIN_MAX(long)
EMULATION_MIN_MAX(unsigned long)
EMULATION_MIN_MAX(long long)
EMULATION_MIN_MAX(unsigned long long)
#undef EMULATION_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __exp2f(float x) { return exp2f(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __ffsll(long long x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned long long>(x)) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
template <class T> T __ldg(const T* from) { return *from; }
template <class T> T __ldcs(const T* from) { return *from; }
template <class T> void __stcs(T* to, std::type_identity_t<T> value) { *to = value; }
