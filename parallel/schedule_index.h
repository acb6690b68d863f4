// Where each action of a schedule stands, and which actions need which.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "parallel/schedule.h"
#include "runtime/error.h"

namespace quire {

/// A ScheduleError that knows whose list is wrong, so that who read the list from a file can name the line.
class RankScheduleError : public ScheduleError {
 public:
  RankScheduleError(const PipelineSchedule& schedule, int64_t rank, const std::string& reason)
      : ScheduleError(fmt::format("[pipeline schedule] {}, rank {}: {}", schedule.name, rank, reason)), rank_(rank), reason_(reason) {}
  int64_t rank() const { return rank_; }
  const std::string& reason() const { return reason_; }  ///< without schedule and rank

 private:
  int64_t rank_;
  std::string reason_;
};

/// One microbatch on one stage: positions in the list of the stage's rank, -1 where the schedule has no such action.
struct StagePasses {
  int64_t forward = -1;
  int64_t backward = -1;  ///< B or I
  int64_t weight = -1;    ///< W
  bool split = false;     ///< the backward is an I
};

class ScheduleIndex {
 public:
  /// Throws ScheduleError for sizes that do not fit together and for actions that are out of range, on a wrong rank or there twice.
  explicit ScheduleIndex(const PipelineSchedule& schedule);

  const StagePasses& at(int64_t stage, int64_t microbatch) const { return passes_[slot(stage, microbatch)]; }
  /// Whether the schedule has exactly this action.
  bool has(const Action& action) const;
  int64_t rank_of(const Action& action) const { return schedule_.rank_of_stage[static_cast<size_t>(action.stage)]; }
  /// Whether `action` takes a result of another stage.
  bool takes_input(const Action& action) const {
    return action.kind == ActionKind::forward ? action.stage > 0 : action.kind != ActionKind::backward_weight && action.stage + 1 < schedule_.stages;
  }
  /// The action of the stage before (forward) or after (backward) whose result `action` takes.
  std::optional<Action> input_of(const Action& action) const;
  /// The action that takes the result of `action`: the other direction of `input_of`.
  std::optional<Action> consumer_of(const Action& action) const;
  /// The rank from which `action`'s input comes as a message; -1 where it needs none.
  int64_t sender_to(const Action& action) const;
  /// Number of different messages: `message` is below it.
  size_t messages() const { return 2 * passes_.size(); }
  /// A number for the message that `consumer` takes.
  size_t message(const Action& consumer) const {
    return 2 * slot(consumer.stage, consumer.microbatch) + (consumer.kind == ActionKind::forward ? 0 : 1);
  }

 private:
  size_t slot(int64_t stage, int64_t microbatch) const { return static_cast<size_t>(stage * schedule_.microbatches + microbatch); }
  Action pass(bool forward, int64_t stage, int64_t microbatch) const;
  void add(int64_t rank, int64_t position, const Action& action);

  const PipelineSchedule& schedule_;
  std::vector<StagePasses> passes_;  ///< [stages, microbatches]
};

/// The parts of `check_schedule`: every stage does every microbatch, each of its passes after those of the same stage that it builds on;
void check_passes(const PipelineSchedule& schedule, const ScheduleIndex& index);
/// and the order can be carried out: `done` [ranks] is how many actions of each rank could be.
void check_progress(const PipelineSchedule& schedule, const ScheduleIndex& index, const std::vector<size_t>& done);

}  // namespace quire
