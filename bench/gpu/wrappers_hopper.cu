// The wrappers of hopper.h on fixed inputs. Compiled for compute capability 9.0 alone.
#include <hopper.h>

#include "bench/gpu/wrapper_inputs.h"
#include "bench/gpu/wrappers.h"
#include "ops/cuda/tensor_maps.h"
#include "runtime/cuda/launch.h"

namespace quire::gpu_report {
namespace {

constexpr int group_threads = 128;                     // a warp group
constexpr int tile_columns = 64, tile_rows = 8;        // of the tiles that are copied
constexpr int tile_words = tile_rows * tile_columns / 2;
constexpr int matrix_rows = 20, matrix_columns = 72;   // of the matrix that they are copied from and to
constexpr int square_bytes = 64 * 64 * 2;

/// The first multiple of 1024 bytes in shared memory.
__device__ inline uint32_t tiles_begin(const unsigned char* memory) { return (gpu::smem_addr(memory) + 1023) & ~1023u; }
__device__ inline uint32_t* words_at(unsigned char* memory, uint32_t address) { return reinterpret_cast<uint32_t*>(memory + (address - gpu::smem_addr(memory))); }

/// A tile as it lies in shared memory after a copy.
__global__ void load_tile(const __grid_constant__ CUtensorMap map, uint32_t* out, int x, int y) {
  DYNAMIC_SMEM(memory);
  const uint32_t tile = tiles_begin(memory), barrier = tile + 1024;
  if (threadIdx.x == 0) {
    gpu::mbar_init(barrier, 1);
    gpu::mbar_fence_init();
    gpu::mbar_expect_tx(barrier, tile_words * 4);
    gpu::tma_load_2d(tile, &map, x, y, barrier);
  }
  __syncthreads();
  gpu::mbar_wait(barrier, 0);
  for (int i = static_cast<int>(threadIdx.x); i < tile_words; i += static_cast<int>(blockDim.x)) out[i] = words_at(memory, tile)[i];
}

/// A tile from shared memory to the matrix.
__global__ void store_tile(const __grid_constant__ CUtensorMap map, const uint32_t* in, int x, int y) {
  DYNAMIC_SMEM(memory);
  const uint32_t tile = tiles_begin(memory);
  for (int i = static_cast<int>(threadIdx.x); i < tile_words; i += static_cast<int>(blockDim.x)) words_at(memory, tile)[i] = in[i];
  gpu::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    gpu::tma_store_2d(&map, tile, x, y);
    gpu::tma_store_commit();
    gpu::tma_store_wait<0>();
  }
}

template <int columns, bool a_transposed, bool b_transposed>
__device__ inline void product(float (&d)[columns / 2], uint64_t a, uint64_t b, int accumulate) {
  if constexpr (columns == 64) gpu::wgmma_m64n64k16<a_transposed, b_transposed>(d, a, b, accumulate);
  else if constexpr (columns == 128) gpu::wgmma_m64n128k16<a_transposed, b_transposed>(d, a, b, accumulate);
  else gpu::wgmma_m64n256k16<a_transposed, b_transposed>(d, a, b, accumulate);
}

/// Brings `count` rows (columns of b) with 64 steps of k to tiles: rows of 64 elements with the 128-byte swizzle, which are steps of k where the operand is
/// transposed. in [count][32] words.
__device__ inline void fill_tiles(unsigned char* memory, uint32_t tiles, const uint32_t* in, int count, bool transposed) {
  uint16_t* const to = reinterpret_cast<uint16_t*>(words_at(memory, tiles));
  for (int i = static_cast<int>(threadIdx.x); i < count * 64; i += static_cast<int>(blockDim.x)) {
    const int row = i / 64, step = i % 64;
    const uint16_t value = static_cast<uint16_t>(in[i / 2] >> (i % 2 * 16));
    const int line = transposed ? row / 64 * 64 + step : row, column = transposed ? row % 64 : step;
    to[line * 64 + (column / 8 ^ line % 8) * 8 + column % 8] = value;
  }
}

/// d [64, columns] = a [64, 64] b [columns, 64]^T in four instructions, the first of which overwrites.
template <int columns, bool a_transposed, bool b_transposed>
__global__ void __launch_bounds__(group_threads) multiply(const uint32_t* a, const uint32_t* b, uint32_t* out) {
  DYNAMIC_SMEM(memory);
  const uint32_t left = tiles_begin(memory), right = left + square_bytes;
  fill_tiles(memory, left, a, 64, a_transposed);
  fill_tiles(memory, right, b, columns, b_transposed);
  gpu::fence_proxy_async();
  __syncthreads();
  float d[columns / 2];
#pragma unroll
  for (int i = 0; i < columns / 2; ++i) d[i] = 7.0f;
  gpu::wgmma_fence();
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const uint64_t l = a_transposed ? gpu::transposed_tile_desc(left + part * 2048, square_bytes) : gpu::tile_desc(left + part * 32);
    const uint64_t r = b_transposed ? gpu::transposed_tile_desc(right + part * 2048, square_bytes) : gpu::tile_desc(right + part * 32);
    product<columns, a_transposed, b_transposed>(d, l, r, part == 0 ? 0 : 1);
  }
  gpu::wgmma_commit();
  gpu::wgmma_wait<0>();
  gpu::wgmma_settle(d);
  const int thread = static_cast<int>(threadIdx.x), row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
#pragma unroll
  for (int j = 0; j < columns / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) out[(row + i / 2 * 8) * columns + column + j * 8 + i % 2] = __float_as_uint(d[4 * j + i]);
}

