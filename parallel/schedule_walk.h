// Carrying a schedule out: every rank does its actions in order, each as soon as its input from another stage is there.
#pragma once
#include <vector>

#include "parallel/schedule_index.h"

namespace quire {

/// Calls `done(action)` for every action that can be done, after the one whose result it takes and those before it on its rank; takes time in
/// proportion to their number. Returns for each rank how many that were: all of them, or the place of the one that waits forever.
template <class F>
std::vector<size_t> walk_schedule(const PipelineSchedule& schedule, const ScheduleIndex& index, F&& done) {
  const size_t ranks = schedule.actions.size(), none = index.messages();
  std::vector<bool> is_there(index.messages(), false);  // inputs, by ScheduleIndex::message
  std::vector<size_t> next(ranks, 0), waits_for(ranks, none), ready(ranks);
  for (size_t i = 0; i < ranks; ++i) ready[i] = ranks - 1 - i;
  while (!ready.empty()) {
    const size_t rank = ready.back();
    ready.pop_back();
    const std::vector<Action>& actions = schedule.actions[rank];
    for (; next[rank] < actions.size(); ++next[rank]) {
      const Action& action = actions[next[rank]];
      if (index.takes_input(action) && !is_there[index.message(action)]) {
        waits_for[rank] = index.message(action);
        break;
      }
      done(action);
      const std::optional<Action> consumer = index.consumer_of(action);
      if (!consumer) continue;
      const size_t message = index.message(*consumer), taker = static_cast<size_t>(index.rank_of(*consumer));
      is_there[message] = true;
      if (waits_for[taker] != message || taker == rank) continue;
      waits_for[taker] = none;
      ready.push_back(taker);
    }
  }
  return next;
}

}  // namespace quire
