// Barriers in shared memory, copies of tiles and products of warp groups, on the emulated machine. The CPU twin of ops/cuda/native/hopper.h.
#pragma once
#include <cuda.h>

#include "gpu.h"

namespace emulation {

void init_memory_barrier(uint32_t barrier, int count);
/// The address that carries ThreadSanitizer's edges of a barrier.
void* order_of_memory_barrier(uint32_t barrier);
void arrive(uint32_t barrier, int64_t expected_bytes);
void wait_for_phase(uint32_t barrier, int parity, uint32_t line);
/// Checks a copy and queues it on the barrier; the tile [first, last) of shared memory that it overwrites.
struct SharedRange { uint32_t* first; uint32_t* last; };
SharedRange start_tile_load(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t barrier);
void start_tile_store(const CUtensorMap* map, uint32_t from, int x, int y);
void commit_tile_stores();
void wait_for_tile_stores(size_t groups);

void fence_products(uint32_t line);
/// An operand's descriptor, and whether its tiles' rows are steps of k.
struct ProductOperand {
  uint64_t descriptor;
  bool transposed;
};
void start_product(float* d, int n, ProductOperand a, ProductOperand b, bool accumulates, uint32_t line);
void commit_products(uint32_t line);
/// Places in shared memory that this lane's share of the products due now reads; then carries them out, with the whole warp.
const uint16_t* next_read_of_products(size_t groups, size_t index);
void finish_products(size_t groups, uint32_t line);

}  // namespace emulation

namespace gpu {

inline uint64_t tile_desc(uint32_t address) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

inline uint64_t transposed_tile_desc(uint32_t address, uint32_t next) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{(next & 0x3ffff) >> 4} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

inline void mbar_init(uint32_t barrier, int count) { emulation::init_memory_barrier(barrier, count); }
inline void mbar_fence_init() {}
inline void mbar_expect_tx(uint32_t barrier, int bytes) {
  emulation::release(emulation::order_of_memory_barrier(barrier));
  emulation::arrive(barrier, bytes);
}
inline void mbar_arrive(uint32_t barrier) {
  emulation::release(emulation::order_of_memory_barrier(barrier));
  emulation::arrive(barrier, 0);
}
inline void mbar_wait(uint32_t barrier, int parity, EMULATION_LINE) {
  emulation::wait_for_phase(barrier, parity, here);
  emulation::acquire(emulation::order_of_memory_barrier(barrier));
}

/// The tile holds NaN until the copy lands: when it is waited for, or as late as anything can.
inline void tma_load_2d(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t barrier) {
  const emulation::SharedRange tile = emulation::start_tile_load(to, map, x, y, barrier);
  for (uint32_t* word = tile.first; word < tile.last; ++word) *word = 0xffffffffu;  // as sanitizers see it, the issuing thread writes the tile
  emulation::release(emulation::order_of_memory_barrier(barrier));
}
inline void tma_store_2d(const CUtensorMap* map, uint32_t from, int x, int y) { emulation::start_tile_store(map, from, x, y); }
inline void tma_store_commit() { emulation::commit_tile_stores(); }
template <int N> void tma_store_wait() { emulation::wait_for_tile_stores(N); }
inline void fence_proxy_async() {}

inline void barrier_sync(int id, int threads, EMULATION_LINE) { emulation::named_barrier(id, threads, true, here); }
inline void barrier_arrive(int id, int threads, EMULATION_LINE) { emulation::named_barrier(id, threads, false, here); }

template <int N> void reg_inc() { static_assert(N % 8 == 0 && N >= 24 && N <= 256); }
template <int N> void reg_dec() { static_assert(N % 8 == 0 && N >= 24 && N <= 256); }

inline void wgmma_fence(EMULATION_LINE) { emulation::fence_products(here); }
inline void wgmma_commit(EMULATION_LINE) { emulation::commit_products(here); }
template <int N>
void wgmma_wait(EMULATION_LINE) {
#ifdef EMULATION_THREAD_SANITIZER
  size_t index = 0;
  while (const uint16_t* const place = emulation::next_read_of_products(N, index++)) {
    const volatile uint16_t seen = *static_cast<const volatile uint16_t*>(place);
    static_cast<void>(seen);
  }
#endif
  emulation::finish_products(N, here);
}
template <int N> void wgmma_settle(float (&)[N]) {}
/// The accumulator holds NaN until it is waited for.
template <bool a_transposed = false, bool b_transposed = false>
inline void wgmma_m64n64k16(float (&d)[32], uint64_t a, uint64_t b, int accumulate, EMULATION_LINE) {
  emulation::start_product(d, 64, {a, a_transposed}, {b, b_transposed}, accumulate != 0, here);
}
template <bool a_transposed = false, bool b_transposed = false>
inline void wgmma_m64n128k16(float (&d)[64], uint64_t a, uint64_t b, int accumulate, EMULATION_LINE) {
  emulation::start_product(d, 128, {a, a_transposed}, {b, b_transposed}, accumulate != 0, here);
}
template <bool a_transposed = false, bool b_transposed = false>
inline void wgmma_m64n256k16(float (&d)[128], uint64_t a, uint64_t b, int accumulate, EMULATION_LINE) {
  emulation::start_product(d, 256, {a, a_transposed}, {b, b_transposed}, accumulate != 0, here);
}

}  // namespace gpu
