// Random problems of rotary embedding, on any device, and their literal solutions.
#pragma once
#include "ops/kernel_test.h"

namespace quire::test {

template <class T>
struct RotaryProblem {
  using A = Accumulator<T>;
  int64_t tokens, heads, head_dim;
  int64_t shift = 0;  ///< of x in memory
  std::vector<int32_t> positions;
  std::vector<A> cosine, sine;
  std::vector<T> x;

  RotaryProblem(std::mt19937_64& random, int64_t tokens_, int64_t heads_, int64_t head_dim_)
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

  std::vector<T> run(Rank& rank, bool inverse, std::string_view kernel = "vector", bool in_place = false) const {
    const Placed<int32_t> on_positions(rank, positions);
    const Placed<A> on_cosine(rank, cosine), on_sine(rank, sine);
    const Placed<T> on_x(rank, x, shift), apart(rank, tokens * heads * head_dim);
    const Placed<T>& y = in_place ? on_x : apart;
    run_kernel(rank, RotaryArgs{dtype_of<T>::value, tokens, heads, head_dim, on_positions.data(), on_cosine.data(), on_sine.data(), on_x.data(),
        y.data(), inverse}, kernel);
    return y.values();
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

}  // namespace quire::test
