// Plans of the microbatches that are in flight or read ahead, each made once.
#pragma once
#include <list>
#include <memory>
#include <mutex>

#include "parallel/context_plan.h"

namespace quire {

struct ContextOptions {
  ContextLayout layout = ContextLayout::balanced;
  ContextExchange exchange = ContextExchange::ring;
  ContextCosts costs;
};

/// Any thread may use it: the loader's asks for plans a step ahead.
class ContextPlanner {
 public:
  ContextPlanner(int64_t ranks, ContextOptions options, size_t remembered = 64);
  /// `whole`: a microbatch's documents. Throws as make_context_plan.
  std::shared_ptr<const ContextPlan> plan(const Documents& whole) { return entry(whole).plan; }
  /// What that plan comes to.
  std::shared_ptr<const ContextLoad> load(const Documents& whole) { return entry(whole).load; }
  const ContextOptions& options() const { return options_; }
  int64_t ranks() const { return ranks_; }

 private:
  struct Entry {
    uint64_t documents;  ///< digest
    std::shared_ptr<const ContextPlan> plan;
    std::shared_ptr<const ContextLoad> load;
  };
  Entry entry(const Documents& whole);
  int64_t ranks_;
  ContextOptions options_;
  size_t remembered_;
  std::mutex mutex_;
  std::list<Entry> entries_;  ///< the last used first
};

}  // namespace quire
