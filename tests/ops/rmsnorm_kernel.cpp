// RMS normalisation kernels against the literal formula.
#include "ops/kernel_test.h"

using namespace quire;
using namespace quire::test;

namespace {

constexpr double eps = 1e-5;

template <class T>
struct Problem {
  using A = Accumulator<T>;
  int64_t rows, width;
  std::vector<T> x, gain, dy;
  std::vector<A> dgain_before;

  Problem(std::mt19937_64& random, int64_t rows_, int64_t width_)
      : rows(rows_), width(width_), x(random_values<T>(random, rows * width, 2)), gain(random_values<T>(random, width)),
        dy(random_values<T>(random, rows * width)), dgain_before(random_values<A>(random, width)) {}

  struct Forward { std::vector<T> y; std::vector<A> rstd; };
  Forward forward(Rank& rank, std::string_view kernel = "vector") const {
    Forward out{unwritten<T>(rows * width), unwritten<A>(rows)};
    run_kernel(rank, RmsNormForwardArgs{dtype_of<T>::value, rows, width, eps, x.data(), gain.data(), out.y.data(), out.rstd.data()}, kernel);
    close_output(out.y);
    close_output(out.rstd);
    return out;
  }

  struct Backward { std::vector<T> dx; std::vector<A> dgain; };
  Backward backward(Rank& rank, const std::vector<A>& rstd, std::string_view kernel = "vector") const {
    Backward out{unwritten<T>(rows * width), dgain_before};
    run_kernel(rank, RmsNormBackwardArgs{dtype_of<T>::value, rows, width, x.data(), gain.data(), rstd.data(), dy.data(), out.dx.data(), out.dgain.data()}, kernel);
    close_output(out.dx);
    return out;
  }

