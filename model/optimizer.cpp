#include "model/optimizer.h"

#include <bit>
#include <cmath>

#include "ops/kernels.h"
#include "runtime/dispatch.h"

namespace quire {

namespace {

constexpr int64_t scalar_words = sizeof(OptimizerScalars) / sizeof(double);
static_assert(scalar_words * sizeof(double) == sizeof(OptimizerScalars) && offsetof(OptimizerScalars, skip) == (scalar_words - 1) * sizeof(double));

}  // namespace

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
  const int64_t declared = parameters.declared();
  outcome_ = Tensor::zeros(rank, {declared + 1 + scalar_words}, DType::f64, Category::optimizer);
  squares_ = outcome_.slice(0, 0, declared);
  norm_ = outcome_.slice(0, declared, declared + 1);
  scalars_ = outcome_.slice(0, declared + 1, declared + 1 + scalar_words);
  adam_step_ = Tensor::zeros(rank, {1}, DType::i64, Category::optimizer);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    const bool separate = !p.value.shares_storage(p.master);
    tensors_.push_back({p.value.elements(), p.decay ? options_.weight_decay : 0.0, p.gradients.at(0).raw(), p.master.raw(), moments1_[i].raw(), moments2_[i].raw(),
                        separate ? p.value.raw() : nullptr});
  }
  for (const Parameter& p : parameters)
    if (p.counted) counted_.push_back({p.gradients.at(0).elements(), p.gradients[0].raw(), squares_.data<double>() + p.index});
}

AdamW::~AdamW() = default;

Tensor AdamW::measure(Rank& rank) {
  fill_zero(rank, squares_);
  dispatch(rank, SquaresArgs{accumulator_of(parameters_.dtype()), counted_});
  return squares_;
}

void AdamW::apply(Rank& rank, const Tensor& loss, double learning_rate, const Tensor& refusals) {
  auto* scalars = static_cast<OptimizerScalars*>(scalars_.raw());
  dispatch(rank, OptimizerScalarsArgs{parameters_.declared(), squares_.data<double>(), loss.data<double>(), learning_rate, options_.clip_norm, options_.beta1,
                                      options_.beta2, adam_step_.data<int64_t>(), norm_.data<double>(), scalars, refusals.defined() ? refusals.elements() : 0,
                                      refusals.defined() ? refusals.data<double>() : nullptr});
  dispatch(rank, AdamWArgs{parameters_.dtype(), options_.beta1, options_.beta2, options_.eps, scalars, tensors_});
}

StepOutcome AdamW::outcome_of(const std::vector<double>& values) const {
  const auto declared = static_cast<size_t>(parameters_.declared());
  StepOutcome outcome{values.at(declared), std::bit_cast<int64_t>(values.back()) != 0, {}};
  for (size_t i = 0; i < declared; ++i)
    if (!std::isfinite(values[i])) outcome.non_finite.push_back(parameters_.declared_name(static_cast<int64_t>(i)));
  return outcome;
}

int64_t AdamW::adam_step() const { return adam_step_.to_vector<int64_t>().at(0); }
void AdamW::set_adam_step(int64_t step) { adam_step_.from_host(0, std::as_bytes(std::span(&step, 1))); }

}  // namespace quire
