// Controls of the helpers that the kernel tests lean on: each must fail when it should.
#include "ops/kernel_test.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(kernel_test_helpers)

BOOST_AUTO_TEST_CASE(rule_refuses_five_ulp_and_nan) {
  const std::vector<Exact> exact{1, 0.25L, -0.5L};
  std::vector<float> values{1, 0.25f, -0.5f};
  BOOST_TEST(within_rule(values, exact));
  values[1] = 0.25f + 4 * 0x1p-23f;
  BOOST_TEST(within_rule(values, exact));
  values[1] = 0.25f + 5 * 0x1p-23f;
  BOOST_TEST(!within_rule(values, exact));
  BOOST_TEST(within_rule(values, exact, std::vector<float>{1, 0.25f, -0.5f + 3 * 0x1p-23f}));
  values[1] = std::numeric_limits<float>::quiet_NaN();
  BOOST_TEST(!within_rule(values, exact));
  BOOST_TEST(ulp_at<bf16>(1.5) == 0x1p-7);
  BOOST_TEST(ulp_at<double>(1.0) == 0x1p-52);
}

BOOST_AUTO_TEST_CASE(same_bits_sees_one_bit) {
  std::vector<float> a{1, 2}, b{1, 2};
  BOOST_TEST(same_bits(a, b));
  b[1] = std::nextafter(2.0f, 3.0f);
  BOOST_TEST(!same_bits(a, b));
  BOOST_TEST(!same_bits(std::vector<float>{0.0f}, std::vector<float>{-0.0f}));
}

BOOST_AUTO_TEST_CASE(every_instruction_set_down_to_the_portable_one_is_tested) {
  const auto all = every_rank();
  BOOST_REQUIRE(!all.empty());
  BOOST_TEST(all.back().instruction_set == instruction_sets().back());
  for (const ThreadRanks& ranks : all)
    for (int threads = 1; threads <= 3; ++threads) {
      BOOST_TEST(ranks.by_threads[static_cast<size_t>(threads - 1)]->pool().threads() == threads);
      BOOST_TEST(instruction_set(*ranks.by_threads[static_cast<size_t>(threads - 1)]) == ranks.instruction_set);
    }
}

BOOST_AUTO_TEST_SUITE_END()
