// Kernels against literal loops: the cases of tests/ops at sizes of a device, on a bare machine.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/rank.h"

namespace quire::gpu_report {

/// What does not hold is kept in boostless::checks().
struct CheckCase {
  std::string name;
  std::function<void(Rank&)> run;
};

std::vector<CheckCase> attention_checks(bool tiny);
std::vector<CheckCase> product_checks(Rank& rank, bool tiny);
std::vector<CheckCase> row_checks(bool tiny);

}  // namespace quire::gpu_report
