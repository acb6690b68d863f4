// What a schedule comes to, without running it: time, bubble and memory from costs of its actions.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "parallel/schedule.h"
#include "parallel/timeline.h"

namespace quire {

/// What each action of a schedule costs. Packed microbatches differ: attention follows the documents.
struct ScheduleCosts {
  int64_t stages = 0, microbatches = 0;
  /// [stages * microbatches], by ActionKind: seconds of forward, backward, backward_input, backward_weight.
  std::vector<std::array<double, 4>> seconds;
  /// [stages * microbatches] bytes that a forward leaves until its B or I is done, and an I until its W is done.
  std::vector<int64_t> forward_bytes, input_bytes;
  std::vector<int64_t> message_bytes;  ///< [microbatches] of activations, and of their gradients; only between ranks
  double latency = 0;                  ///< seconds of a message of no bytes
  double bytes_per_second = 0;         ///< of a link between two ranks; 0: as many as you like

  /// Every action of one kind alike: F, B = I + W, in any unit of time; 1 byte from a forward to its B or I and `input_bytes` from an I to its W; free
  /// messages.
  static ScheduleCosts equal(int64_t stages, int64_t microbatches, double forward = 1, double input = 1, double weight = 1, int64_t input_bytes = 1);
  double of(const Action& action) const {
    return seconds[static_cast<size_t>(action.stage * microbatches + action.microbatch)][static_cast<size_t>(action.kind)];
  }
};

struct Simulation {
  Timeline timeline;
  std::vector<int64_t> peak_bytes;  ///< [ranks] most bytes that are kept at once
  double makespan = 0, bubble = 0;
};

/// Every rank does its actions in order, each as soon as the rank is free and its input is there; a message starts when its content is computed, and
/// messages of one pair of ranks and direction follow each other. A forward's bytes count from its begin; how they change at the end of a backward is
/// as `ScheduleCosts` says. `with_timeline` false leaves the timeline empty: large schedules then take less time and much less memory. Throws
/// ScheduleError for a schedule that `check_schedule` refuses, and for costs of other sizes, negative or not finite.
Simulation simulate(const PipelineSchedule& schedule, const ScheduleCosts& costs, bool with_timeline = true);

/// A bound from below for any order of the actions of `schedule` on the ranks that hold its stages: the longest chain of actions of a microbatch that
/// wait for each other, and each rank's work with what must come before its first action and after its last one. Seconds. Throws as `simulate` does.
double critical_path(const PipelineSchedule& schedule, const ScheduleCosts& costs);

}  // namespace quire
