#include "ops/matmul.h"

#include "ops/kernels.h"
#include "runtime/dispatch.h"

namespace quire {

void matmul(Rank& rank, const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b, const Tensor& c, bool accumulate) {
  const auto refuse = [&](std::string_view why) {
    fail<ShapeError>("matmul", "a {}{} x b {}{} into {}: {}", describe(a), transpose_a == Transpose::yes ? "^T" : "", describe(b),
                     transpose_b == Transpose::yes ? "^T" : "", describe(c), why);
  };
  if (a.shape().dims() != 2 || b.shape().dims() != 2 || c.shape().dims() != 2) refuse("all three must be matrices");
  const bool ta = transpose_a == Transpose::yes, tb = transpose_b == Transpose::yes;
  const int64_t m = a.size(ta ? 1 : 0), k = a.size(ta ? 0 : 1), n = b.size(tb ? 0 : 1), kb = b.size(tb ? 1 : 0);
  if (k != kb) refuse(fmt::format("inner sizes {} and {} differ", k, kb));
  if (c.size(0) != m || c.size(1) != n) refuse(fmt::format("the product is ({},{})", m, n));
  if (a.dtype() != b.dtype() || (c.dtype() != a.dtype() && c.dtype() != accumulator_of(a.dtype())))
    fail<DTypeError>("matmul", "a {} x b {} into {}; allowed: one dtype, or its accumulator for the result", describe(a), describe(b), describe(c));
  dispatch(rank, MatmulArgs{a.dtype(), c.dtype(), m, n, k, a.raw(), ta ? 1 : a.stride(0), ta ? a.stride(0) : 1, b.raw(), tb ? 1 : b.stride(0),
                            tb ? b.stride(0) : 1, c.raw(), c.stride(0), accumulate});
}

namespace {

class LinearNode final : public Node {
 public:
  LinearNode(const Tensor& x, Parameter& weight, int use) : weight_(weight), use_(use), x_(save(x, For::weight_gradient)) {}
  std::string_view name() const override { return "linear"; }

  void input_gradient(Tape& tape, const Tensor& grad) override {
    if (!needs(0)) return;
    if (const Tensor sum = tape.own_gradient(input(0)); sum.defined()) {  // of another product with the same input
      matmul(tape.rank(), grad, Transpose::no, weight_.value, Transpose::no, sum, true);
      return;
    }
    const Tensor dx = Tensor::empty(tape.rank(), {grad.size(0), weight_.value.size(1)}, grad.dtype());
    matmul(tape.rank(), grad, Transpose::no, weight_.value, Transpose::no, dx);
    tape.add_gradient(input(0), {dx, true});
  }
  bool has_weight_gradient() const override { return true; }
  void weight_gradient(Tape& tape, const Tensor& grad) override {
    matmul(tape.rank(), grad, Transpose::yes, saved(x_), Transpose::no, weight_.gradients.at(static_cast<size_t>(use_)), true);
    tape.parameter_done(weight_, use_);
  }

 private:
  Parameter& weight_;
  int use_, x_;
};

}  // namespace

Value linear(Tape& tape, const Value& x, Parameter& weight, int use) {
  const Tensor& w = weight.value;
  if (x.tensor.shape().dims() != 2 || w.shape().dims() != 2 || x.tensor.size(1) != w.size(1))
    fail<ShapeError>("linear", "x {} with {} {}: the inner sizes differ", describe(x.tensor), weight.name, describe(w));
  const Tensor y = Tensor::empty(tape.rank(), {x.tensor.size(0), w.size(0)}, x.tensor.dtype());
  matmul(tape.rank(), x.tensor, Transpose::no, w, Transpose::yes, y);
  if (!tape.must_record(std::span(&x, 1), true)) return tape.constant(y);
  return tape.record(std::make_unique<LinearNode>(x.tensor, weight, use), std::span(&x, 1), y);
}

}  // namespace quire
