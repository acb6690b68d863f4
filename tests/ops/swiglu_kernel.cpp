// SwiGLU kernels against the literal formula.
#include "ops/swiglu_case.h"

using namespace quire;
using namespace quire::test;

namespace {

template <class T>
void check_swiglu() {
  std::mt19937_64 random(1);
  const auto all = every_rank();
  for (const int64_t count : {1, 7, 16, 33, 1000, 16383, 16385, 40001})
    for (const double scale : {0.1, 3.0, 60.0}) {
      const SwigluProblem<T> problem(random, count, scale);
      const auto exact = problem.literal();
      const auto plain = problem.forward(all.front().one(), "reference");
      const auto plain_backward = problem.backward(all.front().one(), "reference");
      for (const ThreadRanks& ranks : all) {
        BOOST_TEST_CONTEXT(ranks.instruction_set << " count " << count << " scale " << scale) {
          const auto y = problem.forward(ranks.one());
          const auto backward = problem.backward(ranks.one());
          BOOST_TEST(within_rule(y, exact.y, plain));
          BOOST_TEST(within_rule(backward.dgate, exact.dgate, plain_backward.dgate));
          BOOST_TEST(within_rule(backward.dup, exact.dup, plain_backward.dup));
          for (const auto& rank : ranks.by_threads) {
            BOOST_TEST(same_bits(problem.forward(*rank), y));
            BOOST_TEST(same_bits(problem.backward(*rank).dgate, backward.dgate));
            BOOST_TEST(same_bits(problem.backward(*rank).dup, backward.dup));
          }
        }
      }
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(swiglu_kernel)

BOOST_AUTO_TEST_CASE(f64_follows_the_rule_with_any_threads) { check_swiglu<double>(); }
BOOST_AUTO_TEST_CASE(f32_follows_the_rule_with_any_threads) { check_swiglu<float>(); }
BOOST_AUTO_TEST_CASE(bf16_follows_the_rule_with_any_threads) { check_swiglu<bf16>(); }

BOOST_AUTO_TEST_CASE(each_f64_value_is_within_four_ulp) {
  std::mt19937_64 random(2);
  for (const ThreadRanks& ranks : every_rank()) {
    SwigluProblem<double> problem(random, 20000, 100);
    std::fill(problem.up.begin(), problem.up.end(), 1.0);
    const auto y = problem.forward(ranks.one());
    const auto exact = problem.literal().y;
    double worst = 0;
    for (size_t i = 0; i < y.size(); ++i)
      worst = std::max(worst, static_cast<double>(std::abs(y[i] - exact[i])) / ulp_at<double>(static_cast<double>(exact[i])));
    BOOST_TEST(worst <= 4, ranks.instruction_set << ": " << worst << " ulp");
  }
}

BOOST_AUTO_TEST_CASE(large_gates_saturate_and_nan_shows) {
  std::mt19937_64 random(3);
  for (const ThreadRanks& ranks : every_rank()) {
    SwigluProblem<float> problem(random, 8, 1);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    problem.gate = {1e30f, -1e30f, 100, -100, -90, nan, 0, -0.0f};
    problem.up.assign(8, 2);
    problem.dy.assign(8, 3);
    const auto y = problem.forward(ranks.one());
    const auto backward = problem.backward(ranks.one());
    BOOST_TEST(y[0] == 2 * 1e30f);
    BOOST_TEST(y[1] == 0);
    BOOST_TEST(y[2] == 200);
    BOOST_TEST((std::abs(y[3]) < 1e-40f && std::abs(y[4]) < 1e-36f && y[4] <= 0));
    BOOST_TEST((std::isnan(y[5]) && std::isnan(backward.dgate[5]) && std::isnan(backward.dup[5])));
    BOOST_TEST((y[6] == 0 && y[7] == 0));
    BOOST_TEST((backward.dgate[0] == 6 && backward.dgate[1] == 0 && backward.dgate[2] == 6 && backward.dgate[6] == 3));
    BOOST_TEST((backward.dup[0] == 3 * 1e30f && backward.dup[1] == 0));
  }
}

BOOST_AUTO_TEST_CASE(value_has_the_same_bits_wherever_it_stands) {
  std::mt19937_64 random(4);
  for (const ThreadRanks& ranks : every_rank())
    for (int64_t count = 1; count <= 40; ++count) {
      SwigluProblem<float> problem(random, count, 1);
      problem.gate.assign(problem.gate.size(), 0.7321f);
      problem.up.assign(problem.gate.size(), -1.1f);
      const auto y = problem.forward(ranks.one());
      BOOST_TEST(same_bits(y, std::vector<float>(y.size(), y[0])));
      BOOST_TEST(y[0] == problem.forward(ranks.one()).back());
    }
}

BOOST_AUTO_TEST_CASE(gradients_are_those_of_finite_differences) {
  std::mt19937_64 random(5);
  for (const ThreadRanks& ranks : every_rank()) {
    const SwigluProblem<double> problem(random, 37, 3);
    const auto backward = problem.backward(ranks.one());
    const auto loss = [&](const std::vector<double>& gate, const std::vector<double>& up) {
      SwigluProblem<double> moved = problem;
      moved.gate = gate;
      moved.up = up;
      const auto y = moved.forward(ranks.one());
      return std::inner_product(y.begin(), y.end(), problem.dy.begin(), 0.0);
    };
    check_gradient([&](const std::vector<double>& gate) { return loss(gate, problem.up); }, problem.gate, backward.dgate);
    check_gradient([&](const std::vector<double>& up) { return loss(problem.gate, up); }, problem.up, backward.dup);
  }
}

template <class T>
void check_in_place() {
  std::mt19937_64 random(7);
  for (const ThreadRanks& ranks : every_rank())
    for (const char* kernel : {"vector", "reference"})
      for (const int64_t count : {1, 7, 33, 16385}) {
        const SwigluProblem<T> problem(random, count, 3);
        const auto apart = problem.backward(ranks.one(), kernel), over = problem.backward(ranks.one(), kernel, true);
        BOOST_TEST((same_bits(over.dgate, apart.dgate) && same_bits(over.dup, apart.dup)), kernel << " " << count);
      }
}

BOOST_AUTO_TEST_CASE(gradients_in_the_place_of_gate_and_up_have_the_same_bits) {
  check_in_place<double>();
  check_in_place<float>();
  check_in_place<bf16>();
}

BOOST_AUTO_TEST_CASE(control_gate_and_up_exchanged_is_seen) {
  std::mt19937_64 random(6);
  Rank rank;
  SwigluProblem<float> problem(random, 33, 1);
  const auto exact = problem.literal();
  std::swap(problem.gate, problem.up);
  BOOST_TEST(!within_rule(problem.forward(rank), exact.y));
}

BOOST_AUTO_TEST_SUITE_END()
