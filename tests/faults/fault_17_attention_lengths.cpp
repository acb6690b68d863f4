// FAULTS.md 17, at the level of kernels.
#include "ops/attention_case.h"

namespace quire::test {

BOOST_AUTO_TEST_SUITE(fault_17_attention_lengths)

// Particular document lengths gave NaN in backward.
BOOST_AUTO_TEST_CASE(a_thousand_length_vectors_stay_finite_17) {
  std::mt19937_64 random(17);
  Rank rank(poisoned_ranks(2).front());
  for (int round = 0; round < 1000; ++round) {
    const int64_t tokens = 1 + static_cast<int64_t>(random() % (round % 20 ? 60 : 400));
    AttentionCase c = random_case(random, random_lengths(random, tokens, 16), 2, 1, 1 + static_cast<int64_t>(random() % 9), static_cast<int64_t>(random() % 3) * 7);
    const AttentionResult block = both<float>(rank, c);
    BOOST_REQUIRE(finite(block));
    if (round % 10) continue;
    c.dense = true;
    const AttentionResult dense = both<float>(rank, c);
    BOOST_TEST(relative_difference(block.forward.out, dense.forward.out) <= 1e-5);
    BOOST_TEST(relative_difference(block.backward.dq, dense.backward.dq) <= 1e-4);
    BOOST_TEST(relative_difference(block.backward.dk, dense.backward.dk) <= 1e-4);
    BOOST_TEST(relative_difference(block.backward.dv, dense.backward.dv) <= 1e-4);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
