#include "ops/linear_cross_entropy.h"

#include <algorithm>
#include <bit>

#include "ops/elementwise.h"
#include "ops/kernels.h"
#include "ops/matmul.h"
#include "runtime/dispatch.h"

namespace quire {

/// Logits of a few MiB, and with 256 rows or more the weight gradient's product reads and writes its result as seldom as any other product does.
int64_t cross_entropy_chunk(int64_t vocabulary) { return std::clamp<int64_t>((int64_t{1} << 21) / std::max<int64_t>(vocabulary, 1), 16, 1024); }

namespace {

/// One call's operands, and its work chunk by chunk: every path does the same operations in the same order.
struct Head {
  Rank& rank;
  const Tensor &x, &weight, &targets;
  double z_weight;
  Tensor nll, lse;  ///< [T] each, accumulator type

  Head(Rank& r, const Tensor& input, const Tensor& matrix, const Tensor& labels, double z) : rank(r), x(input), weight(matrix), targets(labels), z_weight(z) {
    if (x.shape().dims() != 2 || weight.shape().dims() != 2 || x.size(1) != weight.size(1) || targets.elements() != x.size(0))
      fail<ShapeError>("linear_cross_entropy", "x {} with weight {} and targets {}", describe(x), describe(weight), describe(targets));
  }

  int64_t chunk() const { return std::min(cross_entropy_chunk(weight.size(0)), std::max<int64_t>(x.size(0), 1)); }
  Tensor per_token() const { return Tensor::empty(rank, {x.size(0)}, accumulator_of(x.dtype())); }
  Tensor chunk_buffer(DType dtype) const { return Tensor::empty(rank, {chunk(), weight.size(0)}, dtype, Category::workspace); }

  /// Calls body(begin, end, logits) for the rows of `x` in chunks, with each chunk's logits in the accumulator type.
  template <class Body>
  void for_logits(Body&& body) const {
    const Tensor buffer = chunk_buffer(accumulator_of(x.dtype()));
    for (int64_t begin = 0; begin < x.size(0); begin += chunk()) {
      const int64_t end = std::min(begin + chunk(), x.size(0));
      const Tensor logits = buffer.slice(0, 0, end - begin);
      matmul(rank, x.slice(0, begin, end), Transpose::no, weight, Transpose::yes, logits);
      body(begin, end, logits);
    }
  }

  void losses_of(int64_t begin, int64_t end, const Tensor& logits) const {
    dispatch(rank, CrossEntropyForwardArgs{x.dtype(), end - begin, weight.size(0), logits.raw(), targets.data<int32_t>() + begin, z_weight,
                                           lse.slice(0, begin, end).raw(), nll.slice(0, begin, end).raw()});
  }

  /// Where gradients of a chunk's logits go: undefined where they take the place of the logits.
  Tensor gradient_buffer() const { return accumulator_of(x.dtype()) == x.dtype() ? Tensor() : chunk_buffer(x.dtype()); }

  /// From the chunk's logits, which may be overwritten: its rows of dx, and what it adds to the weight's gradient.
  void gradients_of(int64_t begin, int64_t end, const Tensor& logits, const Tensor& buffer, const Tensor& scale, const Tensor& dx, const Tensor& dweight) const {
    const Tensor dlogits = buffer.defined() ? buffer.slice(0, 0, end - begin) : logits;
    dispatch(rank, CrossEntropyBackwardArgs{x.dtype(), end - begin, weight.size(0), logits.raw(), targets.data<int32_t>() + begin, z_weight,
                                            lse.slice(0, begin, end).raw(), scale.data<double>(), dlogits.raw()});
    matmul(rank, dlogits, Transpose::no, weight, Transpose::no, dx.slice(0, begin, end));
    matmul(rank, dlogits, Transpose::yes, x.slice(0, begin, end), Transpose::no, dweight, true);
  }

  Tensor sum() const {
    const Tensor result = Tensor::empty(rank, {1}, DType::f64);
    reduce(rank, nll, 1, result);
    return result;
  }
};

/// Computes the logits again in backward.
class LinearCrossEntropyNode final : public Node {
 public:
  LinearCrossEntropyNode(const Head& head, Parameter& weight, int use)
      : weight_(weight), use_(use), z_weight_(head.z_weight), x_(save(head.x, For::input_gradient)), lse_(save(head.lse, For::input_gradient)),
        targets_(save(head.targets, For::input_gradient)) {}
  std::string_view name() const override { return "linear_cross_entropy"; }

