// Cross-entropy on the emulated device.
#include "ops/cross_entropy_case.h"

#include "cuda/kernel_case.h"

using namespace quire;
using namespace quire::test;

namespace {

const std::vector<std::pair<int64_t, int64_t>> shapes{{0, 5}, {1, 1}, {1, 2}, {5, 7}, {9, 32}, {30, 257}, {2, 5003}, {2, 30000}};

template <class T>
void check_cross_entropy() {
  std::mt19937_64 random(1);
  DeviceRank rank;
  Rank host;
  for (const auto& [rows, vocabulary] : shapes)
    for (const double z : {0.0, 1e-2})
      BOOST_TEST_CONTEXT("rows " << rows << " vocabulary " << vocabulary << " z " << z) {
        CrossEntropyProblem<T> problem(random, rows, vocabulary, z);
        const auto exact = problem.literal();
        const auto plain = problem.forward(host, "reference");
        const auto plain_gradient = problem.backward(host, plain.lse, "reference");
        const auto forward = problem.forward(rank);
        const auto gradient = problem.backward(rank, forward.lse);
        BOOST_TEST(within_rule(forward.lse, exact.lse, plain.lse));
        BOOST_TEST(within_rule(forward.nll, exact.nll, plain.nll));
        // One logit has softmax 1, and with z = 0 nothing is left of its gradient.
        if (vocabulary > 1) BOOST_TEST(within_rule(gradient, exact.dlogits, plain_gradient));
        else BOOST_TEST(largest_error(gradient, exact.dlogits) <= 4 * ulp_at<T>(problem.scale));
        if (std::is_same_v<T, float>) BOOST_TEST(same_bits(problem.backward(rank, forward.lse, "vector", true), gradient), "over the logits");
        problem.shift = 1;
        const auto shifted = problem.forward(rank);
        BOOST_TEST((same_bits(shifted.lse, forward.lse) && same_bits(shifted.nll, forward.nll) && same_bits(problem.backward(rank, forward.lse), gradient)));
      }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_cross_entropy)

BOOST_AUTO_TEST_CASE(f32_follows_the_rule_over_the_logits_or_not) { check_cross_entropy<float>(); }
BOOST_AUTO_TEST_CASE(bf16_follows_the_rule) { check_cross_entropy<bf16>(); }

BOOST_AUTO_TEST_CASE(every_order_of_threads_gives_the_same) {
  std::mt19937_64 random(2);
  DeviceRank rank;
  const CrossEntropyProblem<bf16> problem(random, 3, 300, 1e-2);
  const auto forward = problem.forward(rank);
  const auto gradient = problem.backward(rank, forward.lse);
  in_eight_orders([&] {
    const auto again = problem.forward(rank);
    BOOST_TEST((same_bits(again.lse, forward.lse) && same_bits(again.nll, forward.nll) && same_bits(problem.backward(rank, forward.lse), gradient)));
  });
}

BOOST_AUTO_TEST_CASE(row_alone_has_the_bits_it_has_among_others) {
  std::mt19937_64 random(3);
  DeviceRank rank;
  for (const auto& [rows, vocabulary] : shapes) {
    if (rows == 0) continue;
    const CrossEntropyProblem<float> problem(random, rows, vocabulary, 1e-3);
    const auto forward = problem.forward(rank);
    const auto gradient = problem.backward(rank, forward.lse);
    for (const int64_t row : {int64_t{0}, rows - 1}) {
      CrossEntropyProblem<float> alone = problem;
      alone.rows = 1;
      alone.logits = part(problem.logits, row * vocabulary, vocabulary);
      alone.targets = part(problem.targets, row, 1);
      const auto result = alone.forward(rank);
      BOOST_TEST(same_bits(result.lse, part(forward.lse, row, 1)));
      BOOST_TEST(same_bits(result.nll, part(forward.nll, row, 1)));
      BOOST_TEST(same_bits(alone.backward(rank, result.lse), part(gradient, row * vocabulary, vocabulary)));
    }
  }
}

BOOST_AUTO_TEST_CASE(ignored_rows_give_exact_zeros_whatever_they_hold) {
  DeviceRank rank;
  check_ignored_rows(rank);
}

BOOST_AUTO_TEST_CASE(nan_and_infinity_in_a_scored_row_are_never_hidden) {
  DeviceRank rank;
  check_not_finite(rank);
}

BOOST_AUTO_TEST_CASE(large_and_masked_logits_are_stable) {
  DeviceRank rank;
  check_large_and_masked_logits(rank);
}

BOOST_AUTO_TEST_CASE(loss_of_a_sure_prediction_keeps_its_digits) {
  DeviceRank rank;
  check_sure_prediction(rank);
}

BOOST_AUTO_TEST_CASE(control_a_z_loss_left_out_of_the_gradient_is_seen) {
  std::mt19937_64 random(8);
  DeviceRank rank;
  CrossEntropyProblem<float> problem(random, 6, 11, 0.1);
  problem.targets.assign(6, 1);
  const auto exact = problem.literal();
  const auto lse = problem.forward(rank).lse;
  Rank host;
  const auto plain = problem.backward(host, lse, "reference");
  BOOST_TEST(within_rule(problem.backward(rank, lse), exact.dlogits, plain));
  problem.z_weight = 0;
  BOOST_TEST(!within_rule(problem.backward(rank, lse), exact.dlogits, plain));
}

BOOST_AUTO_TEST_SUITE_END()
