// Rotary kernels against the literal rotation.
#include "ops/kernel_test.h"

using namespace quire;
using namespace quire::test;

namespace {

template <class T>
struct Problem {
  using A = Accumulator<T>;
  int64_t tokens, heads, head_dim;
  std::vector<int32_t> positions;
  std::vector<A> cosine, sine;
  std::vector<T> x;

  Problem(std::mt19937_64& random, int64_t tokens_, int64_t heads_, int64_t head_dim_)
      : tokens(tokens_), heads(heads_), head_dim(head_dim_), x(random_values<T>(random, tokens * heads * head_dim)) {
    constexpr int64_t table = 50;
    for (int64_t i = 0; i < tokens; ++i) positions.push_back(static_cast<int32_t>(random() % table));
    for (int64_t p = 0; p < table; ++p)
      for (int64_t i = 0; i < head_dim / 2; ++i) {
        const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        cosine.push_back(static_cast<A>(std::cos(angle)));
        sine.push_back(static_cast<A>(std::sin(angle)));
      }
  }

  RotaryArgs args(const T* from, T* to, bool inverse) const {
    return {dtype_of<T>::value, tokens, heads, head_dim, positions.data(), cosine.data(), sine.data(), from, to, inverse};
  }
  std::vector<T> run(Rank& rank, bool inverse, std::string_view kernel = "vector") const {
    std::vector<T> y = unwritten<T>(tokens * heads * head_dim);
    run_kernel(rank, args(x.data(), y.data(), inverse), kernel);
    close_output(y);
    return y;
  }
  std::vector<Exact> literal(bool inverse) const {
    std::vector<Exact> y(x.size());
    const int64_t half = head_dim / 2;
    for (int64_t row = 0; row < tokens * heads; ++row)
      for (int64_t i = 0; i < half; ++i) {
        const size_t table = static_cast<size_t>(positions[static_cast<size_t>(row / heads)] * half + i);
        const size_t first = static_cast<size_t>(row * head_dim + i), second = first + static_cast<size_t>(half);
        const Exact c = cosine[table], s = inverse ? -static_cast<Exact>(sine[table]) : static_cast<Exact>(sine[table]);
        const Exact a = to_double(x[first]), b = to_double(x[second]);
        y[first] = a * c - b * s;
        y[second] = b * c + a * s;
      }
    return y;
  }
};

struct Size { int64_t tokens, heads, head_dim; };
const std::vector<Size> sizes{{1, 1, 2}, {3, 2, 6}, {7, 3, 8}, {33, 4, 64}, {200, 8, 34}, {2, 1, 256}};

template <class T>
void check_all() {
  std::mt19937_64 random(1);
  const auto all = every_rank();
  for (const Size& size : sizes) {
    const Problem<T> problem(random, size.tokens, size.heads, size.head_dim);
    for (const bool inverse : {false, true}) {
      const auto exact = problem.literal(inverse);
      const auto plain = problem.run(all.front().one(), inverse, "reference");
      for (const ThreadRanks& ranks : all) {
        const auto y = problem.run(ranks.one(), inverse);
        BOOST_TEST(within_rule(y, exact, plain), ranks.instruction_set << " head_dim " << size.head_dim);
        for (const auto& rank : ranks.by_threads) BOOST_TEST(same_bits(problem.run(*rank, inverse), y));
        std::vector<T> in_place = problem.x;
        run_kernel(ranks.one(), problem.args(in_place.data(), in_place.data(), inverse));
        BOOST_TEST(same_bits(in_place, y));
      }
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(rotary_kernel)

BOOST_AUTO_TEST_CASE(follows_the_rule_in_place_or_not_with_any_threads) {
  check_all<double>();
  check_all<float>();
  check_all<bf16>();
}

BOOST_AUTO_TEST_CASE(token_has_the_same_bits_wherever_it_stands) {
  std::mt19937_64 random(2);
  for (const ThreadRanks& ranks : every_rank())
    for (const Size& size : sizes) {
      const Problem<float> problem(random, size.tokens, size.heads, size.head_dim);
      const auto y = problem.run(ranks.one(), false);
      const int64_t token = size.tokens - 1, width = size.heads * size.head_dim;
      Problem<float> alone = problem;
      alone.tokens = 1;
      alone.positions = {problem.positions.back()};
      alone.x = part(problem.x, token * width, width);
      BOOST_TEST(same_bits(alone.run(ranks.one(), false), part(y, token * width, width)));
    }
}

BOOST_AUTO_TEST_CASE(inverse_is_the_gradient) {
  std::mt19937_64 random(3);
  for (const ThreadRanks& ranks : every_rank()) {
    Problem<double> problem(random, 3, 2, 6);
    const std::vector<double> dy = random_values<double>(random, 36);
    Problem<double> backward = problem;
    backward.x = dy;
    check_gradient(
        [&](const std::vector<double>& x) {
          Problem<double> moved = problem;
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
    Problem<bf16> problem(random, 5, 2, 10);
    problem.positions.assign(5, 0);
    BOOST_TEST(same_bits(problem.run(ranks.one(), false), problem.x));
  }
}

BOOST_AUTO_TEST_CASE(control_a_shifted_position_is_seen) {
  std::mt19937_64 random(5);
  Rank rank;
  Problem<float> problem(random, 3, 2, 6);
  const auto exact = problem.literal(false);
  for (int32_t& position : problem.positions) position = (position + 1) % 50;
  BOOST_TEST(!within_rule(problem.run(rank, false), exact));
}

BOOST_AUTO_TEST_CASE(odd_head_is_refused) {
  Problem<float> problem = [] { std::mt19937_64 random(6); return Problem<float>(random, 1, 1, 2); }();
  problem.head_dim = 3;
  for (const auto& kernel : cpu_kernels<RotaryArgs>()) BOOST_TEST(!kernel.can_run(problem.args(nullptr, nullptr, false)));
}

BOOST_AUTO_TEST_SUITE_END()
