#include "run/ring_step_leak.h"

#include <algorithm>
#include <set>

namespace quire {

std::optional<ProbeLeak> ring_step_leak(const ModelConfig& model, const Documents& documents, const ContextPlan& plan) {
  std::vector<size_t> holder(static_cast<size_t>(documents.tokens()));
  for (size_t rank = 0; rank < plan.shards.size(); ++rank)
    for (const TokenRange& range : plan.shards[rank]) std::fill(holder.begin() + range.begin, holder.begin() + range.end, rank);
  // The last token before `end` that `rank` does not hold; -1 for none.
  std::vector<std::vector<int32_t>> foreign(plan.shards.size(), std::vector<int32_t>{-1});
  for (size_t rank = 0; rank < foreign.size(); ++rank)
    for (size_t token = 0; token < holder.size(); ++token) foreign[rank].push_back(holder[token] == rank ? foreign[rank][token] : static_cast<int32_t>(token));
  const std::set<int64_t> windows = model.sliding_window.empty() ? std::set<int64_t>{0} : std::set<int64_t>(model.sliding_window.begin(), model.sliding_window.end());
  const std::vector<DocumentRun> runs = documents.runs();
  for (size_t document = 1; document < runs.size(); ++document)
    for (int64_t token = runs[document].local; token < int64_t{runs[document].local} + runs[document].length; ++token) {
      const int64_t place = foreign[holder[static_cast<size_t>(token)]][static_cast<size_t>(runs[document].local)];
      const auto reads = [&](int64_t window) { return place >= 0 && (window == 0 || place > token - window); };
      if (std::any_of(windows.begin(), windows.end(), reads)) return ProbeLeak{place, static_cast<int64_t>(document)};
    }
  return std::nullopt;
}

}  // namespace quire
