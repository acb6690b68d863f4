// AdamW against the literal update.
#include "ops/adamw_case.h"

using namespace quire;
using namespace quire::test;

namespace {

template <class T> using State = AdamWState<T>;
using Literal = AdamWLiteral;

template <class T>
void check_adamw() {
  std::mt19937_64 random(1);
  for (const int64_t count : {1, 7, 64, 16385, 40003}) {
    const State<T> before(random, count);
    Literal exact(before);
    exact.step(before);
    for (const ThreadRanks& ranks : every_rank()) {
      State<T> after = before;
      after.step(ranks.one());
      BOOST_TEST(within_rule(after.master, exact.master), ranks.instruction_set << " count " << count);
      BOOST_TEST(within_rule(after.moment1, exact.moment1));
      BOOST_TEST(within_rule(after.moment2, exact.moment2));
      if constexpr (std::is_same_v<T, bf16>)
        for (size_t i = 0; i < after.value.size(); ++i)
          if (after.value[i].bits != bf16(after.master[i]).bits) BOOST_ERROR("value " << i << " is not the rounded master");
      for (const auto& rank : ranks.by_threads) {
        State<T> again = before;
        again.step(*rank);
        BOOST_TEST(again.same(after));
      }
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(adamw_kernel)

BOOST_AUTO_TEST_CASE(follows_the_rule_with_any_threads) {
  check_adamw<double>();
  check_adamw<float>();
  check_adamw<bf16>();
}

BOOST_AUTO_TEST_CASE(ten_steps_in_f64_equal_the_literal_ones) {
  std::mt19937_64 random(2);
  for (const ThreadRanks& ranks : every_rank()) {
    State<double> state(random, 101);
    std::fill(state.moment1.begin(), state.moment1.end(), 0.0);
    std::fill(state.moment2.begin(), state.moment2.end(), 0.0);
    Literal exact(state);
    for (int t = 1; t <= 10; ++t) {
      state.gradient = random_values<double>(random, 101);
      state.scalars = {1e-2 / t, 1.0 / t, 1 - std::pow(0.9, t), 1 - std::pow(0.99, t), 0};
      exact.step(state);
      state.step(ranks.one());
    }
    BOOST_TEST(relative_difference(state.master, exact.master) < 1e-14);
  }
}

BOOST_AUTO_TEST_CASE(skip_changes_nothing_even_for_nan_gradients) {
  std::mt19937_64 random(3);
  for (const ThreadRanks& ranks : every_rank()) {
    State<bf16> before(random, 100);
    before.gradient[17] = std::numeric_limits<float>::quiet_NaN();
    before.scalars.skip = 1;
    before.scalars.clip = std::numeric_limits<double>::quiet_NaN();
    State<bf16> after = before;
    after.step(ranks.one());
    BOOST_TEST(after.same(before));
    // Control: without the flag the NaN reaches the weights.
    after.scalars.skip = 0;
    after.scalars.clip = 1;
    after.step(ranks.one());
    BOOST_TEST(std::isnan(after.master[17]));
    BOOST_TEST(!after.same(before));
  }
}

BOOST_AUTO_TEST_CASE(zero_learning_rate_moves_moments_only) {
  std::mt19937_64 random(4);
  Rank rank;
  const State<float> before(random, 33);
  State<float> after = before;
  after.scalars.learning_rate = 0;
  after.step(rank);
  BOOST_TEST(same_bits(after.master, before.master));
  BOOST_TEST(!same_bits(after.moment1, before.moment1));
}

BOOST_AUTO_TEST_CASE(control_decay_added_to_the_gradient_is_seen) {
  std::mt19937_64 random(5);
  Rank rank;
  State<double> state(random, 33);
  Literal coupled(state);
  State<double> l2 = state;
  for (size_t i = 0; i < l2.gradient.size(); ++i) l2.gradient[i] += 0.1 * l2.master[i];  // Adam with L2 instead of AdamW
  coupled.step(l2);
  state.step(rank);
  BOOST_TEST(!within_rule(state.master, coupled.master));
}

BOOST_AUTO_TEST_SUITE_END()
