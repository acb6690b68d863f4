// One training step in the config's layout against one process: loss and every gradient.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "run/selfcheck.h"

namespace quire {

class ModelSource;

/// What a step came to.
struct StepNumbers {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;  ///< of all parameters, gathered
  std::string refused;                                   ///< what the step itself said of received boundaries
};

/// The first step of a resolved config: of fewer microbatches where there are many, with single documents cut in two; where ranks share microbatches, every second one is
/// of documents that they must share, and bf16 is replaced by f32.
class LayoutParity {
 public:
  /// Trains the step in one process. `weights`: nullptr for the initial ones; it outlives this.
  LayoutParity(const Config& config, std::shared_ptr<const Corpus> corpus, ModelSource* weights);
  /// In the config's layout, whose ranks are threads here. Pipelines must give the same bits, replicas, context ranks and a user's schedule that adds
  /// microbatches in another order the same numbers but for the order of additions. `broken`: "" for nothing; else a name of `leaking_breaks` or `training_breaks`.
  CheckResult check(const std::string& broken = {}) const;
  /// With each row taken for one document, in one process: what a packed run must differ from. A control: passes when it differs by far more than the check's tolerance.
  CheckResult unpacked_control() const;

 private:
  CheckResult begin_result(const char* name) const;
  Config given_, config_;  ///< the user's, and of this step
  std::shared_ptr<const Corpus> corpus_;
  ModelSource* weights_;
  StepNumbers one_;
};

/// Whether a break (one of those names, or `unpacked`: what `unpacked_control` does) changes anything in that step; where it does not, there is nothing to be seen
/// and no control.
bool parity_sees(const Config& config, const std::shared_ptr<const Corpus>& corpus, const std::string& broken);

}  // namespace quire
