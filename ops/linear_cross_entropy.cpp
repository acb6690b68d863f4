#include "ops/linear_cross_entropy.h"

#include <algorithm>

#include "ops/elementwise.h"
#include "ops/kernels.h"
#include "ops/matmul.h"

namespace quire {

int64_t cross_entropy_chunk(int64_t vocabulary) { return std::clamp<int64_t>((int64_t{1} << 20) / std::max<int64_t>(vocabulary, 1), 16, 1024); }

namespace {

struct Losses { Tensor nll, lse; };  // [T] each, accumulator type

/// The rows of `x` in chunks, with each chunk's logits in the accumulator type.
template <class Body>
void for_logits(Rank& rank, const Tensor& x, const Tensor& weight, Body&& body) {
  const int64_t tokens = x.size(0), vocabulary = weight.size(0), chunk = std::min(cross_entropy_chunk(vocabulary), std::max<int64_t>(tokens, 1));
  const Tensor buffer = Tensor::empty(rank, {chunk, vocabulary}, accumulator_of(x.dtype()), Category::workspace);
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t end = std::min(begin + chunk, tokens);
    const Tensor logits = buffer.slice(0, 0, end - begin);
    matmul(rank, x.slice(0, begin, end), Transpose::no, weight, Transpose::yes, logits);
    body(begin, end, logits);
  }
}

Losses losses(Rank& rank, const Tensor& x, const Tensor& weight, const Tensor& targets, double z_weight) {
  if (x.shape().dims() != 2 || weight.shape().dims() != 2 || x.size(1) != weight.size(1) || targets.elements() != x.size(0))
    fail<ShapeError>("linear_cross_entropy", "x {} with weight {} and targets {}", describe(x), describe(weight), describe(targets));
  const DType accumulator = accumulator_of(x.dtype());
  Losses result{Tensor::empty(rank, {x.size(0)}, accumulator), Tensor::empty(rank, {x.size(0)}, accumulator)};
  for_logits(rank, x, weight, [&](int64_t begin, int64_t end, const Tensor& logits) {
    dispatch(rank, CrossEntropyForwardArgs{x.dtype(), end - begin, weight.size(0), logits.raw(), targets.data<int32_t>() + begin, z_weight,
                                           result.lse.slice(0, begin, end).raw(), result.nll.slice(0, begin, end).raw()});
  });
  return result;
}

class LinearCrossEntropyNode final : public Node {
 public:
  LinearCrossEntropyNode(const Tensor& x, const Tensor& lse, const Tensor& targets, Parameter& weight, int use, double z_weight)
      : weight_(weight), use_(use), z_weight_(z_weight), x_(save(x, For::input_gradient)), lse_(save(lse, For::input_gradient)),
        targets_(save(targets, For::input_gradient)) {}
  std::string_view name() const override { return "linear_cross_entropy"; }

  void input_gradient(Tape& tape, const Tensor& grad) override {
    Rank& rank = tape.rank();
    const Tensor &x = saved(x_), &lse = saved(lse_), &targets = saved(targets_), &weight = weight_.value;
    const Tensor dx = Tensor::empty(rank, x.shape(), x.dtype());
    const int64_t chunk = std::min(cross_entropy_chunk(weight.size(0)), std::max<int64_t>(x.size(0), 1));
    const Tensor buffer = Tensor::empty(rank, {chunk, weight.size(0)}, x.dtype(), Category::workspace);
    for_logits(rank, x, weight, [&](int64_t begin, int64_t end, const Tensor& logits) {
      const Tensor dlogits = buffer.slice(0, 0, end - begin);
      dispatch(rank, CrossEntropyBackwardArgs{x.dtype(), end - begin, weight.size(0), logits.raw(), targets.data<int32_t>() + begin, z_weight_,
                                              lse.slice(0, begin, end).raw(), grad.data<double>(), dlogits.raw()});
      matmul(rank, dlogits, Transpose::no, weight, Transpose::no, dx.slice(0, begin, end));
      matmul(rank, dlogits, Transpose::yes, x.slice(0, begin, end), Transpose::no, weight_.gradients.at(static_cast<size_t>(use_)), true);
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

}  // namespace

Value linear_cross_entropy(Tape& tape, const Value& x, Parameter& weight, int use, const Tensor& targets, double z_weight) {
  Rank& rank = tape.rank();
  const Losses all = losses(rank, x.tensor, weight.value, targets, z_weight);
  const Tensor sum = Tensor::empty(rank, {1}, DType::f64);
  reduce(rank, all.nll, 1, sum);
  if (!tape.must_record(std::span(&x, 1), true)) return tape.constant(sum);
  return tape.record(std::make_unique<LinearCrossEntropyNode>(x.tensor, all.lse, targets, weight, use, z_weight), std::span(&x, 1), sum);
}

Tensor token_losses(Rank& rank, const Tensor& x, const Tensor& weight, const Tensor& targets) { return losses(rank, x, weight, targets, 0).nll; }

}  // namespace quire
