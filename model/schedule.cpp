#include "model/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/error.h"

namespace quire {

double Schedule::at(int64_t step) const {
  if (name != "constant" && name != "cosine" && name != "linear" && name != "wsd") {
    const std::string near = nearest(name, {"constant", "cosine", "linear", "wsd"});
    fail<ConfigError>("scheduler.name", "unknown schedule '{}'; allowed: constant, cosine, linear, wsd{}", name, near.empty() ? "" : "; nearest: " + near);
  }
  if (warmup_steps > 0 && step <= warmup_steps) return lr * static_cast<double>(step) / static_cast<double>(warmup_steps);
  const int64_t after = step - warmup_steps - (name == "wsd" ? stable_steps : 0);
  const double progress = decay_steps <= 0 ? (after > 0 ? 1.0 : 0.0) : std::clamp(static_cast<double>(after) / static_cast<double>(decay_steps), 0.0, 1.0);
  const double minimum = lr * min_lr_ratio;
  if (name == "constant") return lr;
  if (name == "cosine") return minimum + (lr - minimum) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return lr + (minimum - lr) * progress;
}

}  // namespace quire
