// Random problems of SwiGLU, on any device, and their literal solutions.
#pragma once
#include "ops/kernel_test.h"

namespace quire::test {

template <class T>
struct SwigluProblem {
  std::vector<T> gate, up, dy;
  int64_t shift = 0;  ///< of gate in memory

  SwigluProblem(std::mt19937_64& random, int64_t count, double scale)
      : gate(random_values<T>(random, count, scale)), up(random_values<T>(random, count)), dy(random_values<T>(random, count)) {}
  int64_t count() const { return static_cast<int64_t>(gate.size()); }

  std::vector<T> forward(Rank& rank, std::string_view kernel = "vector") const {
    const Placed<T> on_gate(rank, gate, shift), on_up(rank, up), y(rank, count());
    run_kernel(rank, SwigluForwardArgs{dtype_of<T>::value, count(), on_gate.data(), on_up.data(), y.data()}, kernel);
    return y.values();
  }
  struct Backward { std::vector<T> dgate, dup; };
  Backward backward(Rank& rank, std::string_view kernel = "vector", bool in_place = false) const {
    const Placed<T> on_gate(rank, gate, shift), on_up(rank, up), on_dy(rank, dy), gate_apart(rank, count()), up_apart(rank, count());
    const Placed<T>& dgate = in_place ? on_gate : gate_apart;
    const Placed<T>& dup = in_place ? on_up : up_apart;
    run_kernel(rank, SwigluBackwardArgs{dtype_of<T>::value, count(), on_gate.data(), on_up.data(), on_dy.data(), dgate.data(), dup.data()}, kernel);
    return {dgate.values(), dup.values()};
  }
  struct Literal { std::vector<Exact> y, dgate, dup; };
  Literal literal() const {
    Literal out;
    for (size_t i = 0; i < gate.size(); ++i) {
      const Exact x = to_double(gate[i]), u = to_double(up[i]), g = to_double(dy[i]), s = 1 / (1 + std::exp(-x));
      out.y.push_back(x * s * u);
      out.dgate.push_back(g * u * s * (1 + x / (1 + std::exp(x))));
      out.dup.push_back(g * x * s);
    }
    return out;
  }
};

}  // namespace quire::test
