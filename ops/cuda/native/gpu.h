// What a kernel includes: launching, bf16, and the PTX that C++ has no words for, each instruction in a small function. The folder of the
// emulation (tests/emulation) holds a twin of this file that does the same on the CPU.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <tuple>
#include <type_traits>

#include "planted.h"

/// The block's dynamic shared memory, aligned to 128 bytes. There is no other shared memory: what a block needs is carved from it.
#define DYNAMIC_SMEM(name) extern __shared__ __align__(128) unsigned char name[]

namespace gpu {

using bf16 = __nv_bfloat16;

/// Of the runtime: throws the error of a launch that did not take place.
void throw_launch_error(cudaError_t status, const char* kernel);

/// Starts `kernel` on `stream` with `shared_bytes` of dynamic shared memory.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "a launch gives every parameter");
  constexpr size_t granted_to_all = 48 * 1024;
  const void* const function = reinterpret_cast<const void*>(kernel);
  cudaError_t status = cudaSuccess;
  if (shared_bytes > granted_to_all) status = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (status != cudaSuccess) throw_launch_error(status, "cudaFuncSetAttribute");
  std::tuple<std::remove_cv_t<Parameters>...> values(static_cast<Parameters>(arguments)...);
  std::apply(
      [&](auto&... value) {
        void* addresses[] = {static_cast<void*>(&value)..., nullptr};
        status = cudaLaunchKernel(function, grid, block, addresses, shared_bytes, stream);
      },
      values);
  if (status != cudaSuccess) throw_launch_error(status, "cudaLaunchKernel");
}

// --- bf16
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __bfloat162float(x); }
template <class T>
__device__ inline T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  else return __float2bfloat16(x);
}
/// Two bf16 in 32 bits, the first in the low half.
__device__ inline float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// --- shared memory
/// The 32-bit address of a place in shared memory.
__device__ inline uint32_t smem_addr(const void* in_shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(in_shared)); }

/// Copies 16 bytes from global to shared memory, asynchronously. `valid` is 16, or 0 to fill with zeros without reading; both addresses are multiples of 16.
__device__ inline void cp_async16(uint32_t to, const void* from, int valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(valid) : "memory");
}
/// The thread's copies since the last commit are a group.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits until at most the last N groups of this thread are under way. Other threads see the copies after a barrier.
template <int N>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

// --- matrix fragments. With g = lane / 4 and t = lane % 4 * 2:
/// Four matrices of 8 x 8 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8; register m holds columns t and t + 1 of row g of matrix m.
__device__ inline void ldmatrix_x4(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
/// The same of the matrices transposed: register m holds rows t and t + 1 of column g.
__device__ inline void ldmatrix_x4_trans(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
/// d += a b, with a [16, 16] and b [16, 8] of bf16 and d [16, 8] of f32. a: registers 0 and 1 hold columns t and t + 1 of rows g and g + 8, registers
/// 2 and 3 columns t + 8 and t + 9 of them. b0 holds rows t and t + 1 of column g, b1 rows t + 8 and t + 9. d: 0 and 1 are columns t and t + 1 of row
/// g, 2 and 3 of row g + 8.
__device__ inline void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace gpu
