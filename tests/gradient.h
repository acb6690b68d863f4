// One Jacobian check for every operation: what backward gives against finite differences in f64.
#pragma once
#include <functional>

#include "check.h"
#include "runtime/tape.h"

namespace quire::test {

inline Tensor random_tensor(Rank& rank, std::mt19937_64& random, const Shape& shape, double scale = 1) {
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<size_t>(shape.elements()));
  for (double& v : values) v = scale * normal(random);
  return Tensor::from<double>(rank, shape, values);
}

/// A parameter of its own, with `uses` zeroed accumulators.
inline Parameter make_parameter(Rank& rank, std::string name, const Tensor& value, int uses = 1) {
  Parameter p;
  p.name = std::move(name);
  p.shape = value.shape();
  p.uses = uses;
  p.value = p.master = value;
  for (int i = 0; i < uses; ++i) p.gradients.push_back(Tensor::zeros(rank, p.shape, accumulator_of(value.dtype())));
  return p;
}

using Function = std::function<Value(Tape&, std::span<const Value>)>;

/// Checks the gradients of a random linear functional of `function`'s output by every input and parameter (f64), at up to `samples` entries of
/// each, to `tolerance` of the tensor's largest one; and that a split backward leaves the same bits. Tensors are varied in place.
inline void check_gradient(Rank& rank, const Function& function, const std::vector<Tensor>& inputs, const std::vector<Parameter*>& parameters,
                           double tolerance = 1e-8, int64_t samples = 60) {
  std::mt19937_64 random(99);
  Tensor weights;  // of the functional
  const auto run = [&](BackwardMode mode) {
    Tape tape(rank);
    std::vector<Value> leaves;
    for (const Tensor& input : inputs) leaves.push_back(tape.leaf(input));
    const Value output = function(tape, leaves);
    if (!weights.defined()) weights = random_tensor(rank, random, output.tensor.shape());
    for (Parameter* p : parameters)
      for (const Tensor& gradient : p->gradients) fill_zero(rank, gradient);
    tape.backward(std::span(&output, 1), std::span(&weights, 1), mode);
    if (mode == BackwardMode::input_only) tape.backward_weights();
    std::vector<std::vector<double>> gradients;
    for (const Value& leaf : leaves) gradients.push_back(tape.take_gradient(leaf).to_vector<double>());
    for (Parameter* p : parameters) {
      for (size_t use = 1; use < p->gradients.size(); ++use) accumulate(rank, p->gradients[use], p->gradients[0]);
      gradients.push_back(p->gradients[0].to_vector<double>());
    }
    return gradients;
  };
  const std::vector<std::vector<double>> gradients = run(BackwardMode::full);
  BOOST_TEST((run(BackwardMode::input_only) == gradients), "split backward gives other bits");

  const auto functional = [&] {
    Tape tape(rank, false);
    std::vector<Value> values;
    for (const Tensor& input : inputs) values.push_back(tape.constant(input));
    const std::vector<double> y = function(tape, values).tensor.to_vector<double>(), w = weights.to_vector<double>();
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * w[i];
    return sum;
  };
  std::vector<Tensor> varied = inputs;
  for (Parameter* p : parameters) varied.push_back(p->value);
  for (size_t t = 0; t < varied.size(); ++t) {
    double largest = 1e-3;
    for (const double g : gradients[t]) largest = std::max(largest, std::abs(g));
    const int64_t count = varied[t].elements();
    for (int64_t s = 0; s < std::min(count, samples); ++s) {
      const int64_t i = count <= samples ? s : static_cast<int64_t>(random() % static_cast<uint64_t>(count));
      double& x = varied[t].data<double>()[i];
      const double before = x, h = 1e-3;
      const auto at = [&](double offset) {
        x = before + offset;
        const double value = functional();
        x = before;
        return value;
      };
      const double expected = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      const double found = gradients[t][static_cast<size_t>(i)];
      BOOST_TEST(std::abs(found - expected) <= tolerance * largest, "tensor " << t << " entry " << i << ": " << found << " but differences say " << expected);
    }
  }
}

}  // namespace quire::test
