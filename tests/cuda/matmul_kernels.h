// What the tests of CUDA's matrix products share: the kernels by name, ranks on emulated devices, and the checks that each kernel must pass.
#pragma once
#include <array>

#include "emulation.h"
#include "ops/matmul_case.h"
#include "runtime/accelerator.h"
#include "runtime/dispatch.h"

namespace quire::test {

inline Run cuda_kernel(std::string_view name) {
  for (const Kernel<MatmulArgs>& kernel : cuda_kernels<MatmulArgs>())
    if (kernel.name == name) return [&kernel](Rank& rank, const MatmulArgs& args) {
      BOOST_REQUIRE(kernel.can_run(args));
      kernel.run(rank, args);
    };
  BOOST_FAIL("no kernel " << name);
  return {};
}

inline std::unique_ptr<Rank> device_rank() { return std::make_unique<Rank>(RankOptions{.device = {DeviceKind::cuda, 0}, .poison = true}); }

/// Eight orders of blocks and threads.
inline std::array<std::pair<emulation::Order, uint64_t>, 8> eight_orders() {
  using emulation::Order;
  return {{{Order::ascending, 1}, {Order::descending, 1}, {Order::random, 1}, {Order::random, 2}, {Order::random, 3}, {Order::random_lanes, 4}, {Order::random_lanes, 5},
           {Order::random_lanes, 6}}};
}

struct Sizes {
  int64_t m, n, k;
};

inline std::string text_of(std::string_view kernel, const Form& form, Sizes sizes, const Spacing& spacing) {
  return std::string(kernel) + " " + form.name + " m " + std::to_string(sizes.m) + " n " + std::to_string(sizes.n) + " k " + std::to_string(sizes.k) + " lines of a multiple of " +
         std::to_string(spacing.multiple);
}

/// One product: within the rule, nothing beside it written, its work counted.
template <class T, class C>
void check_product(Rank& rank, std::string_view kernel, std::mt19937_64& random, Sizes sizes, const Form& form, bool accumulate, const Spacing& spacing) {
  Operands<T, C> operands(random, sizes.m, sizes.n, sizes.k, form, accumulate, spacing);
  const int64_t flops = rank.work().flops;
  operands.run(cuda_kernel(kernel), rank);
  BOOST_TEST(operands.accurate(), text_of(kernel, form, sizes, spacing));
  BOOST_TEST(operands.border_untouched(), text_of(kernel, form, sizes, spacing));
  BOOST_TEST(rank.work().flops - flops == 2 * sizes.m * sizes.n * sizes.k);
}

/// Random sizes around the edges of tiles, in one random order of threads each.
template <class T, class C>
void check_random_products(std::string_view kernel, uint64_t seed, int cases, std::initializer_list<int64_t> edges, std::initializer_list<int64_t> depths, int64_t most,
                           std::initializer_list<Spacing> spacings, std::span<const Form> some_forms = forms) {
  const emulation::Fresh fresh;
  const auto rank = device_rank();
  std::mt19937_64 random(seed);
  for (int i = 0; i < cases; ++i) {
    emulation::order(emulation::Order::random, seed + static_cast<uint64_t>(i));
    const Sizes sizes{random_size(random, edges, most), random_size(random, edges, most), random_size(random, depths, most)};
    for (const Form& form : some_forms)
      for (const Spacing& spacing : spacings) check_product<T, C>(*rank, kernel, random, sizes, form, random() % 2 == 0, spacing);
  }
}

/// The smallest products in eight orders of threads: right, and the same bits in all.
template <class T, class C>
void check_orders(std::string_view kernel, std::initializer_list<Sizes> all_sizes, const Spacing& spacing, std::span<const Form> some_forms = forms) {
  const emulation::Fresh fresh;
  const auto rank = device_rank();
  std::mt19937_64 random(17);
  for (const Form& form : some_forms)
    for (const Sizes& sizes : all_sizes) {
      Operands<T, C> operands(random, sizes.m, sizes.n, sizes.k, form, true, spacing);
      std::vector<C> first;
      for (const auto& [order, seed] : eight_orders()) {
        emulation::order(order, seed);
        operands.run(cuda_kernel(kernel), *rank);
        BOOST_TEST(operands.accurate(), text_of(kernel, form, sizes, spacing) << " seed " << seed);
        if (first.empty()) first = operands.c;
        BOOST_TEST(same_bits(first, operands.c), text_of(kernel, form, sizes, spacing) << " seed " << seed);
      }
    }
}

template <class T, class C>
void check_rows(std::string_view kernel, std::initializer_list<Sizes> all_sizes, const Spacing& spacing, std::span<const Form> some_forms = forms) {
  const emulation::Fresh fresh;
  const auto rank = device_rank();
  std::mt19937_64 random(18);
  for (const Form& form : some_forms)
    for (const Sizes& sizes : all_sizes)
      for (const bool accumulate : {false, true})
        BOOST_TEST((rows_keep_their_bits<T, C>(cuda_kernel(kernel), *rank, random, sizes.m, sizes.n, sizes.k, form, accumulate, spacing)), text_of(kernel, form, sizes, spacing));
}

/// k = 0: zeros, or C as it was; nothing for no rows or no columns.
template <class T, class C>
void check_no_steps(std::string_view kernel, const Spacing& spacing) {
  const emulation::Fresh fresh;
  const auto rank = device_rank();
  std::mt19937_64 random(19);
  for (const Form& form : forms) {
    Operands<T, C> zeros(random, 7, 9, 0, form, false, spacing);
    zeros.run(cuda_kernel(kernel), *rank);
    for (const C x : zeros.rows(0, 7)) BOOST_TEST(to_double(x) == 0);
    BOOST_TEST(zeros.border_untouched());
    Operands<T, C> sums(random, 7, 9, 0, form, true, spacing);
    sums.run(cuda_kernel(kernel), *rank);
    BOOST_TEST(same_bits(sums.c, sums.c_before));
    for (const Sizes& sizes : {Sizes{0, 9, 5}, Sizes{7, 0, 5}, Sizes{0, 0, 0}}) {
      Operands<T, C> nothing(random, sizes.m, sizes.n, sizes.k, form, false, spacing);
      nothing.run(cuda_kernel(kernel), *rank);
      BOOST_TEST(same_bits(nothing.c, nothing.c_before));
    }
  }
}

/// Sums that bf16 has to round, ties among them, infinities and NaN, as runtime/dtype.h rounds them.
inline void check_rounding(std::string_view kernel, bool aligned) {
  const emulation::Fresh fresh;
  const auto rank = device_rank();
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::mt19937_64 random(15);
  std::normal_distribution<float> normal;
  const int64_t m = 9, n = aligned ? 40 : 37, k = aligned ? 8 : 2;
  std::vector<bf16> a(static_cast<size_t>(m * k), bf16(0.0f)), b(static_cast<size_t>(k * n), bf16(0.0f)), before(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) a[static_cast<size_t>(i * k)] = a[static_cast<size_t>(i * k + 1)] = bf16(1.0f);
  for (size_t j = 0; j < static_cast<size_t>(2 * n); ++j) b[j] = bf16(normal(random) * (j % 3 == 0 ? 100.0f : 1.0f));
  const auto next = static_cast<size_t>(n);
  b[0] = bf16(1.0f), b[next] = bf16(0x1p-8f);                // a tie, to even
  b[1] = bf16(1.0f + 0x1p-7f), b[next + 1] = bf16(0x1p-8f);  // a tie, to even upwards
  b[2] = bf16(infinity), b[3] = bf16(-infinity), b[4] = bf16(nan), b[5] = bf16(infinity), b[next + 5] = bf16(-infinity);
  for (bf16& x : before) x = bf16(normal(random));
  for (const bool accumulate : {false, true}) {
    std::vector<bf16> c = before;
    run_on(*rank, cuda_kernel(kernel), MatmulArgs{DType::bf16, DType::bf16, m, n, k, a.data(), k, 1, b.data(), n, 1, c.data(), n, accumulate}, a, b, c);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const auto at = static_cast<size_t>(i * n + j), column = static_cast<size_t>(j);
        const float sum = static_cast<float>(b[column]) + static_cast<float>(b[column + next]);
        const bf16 expected(accumulate ? static_cast<float>(before[at]) + sum : sum);
        BOOST_TEST((std::isnan(sum) ? std::isnan(static_cast<float>(c[at])) : c[at].bits == expected.bits), kernel << " row " << i << " column " << j);
      }
  }
}

}  // namespace quire::test
