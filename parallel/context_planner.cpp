#include "parallel/context_planner.h"

#include <algorithm>

namespace quire {

ContextPlanner::ContextPlanner(int64_t ranks, ContextOptions options, size_t remembered)
    : ranks_(ranks), options_(std::move(options)), remembered_(std::max<size_t>(1, remembered)) {}

std::shared_ptr<const ContextPlan> ContextPlanner::plan(const Documents& whole) {
  const uint64_t digest = whole.digest();
  const auto find = [&]() -> std::shared_ptr<const ContextPlan> {
    const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& each) { return each.documents == digest; });
    if (entry == entries_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, entry);
    return entry->plan;
  };
  {
    const std::lock_guard lock(mutex_);
    if (auto known = find()) return known;
  }
  // Outside of the lock: whoever waits for another microbatch's plan is not held up. Two threads may make the same plan; the first one is kept.
  std::vector<int64_t> lengths;
  for (const DocumentRun& run : whole.runs()) lengths.push_back(run.length);
  auto made = std::make_shared<const ContextPlan>(make_context_plan(lengths, ranks_, options_.layout, options_.exchange, options_.costs));
  const std::lock_guard lock(mutex_);
  if (auto known = find()) return known;
  entries_.push_front({digest, made});
  if (entries_.size() > remembered_) entries_.pop_back();
  return made;
}

}  // namespace quire
