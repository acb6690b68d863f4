#include "model/optimizer.h"

#include <cmath>

#include "ops/kernels.h"

namespace quire {

AdamW::AdamW(Rank& rank, ParameterSet& parameters, AdamWOptions options) : parameters_(parameters), options_(options) {
  const DType type = accumulator_of(parameters.dtype());
  const Tensor arena1 = Tensor::zeros(rank, {parameters.elements()}, type, Category::optimizer);
  const Tensor arena2 = Tensor::zeros(rank, {parameters.elements()}, type, Category::optimizer);
  int64_t at = 0;
  for (const Parameter& p : parameters) {
    const int64_t end = at + p.shape.elements();
    moments1_.push_back(arena1.slice(0, at, end).reshape(p.shape));
    moments2_.push_back(arena2.slice(0, at, end).reshape(p.shape));
    at = end;
  }
  squares_ = Tensor::zeros(rank, {parameters.declared()}, DType::f64, Category::optimizer);
  norm_ = Tensor::zeros(rank, {1}, DType::f64, Category::optimizer);
  scalars_ = Tensor::zeros(rank, {static_cast<int64_t>(sizeof(OptimizerScalars) / sizeof(double))}, DType::f64, Category::optimizer);
  adam_step_ = Tensor::zeros(rank, {1}, DType::i64, Category::optimizer);
}

Tensor AdamW::measure(Rank& rank) {
  fill_zero(rank, squares_);
  std::vector<SquaresTensor> tensors;
  for (const Parameter& p : parameters_)
    if (p.counted) tensors.push_back({p.gradients.at(0).elements(), p.gradients[0].raw(), squares_.data<double>() + p.index});
  dispatch(rank, SquaresArgs{accumulator_of(parameters_.dtype()), tensors});
  return squares_;
}

void AdamW::apply(Rank& rank, const Tensor& loss, double learning_rate) {
  auto* scalars = static_cast<OptimizerScalars*>(scalars_.raw());
  dispatch(rank, OptimizerScalarsArgs{parameters_.declared(), squares_.data<double>(), loss.data<double>(), learning_rate, options_.clip_norm, options_.beta1,
                                      options_.beta2, adam_step_.data<int64_t>(), norm_.data<double>(), scalars});
  std::vector<AdamWTensor> tensors;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    const bool separate = !p.value.shares_storage(p.master);
    tensors.push_back({p.value.elements(), p.decay ? options_.weight_decay : 0.0, p.gradients[0].raw(), p.master.raw(), moments1_[i].raw(), moments2_[i].raw(),
                       separate ? p.value.raw() : nullptr});
  }
  dispatch(rank, AdamWArgs{parameters_.dtype(), options_.beta1, options_.beta2, options_.eps, scalars, tensors});
}

StepOutcome AdamW::outcome() const {
  return {norm_.to_vector<double>().at(0), static_cast<const OptimizerScalars*>(scalars_.raw())->skip != 0};
}

std::vector<std::string> AdamW::non_finite() const {
  std::vector<std::string> names;
  const std::vector<double> squares = squares_.to_vector<double>();
  for (size_t i = 0; i < squares.size(); ++i)
    if (!std::isfinite(squares[i])) names.push_back(parameters_.declared_name(static_cast<int64_t>(i)));
  return names;
}

int64_t AdamW::adam_step() const { return adam_step_.to_vector<int64_t>().at(0); }
void AdamW::set_adam_step(int64_t step) { adam_step_.data<int64_t>()[0] = step; }

}  // namespace quire
