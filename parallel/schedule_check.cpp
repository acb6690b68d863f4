#include <algorithm>

#include "parallel/schedule_walk.h"

namespace quire {

void check_passes(const PipelineSchedule& schedule, const ScheduleIndex& index) {
  const bool trains = std::any_of(schedule.actions.begin(), schedule.actions.end(), [](const std::vector<Action>& actions) {
    return std::any_of(actions.begin(), actions.end(), [](const Action& action) { return action.kind != ActionKind::forward; });
  });
  for (int64_t stage = 0; stage < schedule.stages; ++stage)
    for (int64_t microbatch = 0; microbatch < schedule.microbatches; ++microbatch) {
      const StagePasses& passes = index.at(stage, microbatch);
      const Action forward{ActionKind::forward, stage, microbatch}, weight{ActionKind::backward_weight, stage, microbatch};
      const Action backward{passes.split ? ActionKind::backward_input : ActionKind::backward, stage, microbatch};
      const auto refuse = [&](const std::string& reason) { throw RankScheduleError(schedule, index.rank_of(forward), reason); };
      const auto missing = [&](const Action& action) { refuse(to_string(action) + " is missing"); };
      const auto too_early = [&](const Action& action, const Action& after) {
        refuse(fmt::format("{} comes before {}, on which it builds", to_string(action), to_string(after)));
      };
      if (passes.forward == -1) missing(forward);
      if (!trains) continue;
      if (passes.backward == -1) missing(passes.weight == -1 ? backward : Action{ActionKind::backward_input, stage, microbatch});
      if (passes.backward < passes.forward) too_early(backward, forward);
      if (passes.split && passes.weight == -1) missing(weight);
      if (!passes.split && passes.weight != -1)
        refuse(fmt::format("{} does again what is part of {}", to_string(weight), to_string(backward)));
      if (passes.split && passes.weight < passes.backward) too_early(weight, backward);
    }
}

void check_progress(const PipelineSchedule& schedule, const ScheduleIndex& index, const std::vector<size_t>& done) {
  const auto is_stuck = [&](size_t rank) { return done[rank] < schedule.actions[rank].size(); };
  size_t rank = 0;
  while (rank < done.size() && !is_stuck(rank)) ++rank;
  if (rank == done.size()) return;
  // A rank that waits forever waits for one that does, too, so following them ends in a circle. That circle is what is wrong.
  std::vector<size_t> way;
  for (std::vector<bool> seen(done.size(), false); !seen[rank];) {
    seen[rank] = true;
    way.push_back(rank);
    rank = static_cast<size_t>(index.rank_of(*index.input_of(schedule.actions[rank][done[rank]])));
  }
  way.erase(way.begin(), std::find(way.begin(), way.end(), rank));
  constexpr size_t shown = 8;
  std::string circle;
  for (size_t i = 0; i < std::min(way.size(), shown); ++i) {
    const Action& action = schedule.actions[way[i]][done[way[i]]];
    const Action input = *index.input_of(action);
    circle += fmt::format("{}rank {} with {} for {} of rank {}", i == 0 ? "" : ", ", way[i], to_string(action), to_string(input), index.rank_of(input));
  }
  if (way.size() > shown) circle += fmt::format(", and {} more", way.size() - shown);
  throw RankScheduleError(schedule, static_cast<int64_t>(way.front()), "the order can not be carried out, ranks wait forever: " + circle);
}

void check_schedule(const PipelineSchedule& schedule) {
  const ScheduleIndex index(schedule);
  check_passes(schedule, index);
  check_progress(schedule, index, walk_schedule(schedule, index, [](const Action&) {}));
}

std::vector<int64_t> most_kept(const PipelineSchedule& schedule) {
  std::vector<int64_t> most;
  for (const std::vector<Action>& actions : schedule.actions) {
    int64_t now = 0, peak = 0;
    for (const Action& action : actions) {
      if (action.kind == ActionKind::forward) peak = std::max(peak, ++now);
      if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight) --now;
    }
    most.push_back(peak);
  }
  return most;
}

void check_kept(const PipelineSchedule& schedule, int64_t most) {
  for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    int64_t now = 0;
    for (const Action& action : schedule.actions[rank]) {
      if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight) --now;
      if (action.kind != ActionKind::forward || ++now <= most) continue;
      throw RankScheduleError(schedule, static_cast<int64_t>(rank), fmt::format("with {} it keeps {} microbatches at once (from a forward until its B or W), allowed: {}",
                                                                               to_string(action), now, most));
    }
  }
}

bool keeps_gradient_order(const PipelineSchedule& schedule) {
  // Matrices get their gradients from B and W, norms and the embedding from B and I.
  std::vector<int64_t> matrices(static_cast<size_t>(schedule.stages), -1), others = matrices;
  for (const std::vector<Action>& actions : schedule.actions)
    for (const Action& action : actions) {
      if (action.kind == ActionKind::forward) continue;
      for (auto* last : {&matrices, &others}) {
        if (action.kind == (last == &matrices ? ActionKind::backward_input : ActionKind::backward_weight)) continue;
        int64_t& before = (*last)[static_cast<size_t>(action.stage)];
        if (action.microbatch <= before) return false;
        before = action.microbatch;
      }
    }
  return true;
}

}  // namespace quire
