#include "run/shared_documents.h"

#include <algorithm>
#include <numeric>

namespace quire {

bool keys_travel(const ContextPlan& plan) {
  if (plan.exchange == ContextExchange::heads) return plan.ranks > 1 && plan.tokens > 0;
  return std::any_of(plan.exchanges.begin(), plan.exchanges.end(), [](const KeyExchange& exchange) { return !exchange.steps.empty(); });
}

Documents shared_documents(ContextPlanner& planner, std::span<const int64_t> before, int64_t tokens, int64_t longest) {
  Documents result;
  for (const int64_t percent : {100, 90, 75, 60, 35}) {
    std::vector<int64_t> lengths(before.begin(), before.end());
    const int64_t most = std::max<int64_t>(longest * percent / 100, 1);
    for (int64_t left = tokens - std::accumulate(before.begin(), before.end(), int64_t{0}); left > 0; left -= lengths.back()) lengths.push_back(std::min(left, most));
    result = Documents::from_lengths(lengths);
    if (keys_travel(*planner.plan(result))) break;
  }
  return result;
}

std::optional<ProbeRow> shared_probe_row(const ModelConfig& model, ContextPlanner& planner, const ProbeInput& from) {
  const auto tokens = static_cast<int64_t>(from.tokens.size());
  if (tokens < 2) return std::nullopt;
  ProbeInput input{from.tokens, from.targets, shared_documents(planner, {}, tokens, std::min(model.max_seq_len, (2 * tokens + 2) / 3))};
  if (!keys_travel(*planner.plan(input.documents)) || input.documents.runs().size() < 2) return std::nullopt;
  for (const DocumentRun& run : input.documents.runs())
    for (int32_t i = run.local; i < run.local + run.length; ++i)
      input.targets[static_cast<size_t>(i)] = i + 1 < run.local + run.length ? input.tokens[static_cast<size_t>(i + 1)] : ignored_target;
  return ProbeRow{"shared documents", std::move(input)};
}

}  // namespace quire
