// Cross-entropy kernels against the literal formula.
#include "ops/cross_entropy_case.h"

using namespace quire;
using namespace quire::test;

namespace {

const std::vector<std::pair<int64_t, int64_t>> loss_shapes{{1, 1}, {1, 2}, {5, 7}, {9, 32}, {70, 257}, {3, 20011}};

template <class T>
void check_cross_entropy() {
  std::mt19937_64 random(1);
  const auto all = every_rank();
  for (const auto& [rows, vocabulary] : loss_shapes)
    for (const double z : {0.0, 1e-2}) {
      const CrossEntropyProblem<T> problem(random, rows, vocabulary, z);
      const auto exact = problem.literal();
      const auto plain = problem.forward(all.front().one(), "reference");
      const auto plain_gradient = problem.backward(all.front().one(), plain.lse, "reference");
      for (const ThreadRanks& ranks : all) {
        BOOST_TEST_CONTEXT(ranks.instruction_set << " rows " << rows << " vocabulary " << vocabulary << " z " << z) {
          const auto forward = problem.forward(ranks.one());
          const auto gradient = problem.backward(ranks.one(), forward.lse);
          BOOST_TEST(within_rule(forward.lse, exact.lse, plain.lse));
          BOOST_TEST(within_rule(forward.nll, exact.nll, plain.nll));
          // One logit has softmax 1, and with z = 0 nothing is left of its gradient.
          if (vocabulary > 1) BOOST_TEST(within_rule(gradient, exact.dlogits, plain_gradient));
          else BOOST_TEST(largest_error(gradient, exact.dlogits) <= 4 * ulp_at<T>(problem.scale));
          for (const auto& rank : ranks.by_threads) {
            BOOST_TEST(same_bits(problem.forward(*rank).nll, forward.nll));
            BOOST_TEST(same_bits(problem.forward(*rank).lse, forward.lse));
            BOOST_TEST(same_bits(problem.backward(*rank, forward.lse), gradient));
          }
        }
      }
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cross_entropy_kernel)

BOOST_AUTO_TEST_CASE(f64_follows_the_rule_with_any_threads) { check_cross_entropy<double>(); }
BOOST_AUTO_TEST_CASE(f32_follows_the_rule_with_any_threads) { check_cross_entropy<float>(); }
BOOST_AUTO_TEST_CASE(bf16_follows_the_rule_with_any_threads) { check_cross_entropy<bf16>(); }

BOOST_AUTO_TEST_CASE(row_alone_has_the_bits_it_has_among_others) {
  std::mt19937_64 random(2);
  for (const ThreadRanks& ranks : every_rank())
    for (const auto& [rows, vocabulary] : loss_shapes) {
      const CrossEntropyProblem<float> problem(random, rows, vocabulary, 1e-3);
      const auto forward = problem.forward(ranks.one());
      const auto gradient = problem.backward(ranks.one(), forward.lse);
      for (const int64_t row : {int64_t{0}, rows - 1}) {
        CrossEntropyProblem<float> alone = problem;
        alone.rows = 1;
        alone.logits = part(problem.logits, row * vocabulary, vocabulary);
        alone.targets = part(problem.targets, row, 1);
        const auto result = alone.forward(ranks.one());
        BOOST_TEST(same_bits(result.lse, part(forward.lse, row, 1)));
        BOOST_TEST(same_bits(result.nll, part(forward.nll, row, 1)));
        BOOST_TEST(same_bits(alone.backward(ranks.one(), result.lse), part(gradient, row * vocabulary, vocabulary)));
      }
    }
}

BOOST_AUTO_TEST_CASE(gradient_is_that_of_finite_differences) {
  std::mt19937_64 random(3);
  for (const ThreadRanks& ranks : every_rank())
    for (const double z : {0.0, 0.3}) {
      const CrossEntropyProblem<double> problem(random, 6, 11, z);
      check_gradient(
          [&](const std::vector<double>& logits) {
            CrossEntropyProblem<double> moved = problem;
            moved.logits = logits;
            const auto nll = moved.forward(ranks.one()).nll;
            return std::accumulate(nll.begin(), nll.end(), 0.0) * problem.scale;
          },
          problem.logits, problem.backward(ranks.one(), problem.forward(ranks.one()).lse), 1e-6);
    }
}

BOOST_AUTO_TEST_CASE(ignored_rows_give_exact_zeros_whatever_they_hold) {
  for (const ThreadRanks& ranks : every_rank()) check_ignored_rows(ranks.one());
}

BOOST_AUTO_TEST_CASE(nan_and_infinity_in_a_scored_row_are_never_hidden) {
  for (const ThreadRanks& ranks : every_rank()) check_not_finite(ranks.one());
}

BOOST_AUTO_TEST_CASE(large_and_masked_logits_are_stable) {
  for (const ThreadRanks& ranks : every_rank()) check_large_and_masked_logits(ranks.one());
}

BOOST_AUTO_TEST_CASE(loss_of_a_sure_prediction_keeps_its_digits) {
  for (const ThreadRanks& ranks : every_rank()) check_sure_prediction(ranks.one());
}

BOOST_AUTO_TEST_CASE(uniform_logits_read_the_logarithm_of_the_vocabulary) {
  for (const ThreadRanks& ranks : every_rank())
    for (const int64_t vocabulary : {1, 2, 100, 50257}) {
      std::mt19937_64 random(7);
      CrossEntropyProblem<float> problem(random, 2, vocabulary, 0);
      problem.targets = {0, static_cast<int32_t>(vocabulary - 1)};
      std::fill(problem.logits.begin(), problem.logits.end(), 3.5f);
      for (const float nll : problem.forward(ranks.one()).nll)
        BOOST_TEST(std::abs(nll - std::log(static_cast<double>(vocabulary))) <= 4 * ulp_at<float>(std::log(static_cast<double>(vocabulary) + 1)));
    }
}

BOOST_AUTO_TEST_CASE(control_a_z_loss_left_out_of_the_gradient_is_seen) {
  std::mt19937_64 random(8);
  Rank rank;
  CrossEntropyProblem<double> problem(random, 6, 11, 0.1);
  problem.targets.assign(6, 1);
  const auto exact = problem.literal();
  const auto lse = problem.forward(rank).lse;
  BOOST_TEST(within_rule(problem.backward(rank, lse), exact.dlogits));
  problem.z_weight = 0;
  BOOST_TEST(!within_rule(problem.backward(rank, lse), exact.dlogits));
}

BOOST_AUTO_TEST_SUITE_END()
