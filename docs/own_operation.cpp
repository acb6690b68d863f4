// An operation of one's own with its own gradient, used beside Quire's; built like train_small.cpp.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "runtime/tape.h"

using namespace quire;

/// y = sin(x), element by element. Backward needs x.
class Sine final : public Node {
 public:
  explicit Sine(const Tensor& x) : x_(save(x, For::input_gradient)) {}
  std::string_view name() const override { return "sine"; }
  void input_gradient(Tape& tape, const Tensor& grad) override {
    const Tensor& x = saved(x_);
    const Tensor dx = Tensor::empty(tape.rank(), x.shape(), DType::f64);
    for (int64_t i = 0; i < x.elements(); ++i) dx.data<double>()[i] = grad.data<double>()[i] * std::cos(x.data<double>()[i]);
    tape.add_gradient(input(0), dx);
  }

 private:
  int x_;
};

/// x [...] f64, contiguous.
Value sine(Tape& tape, const Value& x) {
  const Tensor y = Tensor::empty(tape.rank(), x.tensor.shape(), DType::f64);
  for (int64_t i = 0; i < y.elements(); ++i) y.data<double>()[i] = std::sin(x.tensor.data<double>()[i]);
  if (!tape.must_record({&x, 1}, false)) return tape.constant(y);
  return tape.record(std::make_unique<Sine>(x.tensor), {&x, 1}, y);
}

int main() {
  Rank rank;
  std::vector<double> x{0.3, -1.2, 2.5, 0.0, 0.7, -0.4};
  const std::vector<double> ones(x.size(), 1.0);
  const Shape shape{2, 3};
  // sin(sin(x)): what the tape makes of two nodes.
  const auto forward = [&](Tape& tape, const Value& leaf) { return sine(tape, sine(tape, leaf)); };
  Tape tape(rank);
  const Value leaf = tape.leaf(Tensor::from<double>(rank, shape, x));
  const Value y = forward(tape, leaf);
  const Tensor ones_tensor = Tensor::from<double>(rank, shape, ones);
  tape.backward({&y, 1}, {&ones_tensor, 1});
  const std::vector<double> gradient = tape.take_gradient(leaf).to_vector<double>();

  // The same by central differences.
  double worst = 0;
  const auto value = [&](size_t i) {
    Tape plain(rank, false);
    return forward(plain, plain.constant(Tensor::from<double>(rank, shape, x))).tensor.to_vector<double>()[i];
  };
  for (size_t i = 0; i < x.size(); ++i) {
    const double kept = x[i], h = 1e-6;
    x[i] = kept + h;
    const double above = value(i);
    x[i] = kept - h;
    const double below = value(i);
    x[i] = kept;
    worst = std::max(worst, std::abs((above - below) / (2 * h) - gradient[i]));
  }
  std::printf("largest difference between gradient and finite differences: %.1e\n", worst);
  return worst < 1e-8 ? 0 : 1;
}
