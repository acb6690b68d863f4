// Learning-rate schedules: pure functions of the step.
#pragma once
#include <cstdint>
#include <string>

namespace quire {

/// Linear warm-up over `warmup_steps`, then `name`: `constant`; `cosine` or `linear` to min_lr_ratio over `decay_steps`; `wsd`: constant for
/// `stable_steps`, then linear to min_lr_ratio over `decay_steps` (warm-up, stable, decay: Hu et al., 2024).
struct Schedule {
  std::string name = "constant";
  double lr = 1e-3;
  int64_t warmup_steps = 0, decay_steps = 0, stable_steps = 0;
  double min_lr_ratio = 0.1;

  /// Learning rate of step `step` (the first is 1). Throws ConfigError for an unknown name.
  double at(int64_t step) const;
};

}  // namespace quire