  void input_gradient(Tape& tape, const Tensor& grad) override {
    Head head(tape.rank(), saved(x_), weight_.value, saved(targets_), z_weight_);
    head.lse = saved(lse_);
    const Tensor dx = Tensor::empty(tape.rank(), head.x.shape(), head.x.dtype()), buffer = head.gradient_buffer();
    head.for_logits([&](int64_t begin, int64_t end, const Tensor& logits) {
      head.gradients_of(begin, end, logits, buffer, grad, dx, weight_.gradients.at(static_cast<size_t>(use_)));
    });
    tape.parameter_done(weight_, use_);
    tape.add_gradient(input(0), dx);
  }

 private:
  Parameter& weight_;
  int use_;
  double z_weight_;
  int x_, lse_, targets_;
};

/// Has everything from forward; what is left is to see that forward was told the truth.
class AnnouncedCrossEntropyNode final : public Node {
 public:
  AnnouncedCrossEntropyNode(const Tensor& dx, const Tensor& announced, Parameter& weight, int use)
      : weight_(weight), use_(use), announced_(announced), value_(value_of(announced)), dx_(save(dx, For::input_gradient)) {}
  std::string_view name() const override { return "linear_cross_entropy"; }

  void input_gradient(Tape& tape, const Tensor& grad) override {
    if (const double handed = value_of(grad); std::bit_cast<uint64_t>(handed) != std::bit_cast<uint64_t>(value_))
      fail<StateError>("linear_cross_entropy", "backward is given the gradient {}, but {} was announced before forward; allowed: the announced one, or announcing none",
                       handed, value_);
    if (!grad.on_host() && grad.raw() != announced_.raw())
      fail<StateError>("linear_cross_entropy", "backward is given another tensor than the one that was announced before forward; allowed on {}: that one, or announcing none",
                       to_string(grad.device()));
    tape.parameter_done(weight_, use_);
    tape.add_gradient(input(0), saved(dx_));
  }

 private:
  /// No host read of a device's memory inside a step: there the tensor must be the same.
  static double value_of(const Tensor& scalar) { return scalar.on_host() ? scalar.data<double>()[0] : 0.0; }

  Parameter& weight_;
  int use_;
  Tensor announced_;
  double value_;
  int dx_;
};

}  // namespace

Value linear_cross_entropy(Tape& tape, const Value& x, Parameter& weight, int use, const Tensor& targets, double z_weight, const Tensor& announced) {
  Rank& rank = tape.rank();
  Head head(rank, x.tensor, weight.value, targets, z_weight);
  head.nll = head.per_token();
  head.lse = head.per_token();
  const bool record = tape.must_record(std::span(&x, 1), true);
  if (!record || !announced.defined()) {
    head.for_logits([&](int64_t begin, int64_t end, const Tensor& logits) { head.losses_of(begin, end, logits); });
    if (!record) return tape.constant(head.sum());
    return tape.record(std::make_unique<LinearCrossEntropyNode>(head, weight, use), std::span(&x, 1), head.sum());
  }
  if (!(announced.shape() == Shape{1}) || announced.dtype() != DType::f64)
    fail<ShapeError>("linear_cross_entropy", "the announced gradient is {}; allowed: (1) f64", describe(announced));
  const Tensor dx = Tensor::empty(rank, x.tensor.shape(), x.tensor.dtype()), buffer = head.gradient_buffer();
  head.for_logits([&](int64_t begin, int64_t end, const Tensor& logits) {
    head.losses_of(begin, end, logits);
    head.gradients_of(begin, end, logits, buffer, announced, dx, weight.gradients.at(static_cast<size_t>(use)));
  });
  return tape.record(std::make_unique<AnnouncedCrossEntropyNode>(dx, announced, weight, use), std::span(&x, 1), head.sum());
}

Tensor token_losses(Rank& rank, const Tensor& x, const Tensor& weight, const Tensor& targets) {
  Head head(rank, x, weight, targets, 0);
  head.nll = head.per_token();
  head.lse = head.per_token();
  head.for_logits([&](int64_t begin, int64_t end, const Tensor& logits) { head.losses_of(begin, end, logits); });
  return head.nll;
}

}  // namespace quire
