// Which tokens meet where a rank masks its own keys by documents and all received ones as one document: the break `ring_step`.
#pragma once
#include <optional>

#include "model/config.h"
#include "parallel/context_plan.h"
#include "run/probes.h"

namespace quire {

/// A token and another document that reads it then, in any layer; nothing where there is none.
std::optional<ProbeLeak> ring_step_leak(const ModelConfig& model, const Documents& documents, const ContextPlan& plan);

}  // namespace quire
