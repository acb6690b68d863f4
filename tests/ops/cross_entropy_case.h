// Random problems of cross-entropy, on any device, and their literal solutions.
#pragma once
#include "ops/kernel_test.h"

namespace quire::test {

template <class T>
struct CrossEntropyProblem {
  using A = Accumulator<T>;
  int64_t rows, vocabulary;
  int64_t shift = 0;  ///< of the logits in memory
  double z_weight, scale;
  std::vector<A> logits;
  std::vector<int32_t> targets;

  CrossEntropyProblem(std::mt19937_64& random, int64_t rows_, int64_t vocabulary_, double z)
      : rows(rows_), vocabulary(vocabulary_), z_weight(z), scale(1.0 / 37), logits(random_values<A>(random, rows * vocabulary, 4)) {
    for (int64_t i = 0; i < rows; ++i)
      targets.push_back(random() % 4 == 0 ? -100 : static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)));
  }

  struct Forward { std::vector<A> lse, nll; };
  Forward forward(Rank& rank, std::string_view kernel = "vector") const {
    const Placed<A> on_logits(rank, logits, shift), lse(rank, rows), nll(rank, rows);
    const Placed<int32_t> on_targets(rank, targets);
    run_kernel(rank, CrossEntropyForwardArgs{dtype_of<T>::value, rows, vocabulary, on_logits.data(), on_targets.data(), z_weight, lse.data(),
        nll.data()}, kernel);
    return {lse.values(), nll.values()};
  }
  /// `in_place`: over the logits, where T is A.
  std::vector<T> backward(Rank& rank, const std::vector<A>& lse, std::string_view kernel = "vector", bool in_place = false) const {
    const Placed<A> on_logits(rank, logits, shift), on_lse(rank, lse);
    const Placed<int32_t> on_targets(rank, targets);
    const Placed<double> on_scale(rank, std::vector{scale});
    const Placed<T> apart(rank, rows * vocabulary);
    T* dlogits = apart.data();
    if constexpr (std::is_same_v<T, A>)
      if (in_place) dlogits = on_logits.data();
    run_kernel(rank, CrossEntropyBackwardArgs{dtype_of<T>::value, rows, vocabulary, on_logits.data(), on_targets.data(), z_weight, on_lse.data(),
        on_scale.data(), dlogits}, kernel);
    if constexpr (std::is_same_v<T, A>)
      if (in_place) return on_logits.values();
    return apart.values();
  }

  struct Literal { std::vector<Exact> lse, nll, dlogits; };
  Literal literal() const {
    Literal out;
    for (int64_t r = 0; r < rows; ++r) {
      const A* x = logits.data() + r * vocabulary;
      Exact sum = 0;
      for (int64_t i = 0; i < vocabulary; ++i) sum += std::exp(static_cast<Exact>(x[i]));  // no overflow: the exponent of Exact is wide
      const Exact lse = std::log(sum), z = z_weight;
      const int32_t target = targets[static_cast<size_t>(r)];
      out.lse.push_back(lse);
      out.nll.push_back(target == -100 ? 0 : lse - x[target] + z * lse * lse);
      for (int64_t i = 0; i < vocabulary; ++i)
        out.dlogits.push_back(target == -100 ? 0 : scale * (std::exp(x[i] - lse) * (1 + 2 * z * lse) - (i == target ? 1 : 0)));
    }
    return out;
  }
};

/// Rows that are ignored give exact zeros, whatever they hold.
inline void check_ignored_rows(Rank& rank) {
  std::mt19937_64 random(4);
  CrossEntropyProblem<float> problem(random, 4, 19, 0.1);
  problem.targets.assign(4, -100);
  problem.logits[20] = std::numeric_limits<float>::quiet_NaN();
  problem.logits[50] = std::numeric_limits<float>::infinity();
  problem.scale = std::numeric_limits<double>::quiet_NaN();
  const auto forward = problem.forward(rank);
  BOOST_TEST(same_bits(forward.nll, std::vector<float>(4)));
  BOOST_TEST(same_bits(problem.backward(rank, forward.lse), std::vector<float>(4 * 19)));
  // Control: a row that is scored shows them.
  problem.targets[1] = 0;
  BOOST_TEST(std::isnan(problem.forward(rank).nll[1]));
  BOOST_TEST(!same_bits(problem.backward(rank, forward.lse), std::vector<float>(4 * 19)));
}

/// NaN and infinity of a scored row are never hidden, and stay in it.
inline void check_not_finite(Rank& rank) {
  std::mt19937_64 random(5);
  for (size_t at = 0; at < 19; ++at)
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      CrossEntropyProblem<float> problem(random, 2, 19, 0);
      problem.targets = {3, 3};
      problem.logits[at] = bad;
      const auto forward = problem.forward(rank);
      BOOST_TEST((!std::isfinite(forward.nll[0]) && std::isfinite(forward.nll[1])));
      const auto gradient = problem.backward(rank, forward.lse);
      BOOST_TEST((std::isnan(gradient[at]) && std::isfinite(gradient[19 + at])));
    }
}

inline void check_large_and_masked_logits(Rank& rank) {
  std::mt19937_64 random(6);
  CrossEntropyProblem<float> problem(random, 1, 37, 0);
  problem.scale = 1;
  problem.targets = {2};
  for (const float offset : {1e4f, -1e4f}) {
    problem.logits.assign(37, -std::numeric_limits<float>::infinity());
    problem.logits[1] = offset;
    problem.logits[2] = offset - 1;
    const auto forward = problem.forward(rank);
    BOOST_TEST(std::abs(forward.nll[0] - 1.3132617f) < 1e-6f);
    const auto gradient = problem.backward(rank, forward.lse);
    BOOST_TEST(std::abs(gradient[1] - 0.7310586f) < 1e-3f);  // lse itself has a step of 1e-3 here
    BOOST_TEST((gradient[0] == 0 && gradient[36] == 0));
  }
}

/// The loss of a sure prediction keeps its digits.
inline void check_sure_prediction(Rank& rank) {
  std::mt19937_64 random(7);
  CrossEntropyProblem<float> problem(random, 1, 37, 0);
  problem.targets = {20};
  problem.logits.assign(37, -20);
  problem.logits[20] = 0;
  const double exact = std::log1p(36 * std::exp(-20.0));  // 7e-8, less than the step of f32 at 1
  BOOST_TEST(std::abs(problem.forward(rank).nll[0] - exact) <= 1e-6 * exact);
  problem.logits[7] = 0;  // two largest
  BOOST_TEST(std::abs(problem.forward(rank).nll[0] - std::log(2.0)) <= 1e-7);
}

}  // namespace quire::test
