// One training step in the config's layout against one process: loss and every gradient.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "run/selfcheck.h"

namespace quire {

class ModelSource;

/// Trains the first step (of fewer microbatches where there are many, and single documents cut in two) of a resolved config in one process and in its layout, whose ranks are threads here.
/// `weights`: nullptr for the initial ones. Pipelines must give the same bits, replicas the same numbers but for the order of additions. With
/// `broken` ("" for nothing; else a name of `pipeline_breaks`) in force.
CheckResult parity_check(const Config& config, std::shared_ptr<const Corpus> corpus, ModelSource* weights, const std::string& broken = {});

/// Whether a break (a name of `pipeline_breaks`, or `unpacked`: what `unpacked_control` does) changes a boundary in that step; where it does not, there is
/// nothing to be seen and no control.
bool parity_sees(const Config& config, const std::shared_ptr<const Corpus>& corpus, const std::string& broken);

/// The same with each row taken for one document, in one process: what a packed run must differ from. A control: passes when it differs by far more than the
/// parity's tolerance.
CheckResult unpacked_control(const Config& config, std::shared_ptr<const Corpus> corpus, ModelSource* weights);

}  // namespace quire
