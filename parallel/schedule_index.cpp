#include "parallel/schedule_index.h"

#include "runtime/error.h"

namespace quire {
namespace {

constexpr std::string_view where = "pipeline schedule";

}  // namespace

ScheduleIndex::ScheduleIndex(const PipelineSchedule& schedule) : schedule_(schedule) {
  if (schedule.ranks < 1 || schedule.stages < 1 || schedule.microbatches < 0)
    fail<ScheduleError>(where, "{}: {} ranks, {} stages and {} microbatches; at least 1, 1 and 0 are needed", schedule.name,
                        schedule.ranks, schedule.stages, schedule.microbatches);
  if (schedule.rank_of_stage.size() != static_cast<size_t>(schedule.stages) || schedule.actions.size() != static_cast<size_t>(schedule.ranks))
    fail<ScheduleError>(where, "{}: ranks for {} stages and actions for {} ranks, but there are {} stages and {} ranks", schedule.name,
                        schedule.rank_of_stage.size(), schedule.actions.size(), schedule.stages, schedule.ranks);
  for (int64_t stage = 0; stage < schedule.stages; ++stage) {
    const int64_t rank = schedule.rank_of_stage[static_cast<size_t>(stage)];
    if (rank < 0 || rank >= schedule.ranks)
      fail<ScheduleError>(where, "{}: stage {} is on rank {}, ranks are 0 to {}", schedule.name, stage, rank, schedule.ranks - 1);
  }
  passes_.resize(static_cast<size_t>(schedule.stages * schedule.microbatches));
  for (int64_t rank = 0; rank < schedule.ranks; ++rank) {
    const std::vector<Action>& actions = schedule.actions[static_cast<size_t>(rank)];
    for (size_t i = 0; i < actions.size(); ++i) add(rank, static_cast<int64_t>(i), actions[i]);
  }
}

void ScheduleIndex::add(int64_t rank, int64_t position, const Action& action) {
  const auto refuse = [&](auto format, auto... args) {
    throw RankScheduleError(schedule_, rank, fmt::vformat(format, fmt::make_format_args(args...)));
  };
  if (action.stage < 0 || action.stage >= schedule_.stages || action.microbatch < 0 || action.microbatch >= schedule_.microbatches)
    refuse("{} lies outside {} stages and {} microbatches (both count from 0)", to_string(action), schedule_.stages, schedule_.microbatches);
  if (rank_of(action) != rank)
    refuse("{} belongs to rank {}, which holds stage {}", to_string(action), rank_of(action), action.stage);
  StagePasses& passes = passes_[slot(action.stage, action.microbatch)];
  int64_t& place = action.kind == ActionKind::forward           ? passes.forward
                   : action.kind == ActionKind::backward_weight ? passes.weight
                                                                : passes.backward;
  if (place != -1) {
    const Action& first = schedule_.actions[static_cast<size_t>(rank)][static_cast<size_t>(place)];
    refuse("action {} ({}) does again what action {} ({}) did", position + 1, to_string(action), place + 1, to_string(first));
  }
  place = position;
  if (action.kind == ActionKind::backward_input) passes.split = true;
}

bool ScheduleIndex::has(const Action& action) const {
  if (action.stage < 0 || action.stage >= schedule_.stages || action.microbatch < 0 || action.microbatch >= schedule_.microbatches) return false;
  const StagePasses& passes = at(action.stage, action.microbatch);
  switch (action.kind) {
    case ActionKind::forward: return passes.forward != -1;
    case ActionKind::backward: return passes.backward != -1 && !passes.split;
    case ActionKind::backward_input: return passes.backward != -1 && passes.split;
    case ActionKind::backward_weight: return passes.weight != -1;
  }
  return false;
}

Action ScheduleIndex::pass(bool forward, int64_t stage, int64_t microbatch) const {
  if (forward) return {ActionKind::forward, stage, microbatch};
  return {at(stage, microbatch).split ? ActionKind::backward_input : ActionKind::backward, stage, microbatch};
}

std::optional<Action> ScheduleIndex::input_of(const Action& action) const {
  if (action.kind == ActionKind::backward_weight) return std::nullopt;
  const bool forward = action.kind == ActionKind::forward;
  const int64_t stage = forward ? action.stage - 1 : action.stage + 1;
  if (stage < 0 || stage >= schedule_.stages) return std::nullopt;
  return pass(forward, stage, action.microbatch);
}

std::optional<Action> ScheduleIndex::consumer_of(const Action& action) const {
  if (action.kind == ActionKind::backward_weight) return std::nullopt;
  const bool forward = action.kind == ActionKind::forward;
  const int64_t stage = forward ? action.stage + 1 : action.stage - 1;
  if (stage < 0 || stage >= schedule_.stages) return std::nullopt;
  return pass(forward, stage, action.microbatch);
}

int64_t ScheduleIndex::sender_to(const Action& action) const {
  const std::optional<Action> input = input_of(action);
  return input && rank_of(*input) != rank_of(action) ? rank_of(*input) : -1;
}

}  // namespace quire
