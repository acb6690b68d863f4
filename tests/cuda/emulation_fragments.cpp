// Asynchronous copies, ldmatrix and mma on the emulated machine, against plain loops and the layouts that the PTX manual gives.
#include <gpu.h>

#include "check.h"
#include "on_device.h"

namespace quire::test {

namespace {

/// a [16, 16], b [16, 8] of bf16, row-major; d [16, 8]. Fragments are filled from global memory, element by element as the manual numbers them.
__global__ void product_by_the_manual(const gpu::bf16* a, const gpu::bf16* b, float* d, int wrong) {
  const int lane = static_cast<int>(threadIdx.x), group = lane / 4, in_group = lane % 4;
  gpu::bf16 af[8], bf[4];
  for (int i = 0; i < 8; ++i) {
    const int row = (i < 2 || (i >= 4 && i < 6)) ? group : group + 8;
    const int column = i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
    af[i] = a[row * 16 + column];
  }
  for (int i = 0; i < 4; ++i) {
    const int row = i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
    bf[i] = b[row * 8 + group];
  }
  uint32_t ar[4], br[2];
  for (int i = 0; i < 4; ++i) std::memcpy(&ar[i], &af[2 * i], 4);
  for (int i = 0; i < 2; ++i) std::memcpy(&br[i], &bf[2 * i], 4);
  float df[4];
  for (int i = 0; i < 4; ++i) df[i] = d[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1)];
  gpu::mma_16816(df, ar, br[wrong], br[1 - wrong]);
  for (int i = 0; i < 4; ++i) d[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1)] = df[i];
}

/// The same product of operands that come through shared memory: a as it lies, b [16, 8] as it lies (transposed by ldmatrix), padded to 16 columns.
__global__ void product_through_shared_memory(const gpu::bf16* a, const gpu::bf16* b, float* d, int wait) {
  DYNAMIC_SMEM(memory);
  const int lane = static_cast<int>(threadIdx.x);
  const uint32_t sa = gpu::smem_addr(memory), sb = sa + 16 * 32;
  gpu::cp_async16(sa + static_cast<uint32_t>(lane) * 16, a + lane * 8, 16);
  gpu::cp_async_commit();
  if (lane < 16) gpu::cp_async16(sb + static_cast<uint32_t>(lane) * 32, b + lane * 8, 16);
  if (lane < 16) gpu::cp_async16(sb + static_cast<uint32_t>(lane) * 32 + 16, b, 0);  // zeros
  gpu::cp_async_commit();
  if (wait != 0) gpu::cp_async_wait<0>();
  else gpu::cp_async_wait<1>();
  __syncthreads();
  uint32_t af[4], bf[4];
  gpu::ldmatrix_x4(af, sa + static_cast<uint32_t>(lane % 16) * 32 + static_cast<uint32_t>(lane / 16) * 16);
  gpu::ldmatrix_x4_trans(bf, sb + static_cast<uint32_t>(lane % 16) * 32 + static_cast<uint32_t>(lane / 16) * 16);
  float df[4] = {};
  gpu::mma_16816(df, af, bf[0], bf[1]);
  float zeros[4] = {};
  gpu::mma_16816(zeros, af, bf[2], bf[3]);
  for (int i = 0; i < 4; ++i) d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = df[i] + zeros[i];
  gpu::cp_async_wait<0>();
}

struct Operands {
  std::vector<gpu::bf16> a, b;
  std::vector<float> product;
};

Operands random_operands(uint64_t seed) {
  Operands o{std::vector<gpu::bf16>(256), std::vector<gpu::bf16>(128), std::vector<float>(128, 0.0f)};
  std::mt19937_64 random(seed);
  for (auto* values : {&o.a, &o.b})
    for (auto& value : *values) value = __float2bfloat16(static_cast<float>(random() % 65) / 8 - 4);  // products and sums are exact
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j)
      for (int k = 0; k < 16; ++k)
        o.product[static_cast<size_t>(i * 8 + j)] += gpu::to_float(o.a[static_cast<size_t>(i * 16 + k)]) * gpu::to_float(o.b[static_cast<size_t>(k * 8 + j)]);
  return o;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(emulation_fragments)

BOOST_AUTO_TEST_CASE(mma_multiplies_fragments_laid_out_by_the_manual) {
  for (uint64_t seed = 1; seed <= 8; ++seed)
    for (const int wrong : {0, 1}) {
      OnDevice device;
      emulation::order(all_orders[seed % 4], seed);
      const Operands o = random_operands(seed);
      float* const d = device.upload(std::vector<float>(128, 0.5f));
      gpu::launch(product_by_the_manual, dim3(1), dim3(32), 0, device.stream, device.upload(o.a), device.upload(o.b), d, wrong);
      std::vector<float> expected = o.product;
      for (float& value : expected) value += 0.5f;
      BOOST_TEST((device.download(d, 128) == expected) == (wrong == 0), "seed " << seed << ", registers of b exchanged: " << wrong);
    }
}

BOOST_AUTO_TEST_CASE(copies_and_ldmatrix_bring_the_same_fragments) {
  for (uint64_t seed = 1; seed <= 8; ++seed)
    for (const int wait : {1, 0}) {
      if (wait == 0 && emulation::thread_sanitizer) continue;  // which reports the missing wait itself
      OnDevice device;
      emulation::order(all_orders[seed % 4], seed);
      const Operands o = random_operands(seed);
      float* const d = device.empty<float>(128);
      gpu::launch(product_through_shared_memory, dim3(1), dim3(32), 1024, device.stream, device.upload(o.a), device.upload(o.b), d, wait);
      BOOST_TEST((device.download(d, 128) == o.product) == (wait == 1), "seed " << seed << ", waits for the last copies: " << wait);
      BOOST_TEST(device.failure() == "");
    }
}

BOOST_AUTO_TEST_CASE(bf16_pairs_hold_the_first_number_in_the_low_half) {
  const uint32_t pair = gpu::pack_bf16(1.5f, -2.0f);
  BOOST_TEST(pair == 0xc0003fc0u);
  BOOST_TEST(gpu::bf16_low(pair) == 1.5f);
  BOOST_TEST(gpu::bf16_high(pair) == -2.0f);
  BOOST_TEST(gpu::to_float(gpu::from_float<gpu::bf16>(3.0f)) == 3.0f);
  BOOST_TEST(gpu::from_float<float>(0.1f) == 0.1f);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
