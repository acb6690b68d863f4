// The matrix product's CPU kernels on raw memory: accuracy, bits that depend on a row alone, memory that must stay untouched.
#include "check.h"
#include "ops/cpu/instruction_set.h"
#include "ops/matmul_case.h"

using namespace quire;
using namespace quire::test;

namespace {

Run kernel_named(std::string_view name) {
  for (const Kernel<MatmulArgs>& kernel : cpu_kernels<MatmulArgs>())
    if (kernel.name == name) return [&kernel](Rank& rank, const MatmulArgs& args) {
      BOOST_REQUIRE(kernel.can_run(args));
      kernel.run(rank, args);
    };
  BOOST_FAIL("no kernel of this name");
  return {};
}

RankOptions options(const std::string& instruction_set, int threads = 1) {
  RankOptions result;
  result.threads = threads;
  result.poison = true;
  result.instruction_set = instruction_set;
  return result;
}

template <class T, class C>
void check_random_shapes(const std::string& kernel_name, int cases, uint64_t seed) {
  const Run kernel = kernel_named(kernel_name);
  std::mt19937_64 random(seed);
  for (const std::string& set : instruction_sets()) {
    Rank rank(options(set));
    for (int i = 0; i < cases; ++i) {
      const int64_t m = random_size(random, {4, 6, 12, 14, 96, 98, 112}, 130), n = random_size(random, {4, 8, 16, 32, 64, 128}, 140);
      const int64_t k = random_size(random, {4, 16, 32, 256, 512}, 300);
      for (const Form& form : forms) {
        Operands<T, C> operands(random, m, n, k, form, random() % 2 == 0);
        const int64_t flops = rank.work().flops;
        operands.run(kernel, rank);
        BOOST_TEST(operands.accurate(), kernel_name << " " << set << " " << form.name << " m " << m << " n " << n << " k " << k);
        BOOST_TEST(operands.border_untouched(), kernel_name << " " << set << " " << form.name << " m " << m << " n " << n << " k " << k);
        BOOST_TEST(rank.work().flops - flops == 2 * m * n * k);
      }
    }
  }
}

template <class T, class C>
void check_row_invariance(const Run& kernel, const std::string& set) {
  std::mt19937_64 random(11);
  Rank rank(options(set));
  for (const Form& form : forms)
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{131, 77, 300}, {14, 16, 600}, {250, 33, 40}, {100, 20, 2300}})
      BOOST_TEST((rows_keep_their_bits<T, C>(kernel, rank, random, m, n, k, form, k == 300)),
                 set << " " << form.name << " m " << m << " n " << n << " k " << k << " size " << sizeof(T));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(matmul_kernel)

BOOST_AUTO_TEST_CASE(packed_agrees_with_a_wider_triple_loop) {
  check_random_shapes<float, float>("packed", 12, 1);
  check_random_shapes<double, double>("packed", 12, 2);
  check_random_shapes<bf16, bf16>("packed", 12, 3);
  check_random_shapes<bf16, float>("packed", 12, 4);
}

BOOST_AUTO_TEST_CASE(reference_agrees_with_a_wider_triple_loop) {
  check_random_shapes<float, float>("reference", 4, 5);
  check_random_shapes<double, double>("reference", 4, 6);
  check_random_shapes<bf16, bf16>("reference", 4, 7);
  check_random_shapes<bf16, float>("reference", 4, 8);
}

// Several slabs of k and of columns, and the f32 sums kept beside a bf16 C.
BOOST_AUTO_TEST_CASE(large_products_are_accurate) {
  const Run kernel = kernel_named("packed");
  std::mt19937_64 random(9);
  for (const std::string& set : instruction_sets()) {
    Rank rank(options(set, 2));
    Operands<bf16, bf16> deep(random, 120, 19, 4500, forms[1], true);
    deep.run(kernel, rank);
    BOOST_TEST(deep.accurate());
    BOOST_TEST(deep.border_untouched());
    Operands<float, float> wide(random, 130, 1100, 20, forms[0], false);
    wide.run(kernel, rank);
    BOOST_TEST(wide.accurate());
    BOOST_TEST(wide.border_untouched());
    Operands<float, float> pages(random, 99, 40, 1024 - Spacing{}.gap, forms[1], false);  // rows of A a page apart
    pages.run(kernel, rank);
    BOOST_TEST(pages.accurate());
    Operands<bf16, float> tall(random, 1030, 280, 20, forms[2], true);
    tall.run(kernel, rank);
    BOOST_TEST(tall.accurate());
    BOOST_TEST(tall.border_untouched());
    Operands<float, float> both(random, 113, 1030, 2100, forms[2], true);
    if (set == instruction_sets().front()) {
      both.run(kernel, rank);
      BOOST_TEST(both.accurate());
      BOOST_TEST(both.border_untouched());
    }
  }
}

