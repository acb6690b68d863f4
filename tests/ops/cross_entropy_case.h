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

}  // namespace quire::test