/// A barrier that three warps arrive at, phase after phase, before the fourth goes on.
__global__ void phases(uint32_t* out) {
  DYNAMIC_SMEM(memory);
  const uint32_t full = tiles_begin(memory), empty = full + 8;
  uint32_t* const box = words_at(memory, full + 64);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (thread == 0) {
    gpu::mbar_init(full, 96);
    gpu::mbar_init(empty, 32);
    gpu::mbar_fence_init();
  }
  __syncthreads();
  for (int round = 0; round < 4; ++round) {
    if (warp < 3) {
      gpu::mbar_wait(empty, (round & 1) ^ 1);
      box[thread] = static_cast<uint32_t>(1000 * round + thread);
      gpu::mbar_arrive(full);
    } else {
      gpu::mbar_wait(full, round & 1);
      out[round * 32 + lane] = box[lane] + box[lane + 32] + box[lane + 64];
      gpu::mbar_arrive(empty);
    }
  }
}

/// Warps 0 and 1 wait for what warps 2 and 3 bring; warps 4 to 7 give registers away and pass.
__global__ void __launch_bounds__(2 * group_threads, 1) hand_over(uint32_t* out) {
  DYNAMIC_SMEM(memory);
  uint32_t* const box = reinterpret_cast<uint32_t*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= group_threads) {
    gpu::reg_dec<24>();
    return;
  }
  gpu::reg_inc<160>();
  if (thread < 64) {
    gpu::barrier_sync(3, 128);
    out[thread] = box[thread];
  } else {
    box[thread - 64] = made_word(20, static_cast<uint32_t>(thread));
    gpu::barrier_arrive(3, 128);
  }
}

CUtensorMap map_of(Rank& rank, const Tensor& matrix) {
  return tensor_map(rank, matrix.raw(), matrix_rows, matrix_columns, matrix_columns, tile_rows);
}

Golden loaded(Rank& rank, const std::string& name, int x, int y) {
  const Tensor matrix = words_on(rank, exact_pairs(10, matrix_rows * matrix_columns / 2)), out = unwritten_words(rank, tile_words);
  gpu::launch(load_tile, dim3(1), dim3(group_threads), 4096, stream_of(rank), map_of(rank, matrix), words_of(out), x, y);
  return golden(name, 0, out);
}

Golden stored(Rank& rank, const std::string& name, int x, int y) {
  const Tensor in = words_on(rank, exact_pairs(11, tile_words)), matrix = unwritten_words(rank, matrix_rows * matrix_columns / 2);
  gpu::launch(store_tile, dim3(1), dim3(group_threads), 4096, stream_of(rank), map_of(rank, matrix), words_of(in), x, y);
  return golden(name, 0, matrix);
}

template <int columns, bool a_transposed, bool b_transposed>
Golden multiplied(Rank& rank, const std::string& name, bool exact) {
  const auto made = [&](uint32_t stream, int64_t rows) { return words_on(rank, exact ? exact_pairs(stream, rows * 32) : rough_pairs(stream, rows * 32)); };
  const Tensor a = made(12, 64), b = made(13, columns), out = unwritten_words(rank, 64 * columns);
  gpu::launch(multiply<columns, a_transposed, b_transposed>, dim3(1), dim3(group_threads), 1024 + square_bytes + columns * 128, stream_of(rank), words_of(a), words_of(b), words_of(out));
  Golden all = golden(name, 0, out);
  if (exact) return all;
  Golden some{name, 1e-5, {}};
  for (size_t i = 0; i < 128; ++i) some.words.push_back(all.words[i * 31 % all.words.size()]);
  return some;
}

template <int columns>
void add_products(std::vector<WrapperCase>& cases) {
  const std::string name = "wgmma_m64n" + std::to_string(columns) + "k16";
  const auto add = [&](const std::string& form, auto run) { cases.push_back({name + form, [run, full = name + form](Rank& rank) { return run(rank, full); }}); };
  add("", [](Rank& rank, const std::string& full) { return multiplied<columns, false, false>(rank, full, true); });
  add("_a_transposed", [](Rank& rank, const std::string& full) { return multiplied<columns, true, false>(rank, full, true); });
  add("_b_transposed", [](Rank& rank, const std::string& full) { return multiplied<columns, false, true>(rank, full, true); });
  add("_both_transposed", [](Rank& rank, const std::string& full) { return multiplied<columns, true, true>(rank, full, true); });
  add("_rounding", [](Rank& rank, const std::string& full) { return multiplied<columns, false, false>(rank, full, false); });
}

}  // namespace

std::vector<WrapperCase> hopper_wrapper_cases() {
  std::vector<WrapperCase> cases;
  const auto add = [&](const char* name, Golden (*run)(Rank&, const std::string&, int, int), int x, int y) {
    cases.push_back({name, [=](Rank& rank) { return run(rank, name, x, y); }});
  };
  add("tma_load_2d", loaded, 0, 0);
  add("tma_load_2d_past_the_end", loaded, 16, 16);
  add("tma_load_2d_before_the_beginning", loaded, -8, -4);
  add("tma_store_2d", stored, 8, 3);
  add("tma_store_2d_past_the_end", stored, 16, 16);
  cases.push_back({"mbarrier", [](Rank& rank) {
                     const Tensor out = unwritten_words(rank, 128);
                     gpu::launch(phases, dim3(1), dim3(group_threads), 4096, stream_of(rank), words_of(out));
                     return golden("mbarrier", 0, out);
                   }});
  add_products<64>(cases);
  add_products<128>(cases);
  add_products<256>(cases);
  cases.push_back({"named_barriers_and_setmaxnreg", [](Rank& rank) {
                     const Tensor out = unwritten_words(rank, 64);
                     gpu::launch(hand_over, dim3(1), dim3(2 * group_threads), 1024, stream_of(rank), words_of(out));
                     return golden("named_barriers_and_setmaxnreg", 0, out);
                   }});
  return cases;
}

}  // namespace quire::gpu_report
