#include "parallel/context_planner.h"

#include <algorithm>
#include <optional>

namespace quire {

ContextPlanner::ContextPlanner(int64_t ranks, ContextOptions options, size_t remembered)
    : ranks_(ranks), options_(std::move(options)), remembered_(std::max<size_t>(1, remembered)) {}

ContextPlanner::Entry ContextPlanner::entry(const Documents& whole) {
  const uint64_t digest = whole.digest();
  const auto find = [&]() -> std::optional<Entry> {
    const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& each) { return each.documents == digest; });
    if (entry == entries_.end()) return std::nullopt;
    entries_.splice(entries_.begin(), entries_, entry);
    return *entry;
  };
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = find()) return *known;
  }
  // Outside of the lock: whoever waits for another microbatch's plan is not held up. Two threads may make the same plan; the first one is kept.
  std::vector<int64_t> lengths;
  for (const DocumentRun& run : whole.runs()) lengths.push_back(run.length);
  auto made = std::make_shared<const ContextPlan>(make_context_plan(lengths, ranks_, options_.layout, options_.exchange, options_.costs));
  auto load = std::make_shared<const ContextLoad>(load_of(*made, whole, options_.costs));
  const std::lock_guard lock(mutex_);
  if (const auto known = find()) return *known;
  entries_.push_front({digest, std::move(made), std::move(load)});
  if (entries_.size() > remembered_) entries_.pop_back();
  return entries_.front();
}

}  // namespace quire
