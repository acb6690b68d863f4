// What context-parallel plans of a config's model balance.
#pragma once
#include "parallel/context_planner.h"
#include "run/config.h"

namespace quire {

/// Distinct windows of the layers, in the order in which they first stand in the model, and a token's cost outside of attention in the query-key pairs that
/// take as many floating-point operations, as `step_flops` counts both.
ContextCosts context_costs(const Config& config);

/// How a resolved config's microbatches are shared: `auto`, where nothing has been decided, means balanced and ring.
ContextOptions context_options(const Config& config);

}  // namespace quire
