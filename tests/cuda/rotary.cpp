// Rotary embedding on the emulated device.
#include "ops/rotary_case.h"

#include "cuda/kernel_case.h"

using namespace quire;
using namespace quire::test;

namespace {

struct Size { int64_t tokens, heads, head_dim; };
const std::vector<Size> sizes{{0, 2, 8}, {1, 1, 2}, {3, 2, 6}, {7, 3, 8}, {5, 4, 64}, {20, 8, 34}, {2, 1, 256}, {2, 40, 128}};

template <class T>
void check_rotary() {
  std::mt19937_64 random(1);
  DeviceRank rank;
  Rank host;
  for (const Size& size : sizes)
    for (const bool inverse : {false, true}) {
      RotaryProblem<T> problem(random, size.tokens, size.heads, size.head_dim);
      const auto y = problem.run(rank, inverse);
      BOOST_TEST(within_rule(y, problem.literal(inverse), problem.run(host, inverse, "reference")), "tokens " << size.tokens << " head_dim " << size.head_dim);
      BOOST_TEST(same_bits(problem.run(rank, inverse, "vector", true), y));
      problem.shift = 1;
      BOOST_TEST(same_bits(problem.run(rank, inverse), y));
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_rotary)

BOOST_AUTO_TEST_CASE(follows_the_rule_in_place_or_not) {
  check_rotary<float>();
  check_rotary<bf16>();
}

BOOST_AUTO_TEST_CASE(every_order_of_threads_gives_the_same) {
  std::mt19937_64 random(2);
  DeviceRank rank;
  const RotaryProblem<float> problem(random, 5, 3, 6);
  const auto y = problem.run(rank, false);
  in_eight_orders([&] {
    BOOST_TEST(same_bits(problem.run(rank, false), y));
    BOOST_TEST(same_bits(problem.run(rank, false, "vector", true), y));
  });
}

BOOST_AUTO_TEST_CASE(token_has_the_same_bits_wherever_it_stands) {
  std::mt19937_64 random(3);
  DeviceRank rank;
  const RotaryProblem<bf16> problem(random, 9, 3, 10);
  const auto y = problem.run(rank, false);
  RotaryProblem<bf16> alone = problem;
  alone.tokens = 1;
  alone.positions = {problem.positions.back()};
  alone.x = part(problem.x, 8 * 30, 30);
  BOOST_TEST(same_bits(alone.run(rank, false), part(y, 8 * 30, 30)));
}

BOOST_AUTO_TEST_CASE(control_a_shifted_position_is_seen) {
  std::mt19937_64 random(4);
  DeviceRank rank;
  RotaryProblem<float> problem(random, 3, 2, 6);
  const auto exact = problem.literal(false);
  for (int32_t& position : problem.positions) position = (position + 1) % 50;
  BOOST_TEST(!within_rule(problem.run(rank, false), exact));
}

BOOST_AUTO_TEST_CASE(odd_heads_and_f64_are_refused_by_name) {
  DeviceRank rank;
  for (const auto& [type, head_dim] : {std::pair{DType::f32, int64_t{3}}, std::pair{DType::f64, int64_t{4}}}) {
    const RotaryArgs args{type, 1, 1, head_dim, nullptr, nullptr, nullptr, nullptr, nullptr};
    check_error<UnsupportedError>([&] { dispatch(rank, args); }, {"rotary"});
  }
}

BOOST_AUTO_TEST_SUITE_END()
