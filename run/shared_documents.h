// Documents that context ranks can not but share: checks of what travels between ranks need some.
#pragma once
#include <optional>
#include <span>

#include "parallel/context_planner.h"
#include "run/probes.h"

namespace quire {

/// Whether a rank receives keys of another one by this plan, or tokens by `heads`.
bool keys_travel(const ContextPlan& plan);

/// Documents of `before` and then, up to `tokens` in all, of `longest` tokens or a little less: so long that keys travel between ranks by the planner's plan, where any
/// such length makes them.
Documents shared_documents(ContextPlanner& planner, std::span<const int64_t> before, int64_t tokens, int64_t longest);

/// `from`'s tokens in two or more such documents; nothing where there is none in which keys travel.
std::optional<ProbeRow> shared_probe_row(const ModelConfig& model, ContextPlanner& planner, const ProbeInput& from);

}  // namespace quire
