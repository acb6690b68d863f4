// RMS normalisation kernels against the literal formula.
#include "ops/rmsnorm_case.h"

using namespace quire;
using namespace quire::test;

namespace {

// One element, less than a vector, tails, several chunks of rows, rows wider than one task.
const std::vector<std::pair<int64_t, int64_t>> norm_shapes{{1, 1}, {3, 1}, {1, 7}, {2, 8}, {5, 17}, {130, 33}, {70, 64}, {1100, 24}, {3, 1031}, {2, 20001}};

template <class T>
void check_rule() {
  std::mt19937_64 random(1);
  const auto all = every_rank();
  for (const auto& [rows, width] : norm_shapes) {
    const RmsNormProblem<T> problem(random, rows, width);
    const auto exact = problem.literal();
    const auto plain = problem.forward(all.front().one(), "reference");
    const auto plain_backward = problem.backward(all.front().one(), plain.rstd, "reference");
    for (const ThreadRanks& ranks : all) {
      BOOST_TEST_CONTEXT(ranks.instruction_set << " rows " << rows << " width " << width) {
        const auto forward = problem.forward(ranks.one());
        const auto backward = problem.backward(ranks.one(), forward.rstd);
        BOOST_TEST(within_rule(forward.y, exact.y, plain.y));
        BOOST_TEST(within_rule(forward.rstd, exact.rstd, plain.rstd));
        // With one column y is the gain's sign and dx cancels to nothing: only its terms have a magnitude.
        if (width > 1) BOOST_TEST(within_rule(backward.dx, exact.dx, plain_backward.dx));
        else BOOST_TEST(largest_error(backward.dx, exact.dx) <= 64 * ulp_at<T>(1));
        BOOST_TEST(within_rule(backward.dgain, exact.dgain, plain_backward.dgain));
        for (const auto& rank : ranks.by_threads) {
          const auto again = problem.forward(*rank);
          const auto again_backward = problem.backward(*rank, forward.rstd);
          BOOST_TEST(same_bits(again.y, forward.y));
          BOOST_TEST(same_bits(again.rstd, forward.rstd));
          BOOST_TEST(same_bits(again_backward.dx, backward.dx));
          BOOST_TEST(same_bits(again_backward.dgain, backward.dgain));
        }
      }
    }
  }
}

template <class T>
void check_rows_alone() {
  std::mt19937_64 random(2);
  for (const ThreadRanks& ranks : every_rank())
    for (const auto& [rows, width] : norm_shapes) {
      const RmsNormProblem<T> problem(random, rows, width);
      const auto forward = problem.forward(ranks.one());
      const auto backward = problem.backward(ranks.one(), forward.rstd);
      for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
        RmsNormProblem<T> alone(random, 1, width);
        alone.gain = problem.gain;
        alone.x = part(problem.x, row * width, width);
        alone.dy = part(problem.dy, row * width, width);
        const auto result = alone.forward(ranks.one());
        BOOST_TEST(same_bits(result.y, part(forward.y, row * width, width)));
        BOOST_TEST(same_bits(result.rstd, part(forward.rstd, row, 1)));
        BOOST_TEST(same_bits(alone.backward(ranks.one(), result.rstd).dx, part(backward.dx, row * width, width)));
      }
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(rmsnorm_kernel)

BOOST_AUTO_TEST_CASE(f64_follows_the_rule_with_any_threads) { check_rule<double>(); }
BOOST_AUTO_TEST_CASE(f32_follows_the_rule_with_any_threads) { check_rule<float>(); }
BOOST_AUTO_TEST_CASE(bf16_follows_the_rule_with_any_threads) { check_rule<bf16>(); }

BOOST_AUTO_TEST_CASE(row_alone_has_the_bits_it_has_among_others) {
  check_rows_alone<double>();
  check_rows_alone<float>();
  check_rows_alone<bf16>();
}

template <class T>
void check_fused() {
  std::mt19937_64 random(6);
  for (const ThreadRanks& ranks : every_rank())
    for (const auto& [rows, width] : norm_shapes)
      for (const char* kernel : {"vector", "reference"}) check_fused_rmsnorm<T>(ranks.one(), random, rows, width, kernel);
}

BOOST_AUTO_TEST_CASE(fused_sums_have_the_bits_of_their_parts_in_place_too) {
  check_fused<double>();
  check_fused<float>();
  check_fused<bf16>();
}

BOOST_AUTO_TEST_CASE(gradients_are_those_of_finite_differences) {
  std::mt19937_64 random(3);
  for (const ThreadRanks& ranks : every_rank())
    for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {3, 5}, {4, 13}}) {
      RmsNormProblem<double> problem(random, rows, width);
      problem.dgain_before.assign(problem.dgain_before.size(), 0);
      const auto backward = problem.backward(ranks.one(), problem.forward(ranks.one()).rstd);
      const auto loss = [&](const std::vector<double>& x, const std::vector<double>& gain) {
        RmsNormProblem<double> moved = problem;
        moved.x = x;
        moved.gain = gain;
        const auto y = moved.forward(ranks.one()).y;
        return std::inner_product(y.begin(), y.end(), problem.dy.begin(), 0.0);
      };
      check_gradient([&](const std::vector<double>& x) { return loss(x, problem.gain); }, problem.x, backward.dx);
      check_gradient([&](const std::vector<double>& gain) { return loss(problem.x, gain); }, problem.gain, backward.dgain);
    }
}

BOOST_AUTO_TEST_CASE(nan_stays_in_its_row) {
  std::mt19937_64 random(4);
  for (const ThreadRanks& ranks : every_rank()) {
    RmsNormProblem<float> problem(random, 5, 19);
    const auto clean = problem.forward(ranks.one());
    problem.x[2 * 19 + 4] = std::numeric_limits<float>::quiet_NaN();
    const auto dirty = problem.forward(ranks.one());
    for (int64_t row = 0; row < 5; ++row) {
      BOOST_TEST(same_bits(part(clean.y, row * 19, 19), part(dirty.y, row * 19, 19)) == (row != 2));
      BOOST_TEST(std::isnan(dirty.rstd[static_cast<size_t>(row)]) == (row == 2));
    }
  }
}

BOOST_AUTO_TEST_CASE(control_another_eps_or_a_missing_row_is_seen) {
  std::mt19937_64 random(5);
  Rank rank;
  const RmsNormProblem<float> problem(random, 5, 17);
  auto exact = problem.literal();
  const auto plain = problem.forward(rank, "reference");
  for (Exact& y : exact.y) y *= 1 + 1e-5L;  // what an eps of another size does
  BOOST_TEST(!within_rule(problem.forward(rank).y, exact.y));
  RmsNormProblem<float> shorter = problem;
  shorter.rows = 4;
  BOOST_TEST(!within_rule(shorter.backward(rank, plain.rstd).dgain, exact.dgain, problem.backward(rank, plain.rstd, "reference").dgain));
}

BOOST_AUTO_TEST_SUITE_END()