  struct Literal { std::vector<Exact> y, rstd, dx, dgain; };
  Literal literal() const {
    Literal out;
    for (const A before : dgain_before) out.dgain.push_back(before);
    for (int64_t r = 0; r < rows; ++r) {
      const auto at = [&](const std::vector<T>& v, int64_t i) { return static_cast<Exact>(to_double(v[static_cast<size_t>(r * width + i)])); };
      const auto g = [&](int64_t i) { return static_cast<Exact>(to_double(gain[static_cast<size_t>(i)])); };
      Exact squares = 0, dot = 0;
      for (int64_t i = 0; i < width; ++i) squares += at(x, i) * at(x, i);
      const Exact rstd = 1 / std::sqrt(squares / width + static_cast<Exact>(eps));
      out.rstd.push_back(rstd);
      for (int64_t i = 0; i < width; ++i) dot += at(dy, i) * g(i) * at(x, i) * rstd;
      for (int64_t i = 0; i < width; ++i) {
        out.y.push_back(at(x, i) * rstd * g(i));
        out.dx.push_back(rstd * (at(dy, i) * g(i) - at(x, i) * rstd * dot / width));
        out.dgain[static_cast<size_t>(i)] += at(dy, i) * at(x, i) * rstd;
      }
    }
    return out;
  }
};

// One element, less than a vector, tails, several chunks of rows, rows wider than one task.
const std::vector<std::pair<int64_t, int64_t>> shapes{{1, 1}, {3, 1}, {1, 7}, {2, 8}, {5, 17}, {130, 33}, {70, 64}, {1100, 24}, {3, 1031}, {2, 20001}};

template <class T>
void check_rule() {
  std::mt19937_64 random(1);
  const auto all = every_rank();
  for (const auto& [rows, width] : shapes) {
    const Problem<T> problem(random, rows, width);
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
    for (const auto& [rows, width] : shapes) {
      const Problem<T> problem(random, rows, width);
      const auto forward = problem.forward(ranks.one());
      const auto backward = problem.backward(ranks.one(), forward.rstd);
      for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
        Problem<T> alone(random, 1, width);
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

/// What is fused must have the bits of its parts, in place or not: sums are rounded to T before they are normalised, and gradients once, after they were added.
template <class T>
void check_fused() {
  using A = Accumulator<T>;
  std::mt19937_64 random(6);
  for (const ThreadRanks& ranks : every_rank())
    for (const auto& [rows, width] : shapes)
      for (const char* kernel : {"vector", "reference"}) {
        Problem<T> problem(random, rows, width);
        const int64_t count = rows * width;
        const std::vector<T> added = random_values<T>(random, count), so_far = random_values<T>(random, count);
        std::vector<T> sum = problem.x;
        for (size_t i = 0; i < sum.size(); ++i) sum[i] = from_double<T>(static_cast<double>(static_cast<A>(to_double(sum[i])) + static_cast<A>(to_double(added[i]))));
        Problem<T> summed = problem;
        summed.x = sum;
        const auto parts = summed.forward(ranks.one(), kernel);
        const DType type = dtype_of<T>::value;
        for (const bool in_place : {false, true}) {
          std::vector<T> y = unwritten<T>(count), other = in_place ? added : unwritten<T>(count);
          std::vector<A> rstd = unwritten<A>(rows);
          run_kernel(ranks.one(), RmsNormForwardArgs{type, rows, width, eps, problem.x.data(), problem.gain.data(), y.data(), rstd.data(),
                                                     in_place ? other.data() : added.data(), other.data()}, kernel);
          close_output(y);
          close_output(rstd);
          if (!in_place) close_output(other);
          BOOST_TEST((same_bits(other, sum) && same_bits(y, parts.y) && same_bits(rstd, parts.rstd)), kernel << " forward, in place: " << in_place);
        }
        const auto plain = problem.backward(ranks.one(), parts.rstd, kernel);
        const auto backward = [&](const T* dy, const T* before, T* dx, std::vector<A>& dgain) {
          run_kernel(ranks.one(), RmsNormBackwardArgs{type, rows, width, problem.x.data(), problem.gain.data(), parts.rstd.data(), dy, dx, dgain.data(), before}, kernel);
          BOOST_TEST(same_bits(dgain, plain.dgain));
        };
        const auto fresh = [&] { return problem.dgain_before; };
        std::vector<A> dgain = fresh();
        std::vector<T> apart = unwritten<T>(count), over_dy = problem.dy, over_sum = so_far;
        backward(problem.dy.data(), so_far.data(), apart.data(), dgain);
        close_output(apart);
        backward(over_dy.data(), so_far.data(), over_dy.data(), dgain = fresh());
        backward(problem.dy.data(), over_sum.data(), over_sum.data(), dgain = fresh());
        BOOST_TEST((same_bits(over_dy, apart) && same_bits(over_sum, apart)), kernel << " backward in place");
        if constexpr (std::is_same_v<T, A>)
          for (size_t i = 0; i < apart.size(); ++i) BOOST_REQUIRE_EQUAL(apart[i], so_far[i] + plain.dx[i]);
        else
          for (size_t i = 0; i < apart.size(); ++i)  // two roundings instead of one
            BOOST_REQUIRE_SMALL(to_double(apart[i]) - (to_double(so_far[i]) + to_double(plain.dx[i])), ulp_at<T>(to_double(plain.dx[i])) + ulp_at<T>(to_double(apart[i])));
      }
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
      Problem<double> problem(random, rows, width);
      problem.dgain_before.assign(problem.dgain_before.size(), 0);
      const auto backward = problem.backward(ranks.one(), problem.forward(ranks.one()).rstd);
      const auto loss = [&](const std::vector<double>& x, const std::vector<double>& gain) {
        Problem<double> moved = problem;
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
    Problem<float> problem(random, 5, 19);
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
  const Problem<float> problem(random, 5, 17);
  auto exact = problem.literal();
  const auto plain = problem.forward(rank, "reference");
  for (Exact& y : exact.y) y *= 1 + 1e-5L;  // what an eps of another size does
  BOOST_TEST(!within_rule(problem.forward(rank).y, exact.y));
  Problem<float> shorter = problem;
  shorter.rows = 4;
  BOOST_TEST(!within_rule(shorter.backward(rank, plain.rstd).dgain, exact.dgain, problem.backward(rank, plain.rstd, "reference").dgain));
}

BOOST_AUTO_TEST_SUITE_END()