// Negative control: a kernel that forgets the last step of k, and one that writes one column too many, must be caught by the checks used above.
BOOST_AUTO_TEST_CASE(the_checks_catch_wrong_products) {
  const Run kernel = kernel_named("packed");
  std::mt19937_64 random(10);
  Rank rank(options(""));
  Operands<float, float> operands(random, 20, 30, 40, forms[0], false);
  operands.run([&](Rank& r, MatmulArgs args) { --args.k; kernel(r, args); }, rank);
  BOOST_TEST(!operands.accurate());
  operands.run([&](Rank& r, const MatmulArgs& args) { kernel(r, args); static_cast<float*>(args.c)[args.n] = 0; }, rank);
  BOOST_TEST(operands.accurate());
  BOOST_TEST(!operands.border_untouched());
}

BOOST_AUTO_TEST_CASE(a_row_depends_on_its_own_row_alone) {
  for (const char* name : {"packed", "reference"})
    for (const std::string& set : instruction_sets()) {
      check_row_invariance<float, float>(kernel_named(name), set);
      check_row_invariance<double, double>(kernel_named(name), set);
      check_row_invariance<bf16, bf16>(kernel_named(name), set);
      check_row_invariance<bf16, float>(kernel_named(name), set);
    }
}

// Many rows are cut into several slabs of k and of columns, few rows are not.
BOOST_AUTO_TEST_CASE(slabs_do_not_change_a_row) {
  const Run kernel = kernel_named("packed");
  std::mt19937_64 random(16);
  Rank rank(options(""));
  for (const Form& form : forms) {
    BOOST_TEST((rows_keep_their_bits<float, float>(kernel, rank, random, 1100, 1100, 600, form, false)), form.name);
    BOOST_TEST((rows_keep_their_bits<bf16, bf16>(kernel, rank, random, 1030, 300, 2300, form, true)), form.name);
  }
}

// Negative control: a product that sums k in two halves when m is odd must be caught.
BOOST_AUTO_TEST_CASE(the_row_check_catches_a_split_that_depends_on_m) {
  const Run kernel = kernel_named("packed");
  const Run split = [&](Rank& rank, const MatmulArgs& args) {
    if (args.m % 2 == 0) return kernel(rank, args);
    MatmulArgs low = args, high = args;
    low.k = args.k / 2;
    high.k = args.k - low.k;
    high.a = static_cast<const float*>(args.a) + low.k * args.a_col;
    high.b = static_cast<const float*>(args.b) + low.k * args.b_row;
    high.accumulate = true;
    kernel(rank, low);
    kernel(rank, high);
  };
  std::mt19937_64 random(12);
  Rank rank(options(""));
  BOOST_TEST((rows_keep_their_bits<float, float>(kernel, rank, random, 100, 60, 200, forms[0], false)));
  BOOST_TEST((!rows_keep_their_bits<float, float>(split, rank, random, 100, 60, 200, forms[0], false)));
}

BOOST_AUTO_TEST_CASE(threads_do_not_change_bits) {
  for (const char* name : {"packed", "reference"})
    for (const std::string& set : instruction_sets())
      for (const Form& form : forms) {
        std::mt19937_64 random(13);
        Operands<float, float> operands(random, 210, 150, 300, form, false);
        Operands<bf16, bf16> small(random, 9, 300, 270, form, true);
        std::vector<float> first;
        std::vector<bf16> first_small;
        for (const int threads : {1, 2, 3}) {
          Rank rank(options(set, threads));
          operands.run(kernel_named(name), rank);
          small.run(kernel_named(name), rank);
          if (threads == 1) first = operands.c, first_small = small.c;
          BOOST_TEST(same_bits(first, operands.c), name << " " << set << " " << form.name << " " << threads);
          BOOST_TEST(same_bits(first_small, small.c), name << " " << set << " " << form.name << " " << threads);
        }
      }
}

