// Rotary kernels against the literal rotation.
#include "ops/rotary_case.h"

using namespace quire;
using namespace quire::test;

namespace {

struct Size { int64_t tokens, heads, head_dim; };
const std::vector<Size> rotary_sizes{{1, 1, 2}, {3, 2, 6}, {7, 3, 8}, {33, 4, 64}, {200, 8, 34}, {2, 1, 256}};

template <class T>
void check_rotary() {
  std::mt19937_64 random(1);
  const auto all = every_rank();
  for (const Size& size : rotary_sizes) {
    const RotaryProblem<T> problem(random, size.tokens, size.heads, size.head_dim);
    for (const bool inverse : {false, true}) {
      const auto exact = problem.literal(inverse);
      const auto plain = problem.run(all.front().one(), inverse, "reference");
      for (const ThreadRanks& ranks : all) {
        const auto y = problem.run(ranks.one(), inverse);
        BOOST_TEST(within_rule(y, exact, plain), ranks.instruction_set << " head_dim " << size.head_dim);
        for (const auto& rank : ranks.by_threads) BOOST_TEST(same_bits(problem.run(*rank, inverse), y));
        BOOST_TEST(same_bits(problem.run(ranks.one(), inverse, "vector", true), y));
      }
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(rotary_kernel)

BOOST_AUTO_TEST_CASE(follows_the_rule_in_place_or_not_with_any_threads) {
  check_rotary<double>();
  check_rotary<float>();
  check_rotary<bf16>();
}

BOOST_AUTO_TEST_CASE(token_has_the_same_bits_wherever_it_stands) {
  std::mt19937_64 random(2);
  for (const ThreadRanks& ranks : every_rank())
    for (const Size& size : rotary_sizes) {
      const RotaryProblem<float> problem(random, size.tokens, size.heads, size.head_dim);
      const auto y = problem.run(ranks.one(), false);
      const int64_t token = size.tokens - 1, width = size.heads * size.head_dim;
      RotaryProblem<float> alone = problem;
      alone.tokens = 1;
      alone.positions = {problem.positions.back()};
      alone.x = part(problem.x, token * width, width);
      BOOST_TEST(same_bits(alone.run(ranks.one(), false), part(y, token * width, width)));
    }
}

BOOST_AUTO_TEST_CASE(inverse_is_the_gradient) {
  std::mt19937_64 random(3);
  for (const ThreadRanks& ranks : every_rank()) {
    RotaryProblem<double> problem(random, 3, 2, 6);
    const std::vector<double> dy = random_values<double>(random, 36);
    RotaryProblem<double> backward = problem;
    backward.x = dy;
    check_gradient(
        [&](const std::vector<double>& x) {
          RotaryProblem<double> moved = problem;
          moved.x = x;
          const auto y = moved.run(ranks.one(), false);
          return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
        },
        problem.x, backward.run(ranks.one(), true));
  }
}

BOOST_AUTO_TEST_CASE(position_zero_changes_nothing) {
  std::mt19937_64 random(4);
  for (const ThreadRanks& ranks : every_rank()) {
    RotaryProblem<bf16> problem(random, 5, 2, 10);
    problem.positions.assign(5, 0);
    BOOST_TEST(same_bits(problem.run(ranks.one(), false), problem.x));
  }
}

BOOST_AUTO_TEST_CASE(control_a_shifted_position_is_seen) {
  std::mt19937_64 random(5);
  Rank rank;
  RotaryProblem<float> problem(random, 3, 2, 6);
  const auto exact = problem.literal(false);
  for (int32_t& position : problem.positions) position = (position + 1) % 50;
  BOOST_TEST(!within_rule(problem.run(rank, false), exact));
}

BOOST_AUTO_TEST_CASE(odd_head_is_refused) {
  const RotaryArgs args{DType::f32, 1, 1, 3, nullptr, nullptr, nullptr, nullptr, nullptr, false};
  for (const auto& kernel : cpu_kernels<RotaryArgs>()) BOOST_TEST(!kernel.can_run(args));
}

BOOST_AUTO_TEST_SUITE_END()
