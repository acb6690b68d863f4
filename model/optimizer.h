// AdamW with a global gradient norm. All scalars of a step live on the device: kernels read them, the host reads them after the step.
#pragma once
#include <optional>

#include "model/parameters.h"

namespace quire {

struct AdamWTensor;
struct SquaresTensor;

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double clip_norm = 1.0;  ///< largest global norm; 0 = no clipping
};

/// What a step did; read after it.
struct StepOutcome {
  double gradient_norm = 0;  ///< before clipping
  bool skipped = false;      ///< loss or a gradient was not finite: nothing was changed, Adam's step did not advance
  /// Names of the model's parameters whose gradients were not finite, in canonical order.
  std::vector<std::string> non_finite;
};

/// Master weights and moments are kept in the accumulator type of the parameters (f32 for bf16 models). Decay applies to matrices only.
class AdamW {
 public:
  AdamW(Rank& rank, ParameterSet& parameters, AdamWOptions options);
  ~AdamW();

  /// One update from gradients[0] of every parameter (after ParameterSet::combine_uses). loss [1] f64: a non-finite one skips the step.
  void step(Rank& rank, const Tensor& loss, double learning_rate) { measure(rank); apply(rank, loss, learning_rate); }
  /// The same in two parts, for models spread over ranks: sums of squares [declared parameters] f64 of the gradients that this rank counts, 0 for
  /// all others; they are made global in place before `apply`. `refusals` [n] f64, where given: any that is not 0 skips the step too.
  Tensor measure(Rank& rank);
  void apply(Rank& rank, const Tensor& loss, double learning_rate, const Tensor& refusals = {});
  /// Of the last step. Waits for a device's work.
  StepOutcome outcome() const { return outcome_of(outcome_.to_vector<double>()); }
  /// The same in two parts: starts to bring it to the host, and makes of what came what it says. Steps may be made between.
  Readback read_outcome(Rank& rank) const { return Readback(rank, outcome_); }
  StepOutcome outcome_of(const std::vector<double>& values) const;
  std::vector<std::string> non_finite() const { return outcome().non_finite; }

  /// Moments of parameter i, shaped like it.
  Tensor moment1(size_t i) const { return moments1_[i]; }
  Tensor moment2(size_t i) const { return moments2_[i]; }
  int64_t adam_step() const;
  void set_adam_step(int64_t step);

 private:
  ParameterSet& parameters_;
  AdamWOptions options_;
  std::vector<Tensor> moments1_, moments2_;
  std::vector<SquaresTensor> counted_;
  std::vector<AdamWTensor> tensors_;
  Tensor outcome_;    ///< f64, what the host reads of a step: the next three
  Tensor squares_;    ///< [declared parameters] f64
  Tensor norm_;       ///< [1] f64
  Tensor scalars_;    ///< one OptimizerScalars
  Tensor adam_step_;  ///< [1] i64
};

}  // namespace quire
