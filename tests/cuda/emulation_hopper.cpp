// Barriers in shared memory, copies of tiles and products of warp groups on the emulated machine.
#include <cuda_runtime_api.h>
#include <hopper.h>

#include "check.h"
#include "on_device.h"

namespace quire::test {

namespace {

constexpr int tile = 64, stages = 2;
constexpr uint32_t tile_bytes = tile * tile * 2;

/// What a planted bug leaves out or changes.
enum class Bug : int { none, no_wait_for_empty, release_before_wait, descriptor_off, no_fence, no_expected_bytes };

template <int N>
__device__ void multiply(float (&d)[N / 2], uint64_t a, uint64_t b) {
  if constexpr (N == 64) gpu::wgmma_m64n64k16(d, a, b, 1);
  else if constexpr (N == 128) gpu::wgmma_m64n128k16(d, a, b, 1);
  else gpu::wgmma_m64n256k16(d, a, b, 1);
}

/// c [m, n] = a [m, k] b [n, k]^T: warp 4 brings tiles, warps 0 to 3 multiply, two stages.
template <int N>
__global__ void product(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* c, int m, int n, int k, Bug bug) {
  DYNAMIC_SMEM(memory);
  const uint32_t b_bytes = N / tile * tile_bytes;
  const uint32_t base = (gpu::smem_addr(memory) + 1023) & ~1023u, sa = base, sb = sa + stages * tile_bytes, full = sb + stages * b_bytes,
                 empty = full + 8 * stages;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, steps = (k + tile - 1) / tile;
  const int row0 = static_cast<int>(blockIdx.y) * tile, column0 = static_cast<int>(blockIdx.x) * N;
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < stages; ++i) {
      gpu::mbar_init(full + 8 * i, 1);
      gpu::mbar_init(empty + 8 * i, 4);
    }
    gpu::mbar_fence_init();
  }
  __syncthreads();
  if (warp == 4) {
    gpu::reg_dec<24>();
    for (int i = 0; i < steps && lane == 0; ++i) {
      const auto s = static_cast<uint32_t>(i % stages);
      if (bug != Bug::no_wait_for_empty) gpu::mbar_wait(empty + 8 * s, (i / stages & 1) ^ 1);
      if (bug == Bug::no_expected_bytes) gpu::mbar_arrive(full + 8 * s);
      else gpu::mbar_expect_tx(full + 8 * s, static_cast<int>(tile_bytes + b_bytes));
      gpu::tma_load_2d(sa + s * tile_bytes, &a, i * tile, row0, full + 8 * s);
      for (int part = 0; part < N / tile; ++part)
        gpu::tma_load_2d(sb + s * b_bytes + static_cast<uint32_t>(part) * tile_bytes, &b, i * tile, column0 + part * tile, full + 8 * s);
    }
    return;
  }
  gpu::reg_inc<240>();
  float d[N / 2] = {};
  for (int i = 0; i < steps; ++i) {
    const auto s = static_cast<uint32_t>(i % stages);
    gpu::mbar_wait(full + 8 * s, i / stages & 1);
    if (bug != Bug::no_fence) gpu::wgmma_fence();
    for (uint32_t part = 0; part < tile / 16; ++part)
      multiply<N>(d, gpu::tile_desc(sa + s * tile_bytes + part * 32), gpu::tile_desc(sb + s * b_bytes + part * 32 + (bug == Bug::descriptor_off ? 16 : 0)));
    gpu::wgmma_commit();
    if (bug == Bug::release_before_wait && lane == 0) gpu::mbar_arrive(empty + 8 * s);
    if (bug != Bug::release_before_wait) gpu::wgmma_wait<0>();
    if (bug != Bug::release_before_wait && lane == 0) gpu::mbar_arrive(empty + 8 * s);
  }
  gpu::wgmma_wait<0>();
  const int row = row0 + warp * 16 + lane / 4, column = column0 + lane % 4 * 2;
  for (int j = 0; j < N / 8; ++j)
    for (int e = 0; e < 4; ++e)
      if (row + (e >> 1) * 8 < m && column + j * 8 + (e & 1) < n) c[int64_t{row + (e >> 1) * 8} * n + column + j * 8 + (e & 1)] = d[j * 4 + e];
}

/// Adds one to each element of a tile and writes it back by a copy of a tile, early or not.
__global__ void add_one(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to, Bug bug) {
  DYNAMIC_SMEM(memory);
  const uint32_t in = (gpu::smem_addr(memory) + 1023) & ~1023u, full = in + tile_bytes;
  const int x = static_cast<int>(blockIdx.x) * tile, y = static_cast<int>(blockIdx.y) * tile;
  if (threadIdx.x == 0) {
    gpu::mbar_init(full, 1);
    gpu::mbar_fence_init();
    gpu::mbar_expect_tx(full, tile_bytes);
    gpu::tma_load_2d(in, &from, x, y, full);
  }
  __syncthreads();
  gpu::mbar_wait(full, 0);
  auto* const values = reinterpret_cast<gpu::bf16*>(memory + (in - gpu::smem_addr(memory)));
  for (int i = static_cast<int>(threadIdx.x); i < tile * tile; i += static_cast<int>(blockDim.x))
    values[i] = gpu::from_float<gpu::bf16>(gpu::to_float(values[i]) + 1);
  gpu::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    gpu::tma_store_2d(&to, in, x, y);
    gpu::tma_store_commit();
    if (bug == Bug::none) gpu::tma_store_wait<0>();
  }
}

