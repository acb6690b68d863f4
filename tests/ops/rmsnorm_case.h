// Random problems of RMS normalisation, on any device, and their literal solutions.
#pragma once
#include "ops/kernel_test.h"

namespace quire::test {

template <class T>
struct RmsNormProblem {
  using A = Accumulator<T>;
  static constexpr double eps = 1e-5;
  int64_t rows, width;
  int64_t shift = 0;  ///< of x in memory
  std::vector<T> x, gain, dy;
  std::vector<A> dgain_before;

  RmsNormProblem(std::mt19937_64& random, int64_t rows_, int64_t width_)
      : rows(rows_), width(width_), x(random_values<T>(random, rows * width, 2)), gain(random_values<T>(random, width)),
        dy(random_values<T>(random, rows * width)), dgain_before(random_values<A>(random, width)) {}

  struct Forward { std::vector<T> y; std::vector<A> rstd; };
  Forward forward(Rank& rank, std::string_view kernel = "vector") const {
    const Placed<T> on_x(rank, x, shift), on_gain(rank, gain), y(rank, rows * width);
    const Placed<A> rstd(rank, rows);
    run_kernel(rank, RmsNormForwardArgs{dtype_of<T>::value, rows, width, eps, on_x.data(), on_gain.data(), y.data(), rstd.data()}, kernel);
    return {y.values(), rstd.values()};
  }

  struct Backward { std::vector<T> dx; std::vector<A> dgain; };
  Backward backward(Rank& rank, const std::vector<A>& rstd, std::string_view kernel = "vector") const {
    const Placed<T> on_x(rank, x, shift), on_gain(rank, gain), on_dy(rank, dy), dx(rank, rows * width);
    const Placed<A> on_rstd(rank, rstd), dgain(rank, dgain_before);
    run_kernel(rank, RmsNormBackwardArgs{dtype_of<T>::value, rows, width, on_x.data(), on_gain.data(), on_rstd.data(), on_dy.data(), dx.data(),
        dgain.data()}, kernel);
    return {dx.values(), dgain.values()};
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

/// What is fused must have the bits of its parts, in place or not: sums are rounded to T before they are normalised, and gradients once, after they were added.
template <class T>
void check_fused_rmsnorm(Rank& rank, std::mt19937_64& random, int64_t rows, int64_t width, std::string_view kernel) {
  using A = Accumulator<T>;
  const RmsNormProblem<T> problem(random, rows, width);
  constexpr DType type = dtype_of<T>::value;
  const int64_t count = rows * width;
  const std::vector<T> added = random_values<T>(random, count), so_far = random_values<T>(random, count);
  RmsNormProblem<T> summed = problem;
  for (size_t i = 0; i < added.size(); ++i)
    summed.x[i] = from_double<T>(static_cast<double>(static_cast<A>(to_double(problem.x[i])) + static_cast<A>(to_double(added[i]))));
  const auto parts = summed.forward(rank, kernel);
  const Placed<T> x(rank, problem.x), gain(rank, problem.gain);
  for (const bool in_place : {false, true}) {
    const Placed<T> y(rank, count), more(rank, added), sum(rank, count);
    const Placed<A> rstd(rank, rows);
    run_kernel(rank, RmsNormForwardArgs{type, rows, width, problem.eps, x.data(), gain.data(), y.data(), rstd.data(), more.data(),
        in_place ? more.data() : sum.data()}, kernel);
    BOOST_TEST((same_bits((in_place ? more : sum).values(), summed.x) && same_bits(y.values(), parts.y) && same_bits(rstd.values(), parts.rstd)),
               kernel << " forward, in place: " << in_place);
  }
  const auto plain = problem.backward(rank, parts.rstd, kernel);
  const Placed<A> rstd(rank, parts.rstd);
  const auto backward = [&](const Placed<T>& dy, const Placed<T>& before, const Placed<T>& dx) {
    const Placed<A> dgain(rank, problem.dgain_before);
    run_kernel(rank, RmsNormBackwardArgs{type, rows, width, x.data(), gain.data(), rstd.data(), dy.data(), dx.data(), dgain.data(), before.data()}, kernel);
    BOOST_TEST(same_bits(dgain.values(), plain.dgain));
    return dx.values();
  };
  const Placed<T> dy(rank, problem.dy), before(rank, so_far), result(rank, count);
  const std::vector<T> apart = backward(dy, before, result);
  BOOST_TEST(same_bits(backward(dy, before, dy), apart), kernel << " backward over dy");
  const Placed<T> dy_again(rank, problem.dy);
  BOOST_TEST(same_bits(backward(dy_again, before, before), apart), kernel << " backward over the sum so far");
  for (size_t i = 0; i < apart.size(); ++i)
    if constexpr (std::is_same_v<T, A>) BOOST_REQUIRE_EQUAL(apart[i], so_far[i] + plain.dx[i]);
    else  // two roundings instead of one
      BOOST_REQUIRE_SMALL(to_double(apart[i]) - (to_double(so_far[i]) + to_double(plain.dx[i])),
          ulp_at<T>(to_double(plain.dx[i])) + ulp_at<T>(to_double(apart[i])));
}

}  // namespace quire::test
