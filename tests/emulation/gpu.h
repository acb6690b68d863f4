// What a kernel includes, on the emulated machine. The CPU twin of ops/cuda/native/gpu.h, which says what each function does.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <tuple>
#include <type_traits>

#include "builtins.h"
#include "planted.h"

/// The block's dynamic shared memory.
#define DYNAMIC_SMEM(name) unsigned char* const name = ::emulation::block().shared

namespace gpu {

using bf16 = __nv_bfloat16;

/// Of the runtime: throws the error of a launch that did not take place.
void throw_launch_error(cudaError_t status, const char* kernel);

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "a launch gives every parameter");
  // Arguments are copied at the launch, as CUDA does.
  const cudaError_t status = emulation::enqueue_grid(
      stream, grid, block, shared_bytes,
      [kernel, values = std::tuple<std::remove_cv_t<Parameters>...>(static_cast<Parameters>(arguments)...)] { std::apply(kernel, values); });
  if (status != cudaSuccess) throw_launch_error(status, "cudaLaunchKernel");
}

// --- bf16
inline float to_float(float x) { return x; }
inline float to_float(bf16 x) {
  uint16_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
template <class T> T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  else return __float2bfloat16(x);
}
inline float bf16_low(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
inline float bf16_high(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }
inline uint32_t pack_bf16(float low, float high) {
  const bf16 pair[2] = {__float2bfloat16(low), __float2bfloat16(high)};
  uint32_t bits;
  std::memcpy(&bits, pair, sizeof bits);
  return bits;
}

// --- shared memory
inline uint32_t smem_addr(const void* in_shared) {
  return emulation::shared_base + static_cast<uint32_t>(static_cast<const unsigned char*>(in_shared) - emulation::block().shared);
}

// A copy lands only when it is waited for; until then its destination holds NaN. So a missing wait shows, and a buffer that is filled again while it is read.
inline void cp_async16(uint32_t to, const void* from, int valid) {
  unsigned char* const target = emulation::shared_at(to, 16, 16, "cp.async");
  for (int i = 0; i < 4; ++i) reinterpret_cast<uint32_t*>(target)[i] = 0xffffffffu;
  emulation::open_copy(target, from, valid);
}
inline void cp_async_commit() { emulation::commit_copies(); }
template <int N>
void cp_async_wait() {
  while (const emulation::Copy* copies = emulation::next_copy(N))  // reads and writes of this thread, as sanitizers see it
    for (int i = 0; i < 4; ++i) static_cast<uint32_t*>(copies->to)[i] = copies->bytes > 0 ? static_cast<const uint32_t*>(copies->from)[i] : 0;
}

namespace detail {

/// Lane l names the 16-byte row l % 8 of matrix l / 8, and receives the elements (row l / 4, columns 2 * (l % 4) and the next) of each matrix.
inline void ldmatrix(uint32_t (&to)[4], uint32_t address, bool transposed, uint32_t line) {
  using namespace emulation;
  const Met met = meet(all_lanes, Operation::matrix_load, line, LaneValue{{address}});
  const int l = lane();
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint32_t element[2];
    for (int j = 0; j < 2; ++j) {
      const int pair = l % 4 * 2 + j, row = transposed ? pair : l / 4, column = transposed ? l / 4 : pair;
      const auto from = static_cast<uint32_t>(lane_value(met, matrix * 8 + row).word[0]);
      element[j] = reinterpret_cast<const uint16_t*>(shared_at(from, 16, 16, "ldmatrix"))[column];
    }
    to[matrix] = element[0] | element[1] << 16;
  }
}

}  // namespace detail

inline void ldmatrix_x4(uint32_t (&to)[4], uint32_t address, EMULATION_LINE) { detail::ldmatrix(to, address, false, here); }
inline void ldmatrix_x4_trans(uint32_t (&to)[4], uint32_t address, EMULATION_LINE) { detail::ldmatrix(to, address, true, here); }

inline void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, EMULATION_LINE) {
  float sum[4];
  emulation::product_16x8x16(sum, a, b0, b1, here);
  for (int i = 0; i < 4; ++i) d[i] += sum[i];
}

}  // namespace gpu
