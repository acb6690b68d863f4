// States of AdamW, on any device, and the literal update.
#pragma once
#include "ops/kernel_test.h"

namespace quire::test {

template <class T>
struct AdamWState {
  using A = Accumulator<T>;
  std::vector<A> gradient, master, moment1, moment2;
  std::vector<T> value;
  int64_t shift = 0;  ///< of the gradient in memory
  OptimizerScalars scalars{1e-2, 0.5, 0.271, 0.0297, 0};

  AdamWState(std::mt19937_64& random, int64_t count)
      : gradient(random_values<A>(random, count)), master(random_values<A>(random, count)), moment1(random_values<A>(random, count, 0.1)),
        moment2(random_values<A>(random, count, 0.1)), value(random_values<T>(random, count)) {
    for (A& v : moment2) v = std::abs(v);
  }
  void step(Rank& rank) {
    const Placed<A> on_gradient(rank, gradient, shift), on_master(rank, master), on_moment1(rank, moment1), on_moment2(rank, moment2);
    const Placed<T> on_value(rank, value);
    std::vector<double> bits(sizeof scalars / sizeof(double));
    std::memcpy(bits.data(), &scalars, sizeof scalars);
    const Placed<double> on_scalars(rank, bits);
    const AdamWTensor tensor{static_cast<int64_t>(master.size()), 0.1, on_gradient.data(), on_master.data(), on_moment1.data(), on_moment2.data(),
                             std::is_same_v<T, A> ? nullptr : on_value.data()};
    run_kernel(rank, AdamWArgs{dtype_of<T>::value, 0.9, 0.99, 1e-8, reinterpret_cast<const OptimizerScalars*>(on_scalars.data()), std::span(&tensor, 1)});
    master = on_master.values();
    moment1 = on_moment1.values();
    moment2 = on_moment2.values();
    value = on_value.values();
  }
  bool same(const AdamWState& other) const {
    return same_bits(master, other.master) && same_bits(moment1, other.moment1) && same_bits(moment2, other.moment2) && same_bits(value, other.value);
  }
};

struct AdamWLiteral {
  std::vector<Exact> master, moment1, moment2;
  template <class T>
  explicit AdamWLiteral(const AdamWState<T>& s) : master(s.master.begin(), s.master.end()), moment1(s.moment1.begin(), s.moment1.end()),
      moment2(s.moment2.begin(), s.moment2.end()) {}
  template <class T>
  void step(const AdamWState<T>& s) {
    for (size_t i = 0; i < master.size(); ++i) {
      const Exact g = static_cast<Exact>(s.gradient[i]) * s.scalars.clip;
      moment1[i] = 0.9 * moment1[i] + (1 - 0.9) * g;
      moment2[i] = 0.99 * moment2[i] + (1 - 0.99) * g * g;
      const Exact m = moment1[i] / s.scalars.bias1, v = moment2[i] / s.scalars.bias2;
      master[i] -= s.scalars.learning_rate * (m / (std::sqrt(v) + 1e-8L) + static_cast<Exact>(0.1) * master[i]);
    }
  }
};

}  // namespace quire::test