BOOST_AUTO_TEST_CASE(no_steps_give_zeros_or_leave_sums) {
  std::mt19937_64 random(14);
  for (const char* name : {"packed", "reference"}) {
    Rank rank(options(""));
    Operands<bf16, bf16> operands(random, 7, 9, 0, forms[0], false);
    operands.run(kernel_named(name), rank);
    for (const bf16 x : operands.rows(0, 7)) BOOST_TEST(x.bits == 0);
    BOOST_TEST(operands.border_untouched());
    Operands<float, float> sums(random, 7, 9, 0, forms[0], true);
    sums.run(kernel_named(name), rank);
    BOOST_TEST(same_bits(sums.c, sums.c_before));
  }
}

// Sums of two that need more digits than bf16 has, ties among them, infinities and NaN: rounded as runtime/dtype.h rounds them.
BOOST_AUTO_TEST_CASE(sums_are_rounded_to_bf16_as_everywhere) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::mt19937_64 random(15);
  std::normal_distribution<float> normal;
  const int64_t m = 9, n = 37;
  std::vector<bf16> a(2 * m, bf16(1.0f)), b(2 * n), c(m * n), before(m * n);
  for (size_t j = 0; j < b.size(); ++j) b[j] = bf16(normal(random) * (j % 3 == 0 ? 100.0f : 1.0f));
  b[0] = bf16(1.0f), b[n] = bf16(0x1p-8f);                // a tie, to even
  b[1] = bf16(1.0f + 0x1p-7f), b[n + 1] = bf16(0x1p-8f);  // a tie, to even upwards
  b[2] = bf16(infinity), b[3] = bf16(-infinity), b[4] = bf16(nan), b[5] = bf16(infinity), b[n + 5] = bf16(-infinity);
  for (bf16& x : before) x = bf16(normal(random));
  for (const char* name : {"packed", "reference"})
    for (const std::string& set : instruction_sets())
      for (const bool accumulate : {false, true}) {
        Rank rank(options(set));
        c = before;
        kernel_named(name)(rank, {DType::bf16, DType::bf16, m, n, 2, a.data(), 2, 1, b.data(), n, 1, c.data(), n, accumulate});
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) {
            const size_t at = static_cast<size_t>(i * n + j), column = static_cast<size_t>(j);
            const float sum = static_cast<float>(b[column]) + static_cast<float>(b[column + n]);
            const bf16 expected(accumulate ? static_cast<float>(before[at]) + sum : sum);
            BOOST_TEST((std::isnan(sum) ? std::isnan(static_cast<float>(c[at])) : c[at].bits == expected.bits), name << " " << set << " row " << i << " column " << j);
          }
      }
}

BOOST_AUTO_TEST_CASE(kernels_refuse_types_they_do_not_know) {
  MatmulArgs args{DType::f32, DType::bf16, 1, 1, 1};
  for (const Kernel<MatmulArgs>& kernel : cpu_kernels<MatmulArgs>()) BOOST_TEST(!kernel.can_run(args));
  args.type = args.c_type = DType::i32;
  for (const Kernel<MatmulArgs>& kernel : cpu_kernels<MatmulArgs>()) BOOST_TEST(!kernel.can_run(args));
}

BOOST_AUTO_TEST_CASE(instruction_sets_are_chosen_per_rank) {
  BOOST_REQUIRE(!instruction_sets().empty());
  for (const std::string& set : instruction_sets()) BOOST_TEST(instruction_set(Rank(options(set))) == set);
  BOOST_TEST(instruction_set(Rank(options(""))) == instruction_sets().front());
  check_error<ConfigError>([] { instruction_set(Rank(options("avx3"))); }, {"[instruction set]", "avx3", instruction_sets().front()});
}

BOOST_AUTO_TEST_SUITE_END()
