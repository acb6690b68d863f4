#include <algorithm>

#include "parallel/schedule_index.h"
#include "runtime/error.h"

namespace quire {
namespace {

constexpr std::string_view where = "pipeline schedule";

/// Every stage does every microbatch, each of its passes after those of the same stage that it builds on.
void check_stages(const PipelineSchedule& schedule, const ScheduleIndex& index) {
  const bool trains = std::any_of(schedule.actions.begin(), schedule.actions.end(), [](const std::vector<Action>& actions) {
    return std::any_of(actions.begin(), actions.end(), [](const Action& action) { return action.kind != ActionKind::forward; });
  });
  for (int64_t stage = 0; stage < schedule.stages; ++stage)
    for (int64_t microbatch = 0; microbatch < schedule.microbatches; ++microbatch) {
      const StagePasses& passes = index.at(stage, microbatch);
      const Action forward{ActionKind::forward, stage, microbatch}, weight{ActionKind::backward_weight, stage, microbatch};
      const Action backward{passes.split ? ActionKind::backward_input : ActionKind::backward, stage, microbatch};
      const int64_t rank = index.rank_of(forward);
      const auto missing = [&](const Action& action) {
        fail<ScheduleError>(where, "{}, rank {}: {} is missing", schedule.name, rank, to_string(action));
      };
      const auto too_early = [&](const Action& action, const Action& after) {
        fail<ScheduleError>(where, "{}, rank {}: {} comes before {}, on which it builds", schedule.name, rank, to_string(action),
                            to_string(after));
      };
      if (passes.forward == -1) missing(forward);
      if (!trains) continue;
      if (passes.backward == -1) missing(backward);
      if (passes.backward < passes.forward) too_early(backward, forward);
      if (passes.split && passes.weight == -1) missing(weight);
      if (!passes.split && passes.weight != -1)
        fail<ScheduleError>(where, "{}, rank {}: {} does again what is part of {}", schedule.name, rank, to_string(weight), to_string(backward));
      if (passes.split && passes.weight < passes.backward) too_early(weight, backward);
    }
}

/// Carries the order out: an action runs once its input from another stage is there.
void check_progress(const PipelineSchedule& schedule, const ScheduleIndex& index) {
  std::vector<size_t> next(static_cast<size_t>(schedule.ranks), 0);
  const auto waits_for = [&](const Action& action) -> std::optional<Action> {
    const std::optional<Action> input = index.input_of(action);
    if (!input) return std::nullopt;
    const StagePasses& passes = index.at(input->stage, input->microbatch);
    const int64_t position = input->kind == ActionKind::forward ? passes.forward : passes.backward;
    return position < static_cast<int64_t>(next[static_cast<size_t>(index.rank_of(*input))]) ? std::nullopt : input;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < next.size(); ++rank) {
      const std::vector<Action>& actions = schedule.actions[rank];
      for (; next[rank] < actions.size() && !waits_for(actions[next[rank]]); ++next[rank]) moved = true;
    }
  }
  std::string stuck;
  for (size_t rank = 0; rank < next.size(); ++rank) {
    if (next[rank] == schedule.actions[rank].size()) continue;
    const Action& action = schedule.actions[rank][next[rank]];
    const Action input = *waits_for(action);
    stuck += fmt::format("{}rank {} with {} for {} of rank {}", stuck.empty() ? "" : ", ", rank, to_string(action), to_string(input),
                         index.rank_of(input));
  }
  if (!stuck.empty()) fail<ScheduleError>(where, "{}: the order can not be carried out, ranks wait forever: {}", schedule.name, stuck);
}

}  // namespace

void check_schedule(const PipelineSchedule& schedule) {
  const ScheduleIndex index(schedule);
  check_stages(schedule, index);
  check_progress(schedule, index);
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
