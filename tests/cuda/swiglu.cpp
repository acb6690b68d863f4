// SwiGLU on the emulated device.
#include "ops/swiglu_case.h"

#include "cuda/kernel_case.h"

using namespace quire;
using namespace quire::test;

namespace {

template <class T>
void check_swiglu() {
  std::mt19937_64 random(1);
  DeviceRank rank;
  Rank host;
  for (const int64_t count : {0, 1, 7, 16, 33, 5001})
    for (const double scale : {0.1, 3.0, 60.0})
      BOOST_TEST_CONTEXT("count " << count << " scale " << scale) {
        SwigluProblem<T> problem(random, count, scale);
        const auto exact = problem.literal();
        const auto plain_backward = problem.backward(host, "reference");
        const auto y = problem.forward(rank);
        const auto backward = problem.backward(rank), over = problem.backward(rank, "vector", true);
        BOOST_TEST(within_rule(y, exact.y, problem.forward(host, "reference")));
        BOOST_TEST(within_rule(backward.dgate, exact.dgate, plain_backward.dgate));
        BOOST_TEST(within_rule(backward.dup, exact.dup, plain_backward.dup));
        BOOST_TEST((same_bits(over.dgate, backward.dgate) && same_bits(over.dup, backward.dup)));
        problem.shift = 1;
        BOOST_TEST(same_bits(problem.forward(rank), y));
        BOOST_TEST(same_bits(problem.backward(rank).dgate, backward.dgate));
      }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_swiglu)

BOOST_AUTO_TEST_CASE(f32_follows_the_rule_in_place_or_not) { check_swiglu<float>(); }
BOOST_AUTO_TEST_CASE(bf16_follows_the_rule_in_place_or_not) { check_swiglu<bf16>(); }

BOOST_AUTO_TEST_CASE(every_order_of_threads_gives_the_same) {
  std::mt19937_64 random(2);
  DeviceRank rank;
  const SwigluProblem<bf16> problem(random, 77, 3);
  const auto y = problem.forward(rank);
  const auto backward = problem.backward(rank);
  in_eight_orders([&] {
    BOOST_TEST(same_bits(problem.forward(rank), y));
    BOOST_TEST(same_bits(problem.backward(rank, "vector", true).dgate, backward.dgate));
  });
}

BOOST_AUTO_TEST_CASE(large_gates_saturate_and_nan_shows) {
  std::mt19937_64 random(3);
  DeviceRank rank;
  SwigluProblem<float> problem(random, 8, 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  problem.gate = {1e30f, -1e30f, 100, -100, -90, nan, 0, -0.0f};
  problem.up.assign(8, 2);
  problem.dy.assign(8, 3);
  const auto y = problem.forward(rank);
  const auto backward = problem.backward(rank);
  BOOST_TEST((y[0] == 2 * 1e30f && y[1] == 0 && y[2] == 200));
  BOOST_TEST((std::abs(y[3]) < 1e-40f && std::abs(y[4]) < 1e-36f && y[4] <= 0));
  BOOST_TEST((std::isnan(y[5]) && std::isnan(backward.dgate[5]) && std::isnan(backward.dup[5])));
  BOOST_TEST((y[6] == 0 && y[7] == 0));
  BOOST_TEST((backward.dgate[0] == 6 && backward.dgate[1] == 0 && backward.dgate[2] == 6 && backward.dgate[6] == 3));
  BOOST_TEST((backward.dup[0] == 3 * 1e30f && backward.dup[1] == 0));
}

BOOST_AUTO_TEST_CASE(value_has_the_same_bits_wherever_it_stands) {
  std::mt19937_64 random(4);
  DeviceRank rank;
  SwigluProblem<float> problem(random, 40, 1);
  problem.gate.assign(40, 0.7321f);
  problem.up.assign(40, -1.1f);
  const auto y = problem.forward(rank);
  BOOST_TEST(same_bits(y, std::vector<float>(40, y[0])));
}

BOOST_AUTO_TEST_CASE(control_gate_and_up_exchanged_is_seen) {
  std::mt19937_64 random(5);
  DeviceRank rank;
  SwigluProblem<float> problem(random, 33, 1);
  const auto exact = problem.literal();
  std::swap(problem.gate, problem.up);
  BOOST_TEST(!within_rule(problem.forward(rank), exact.y));
}

BOOST_AUTO_TEST_SUITE_END()