/// Warps 0 and 1 wait for what warps 2 and 3 bring; warps 4 to 7 pass without.
__global__ void hand_over(int* out) {
  DYNAMIC_SMEM(memory);
  int* const box = reinterpret_cast<int*>(memory);
  const int i = static_cast<int>(threadIdx.x);
  if (i < 64) {
    gpu::barrier_sync(3, 128);
    out[i] = box[i];
  } else if (i < 128) {
    box[i - 64] = i;
    gpu::barrier_arrive(3, 128);
  }
}

CUtensorMap map_of(gpu::bf16* matrix, int rows, int columns, uint32_t tile_rows = tile) {
  void* function = nullptr;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, nullptr);
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)}, strides[] = {static_cast<cuuint64_t>(columns) * 2};
  const cuuint32_t box[] = {tile, tile_rows}, steps[] = {1, 1};
  const CUresult status = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  BOOST_TEST_REQUIRE(status == CUDA_SUCCESS);
  return map;
}

std::vector<gpu::bf16> random_matrix(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<gpu::bf16> values(static_cast<size_t>(count));
  for (auto& value : values) value = __float2bfloat16(static_cast<float>(random() % 33) / 8 - 2);  // products and sums are exact
  return values;
}

/// Whether the kernel multiplies rightly.
template <int N>
bool multiplies(int m, int n, int k, emulation::Order order, Bug bug = Bug::none) {
  OnDevice device;
  emulation::order(order, static_cast<uint64_t>(m + n + k));
  const std::vector<gpu::bf16> a = random_matrix(int64_t{m} * k, 1), b = random_matrix(int64_t{n} * k, 2);
  float* const c = device.empty<float>(static_cast<size_t>(m) * static_cast<size_t>(n));
  const auto blocks = [](int size, int by) { return static_cast<unsigned>((size + by - 1) / by); };
  gpu::launch(product<N>, dim3(blocks(n, N), blocks(m, tile)), dim3(160), 1024 + stages * (tile_bytes + N / tile * tile_bytes) + 64, device.stream,
              map_of(device.upload(a), m, k), map_of(device.upload(b), n, k), c, m, n, k, bug);
  const std::vector<float> seen = device.download(c, static_cast<size_t>(m) * static_cast<size_t>(n));
  if (bug == Bug::none) BOOST_TEST(device.failure() == "");
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int x = 0; x < k; ++x) sum += gpu::to_float(a[static_cast<size_t>(i * k + x)]) * gpu::to_float(b[static_cast<size_t>(j * k + x)]);
      if (!(seen[static_cast<size_t>(i * n + j)] == sum)) return false;
    }
  return device.failure().empty();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(emulation_hopper)

BOOST_AUTO_TEST_CASE(tiles_and_products_of_warp_groups_give_matrix_products) {
  for (const auto order : all_orders) {
    BOOST_TEST(multiplies<64>(64, 64, 64, order));
    BOOST_TEST(multiplies<64>(100, 72, 200, order));
    BOOST_TEST(multiplies<128>(72, 136, 136, order));
  }
  BOOST_TEST(multiplies<256>(64, 264, 72, emulation::Order::random));
}

BOOST_AUTO_TEST_CASE(what_is_left_out_shows) {
  if (emulation::thread_sanitizer) return;  // which ends the program at the races that most of these are
  for (const Bug bug : {Bug::no_wait_for_empty, Bug::release_before_wait, Bug::descriptor_off, Bug::no_fence, Bug::no_expected_bytes}) {
    int right = 0;
    for (const auto order : all_orders) right += multiplies<64>(64, 64, 256, order, bug) ? 1 : 0;
    BOOST_TEST(right < 4, "bug " << static_cast<int>(bug));
  }
}

BOOST_AUTO_TEST_CASE(tiles_are_written_where_the_matrix_is) {
  for (const Bug bug : {Bug::none, Bug::release_before_wait}) {
    OnDevice device;
    const int rows = 70, columns = 72;
    const std::vector<gpu::bf16> values = random_matrix(rows * columns, 3);
    gpu::bf16* const out = device.upload(std::vector<gpu::bf16>(values.size() + 64, __float2bfloat16(9.0f)));
    gpu::launch(add_one, dim3(2, 2), dim3(128), 2048 + tile_bytes, device.stream, map_of(device.upload(values), rows, columns),
                map_of(out, rows, columns), bug);
    const auto seen = device.download(out, values.size() + 64);
    bool right = true;
    for (size_t i = 0; i < values.size(); ++i) right = right && gpu::to_float(seen[i]) == gpu::to_float(values[i]) + 1;
    for (size_t i = values.size(); i < seen.size(); ++i) right = right && gpu::to_float(seen[i]) == 9.0f;
    BOOST_TEST(right == (bug == Bug::none));
    BOOST_TEST(device.failure().empty() == (bug == Bug::none), device.failure());
  }
}

BOOST_AUTO_TEST_CASE(named_barriers_wait_for_their_threads_alone) {
  for (const auto order : all_orders) {
    OnDevice device;
    emulation::order(order, 5);
    int* const out = device.empty<int>(64);
    gpu::launch(hand_over, dim3(1), dim3(256), 256, device.stream, out);
    std::vector<int> expected(64);
    for (int i = 0; i < 64; ++i) expected[static_cast<size_t>(i)] = i + 64;
    BOOST_TEST((device.download(out, 64) == expected));
    BOOST_TEST(device.failure() == "");
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
