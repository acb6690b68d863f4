#include "parallel/simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "parallel/schedule_walk.h"
#include "runtime/error.h"

namespace quire {
namespace {

constexpr std::string_view where = "pipeline simulation";

void check_costs(const PipelineSchedule& schedule, const ScheduleCosts& costs) {
  if (costs.stages != schedule.stages || costs.microbatches != schedule.microbatches)
    fail<ScheduleError>(where, "{}: costs of {} stages and {} microbatches for a schedule of {} and {}", schedule.name, costs.stages, costs.microbatches,
                        schedule.stages, schedule.microbatches);
  const size_t passes = static_cast<size_t>(costs.stages * costs.microbatches);
  if (costs.seconds.size() != passes || costs.forward_bytes.size() != passes || costs.input_bytes.size() != passes ||
      costs.message_bytes.size() != static_cast<size_t>(costs.microbatches))
    fail<ScheduleError>(where, "{}: {} seconds, {} and {} bytes and {} messages, {} of the first three and {} messages are needed", schedule.name,
                        costs.seconds.size(), costs.forward_bytes.size(), costs.input_bytes.size(), costs.message_bytes.size(), passes, costs.microbatches);
  const auto is_time = [](double seconds) { return std::isfinite(seconds) && seconds >= 0; };
  for (size_t i = 0; i < passes; ++i) {
    const size_t microbatches = costs.message_bytes.size();
    const auto at = [&] { return fmt::format("stage {}, microbatch {}", i / microbatches, i % microbatches); };
    for (const double seconds : costs.seconds[i])
      if (!is_time(seconds)) fail<ScheduleError>(where, "{}, {}: a computation of {} seconds", schedule.name, at(), seconds);
    if (costs.forward_bytes[i] < 0 || costs.input_bytes[i] < 0)
      fail<ScheduleError>(where, "{}, {}: {} and {} bytes are kept", schedule.name, at(), costs.forward_bytes[i], costs.input_bytes[i]);
  }
  for (size_t m = 0; m < costs.message_bytes.size(); ++m)
    if (costs.message_bytes[m] < 0) fail<ScheduleError>(where, "{}, microbatch {}: messages of {} bytes", schedule.name, m, costs.message_bytes[m]);
  if (!is_time(costs.latency)) fail<ScheduleError>(where, "{}: a latency of {} seconds", schedule.name, costs.latency);
  if (!is_time(costs.bytes_per_second)) fail<ScheduleError>(where, "{}: links of {} bytes per second", schedule.name, costs.bytes_per_second);
}

size_t place(const ScheduleCosts& costs, const Action& action) { return static_cast<size_t>(action.stage * costs.microbatches + action.microbatch); }

double message_seconds(const ScheduleCosts& costs, int64_t microbatch) {
  const double bytes = static_cast<double>(costs.message_bytes[static_cast<size_t>(microbatch)]);
  return costs.latency + (costs.bytes_per_second > 0 ? bytes / costs.bytes_per_second : 0);
}

/// What is known while a schedule is carried out.
class Simulator {
 public:
  Simulator(const PipelineSchedule& schedule, const ScheduleCosts& costs, const ScheduleIndex& index, bool with_timeline)
      : schedule_(schedule), costs_(costs), index_(index), with_timeline_(with_timeline), arrival_(index.messages(), 0), clock_(schedule.actions.size(), 0),
        bytes_(clock_.size(), 0), first_begin_(std::numeric_limits<double>::infinity()) {
    result_.timeline.name = schedule.name;
    result_.timeline.spans.resize(clock_.size());
    result_.peak_bytes.resize(clock_.size(), 0);
    name_links();
  }

  void add(const Action& action) {
    const size_t rank = static_cast<size_t>(index_.rank_of(action));
    const double begin = index_.takes_input(action) ? std::max(clock_[rank], arrival_[index_.message(action)]) : clock_[rank];
    const double seconds = costs_.of(action), end = begin + seconds;
    clock_[rank] = end;
    first_begin_ = std::min(first_begin_, begin);
    last_end_ = std::max(last_end_, end);
    work_ += seconds;
    keep(rank, action);
    if (with_timeline_) result_.timeline.spans[rank].push_back({action, begin, end});
    if (const std::optional<Action> consumer = index_.consumer_of(action)) hand_over(action, *consumer, end);
  }

  Simulation take() {
    result_.makespan = last_end_ > first_begin_ ? last_end_ - first_begin_ : 0;
    const double whole = result_.makespan * static_cast<double>(schedule_.ranks);
    result_.bubble = whole > 0 ? 1 - work_ / whole : 0;
    return std::move(result_);
  }

 private:
  /// A number for each pair of ranks and direction that sends: links_[2 * s] from stage s to s + 1, links_[2 * s + 1] from s to s - 1.
  void name_links() {
    std::map<std::pair<int64_t, int64_t>, size_t> numbers;
    const auto number = [&](int64_t from, int64_t to) { return numbers.try_emplace({from, to}, numbers.size()).first->second; };
    links_.resize(2 * static_cast<size_t>(schedule_.stages), 0);
    for (size_t stage = 1; stage < schedule_.rank_of_stage.size(); ++stage) {
      const int64_t before = schedule_.rank_of_stage[stage - 1], after = schedule_.rank_of_stage[stage];
      links_[2 * (stage - 1)] = number(before, after);
      links_[2 * stage + 1] = number(after, before);
    }
    link_free_.resize(numbers.size(), 0);
  }

  void keep(size_t rank, const Action& action) {
    const size_t pass = place(costs_, action);
    int64_t& now = bytes_[rank];
    if (action.kind == ActionKind::forward) now += costs_.forward_bytes[pass];
    if (action.kind == ActionKind::backward) now -= costs_.forward_bytes[pass];
    if (action.kind == ActionKind::backward_input) now += costs_.input_bytes[pass] - costs_.forward_bytes[pass];
    if (action.kind == ActionKind::backward_weight) now -= costs_.input_bytes[pass];
    result_.peak_bytes[rank] = std::max(result_.peak_bytes[rank], now);
  }

  void hand_over(const Action& action, const Action& consumer, double made) {
    double& arrival = arrival_[index_.message(consumer)];
    const int64_t from = index_.rank_of(action), to = index_.rank_of(consumer);
    if (from == to) {
      arrival = made;
      return;
    }
    double& link_free = link_free_[links_[2 * static_cast<size_t>(action.stage) + (action.kind == ActionKind::forward ? 0 : 1)]];
    const double begin = std::max(made, link_free);
    arrival = link_free = begin + message_seconds(costs_, action.microbatch);
    if (!with_timeline_) return;
    result_.timeline.transfers.push_back({consumer, from, to, costs_.message_bytes[static_cast<size_t>(action.microbatch)], begin, arrival});
  }

  const PipelineSchedule& schedule_;
  const ScheduleCosts& costs_;
  const ScheduleIndex& index_;
  bool with_timeline_;
  std::vector<double> arrival_;  ///< by ScheduleIndex::message
  std::vector<double> clock_;    ///< [ranks]
  std::vector<int64_t> bytes_;   ///< [ranks]
  std::vector<size_t> links_;
  std::vector<double> link_free_;
  double first_begin_, last_end_ = 0, work_ = 0;
  Simulation result_;
};

/// What no order of a schedule's actions can beat.
class PathBound {
 public:
  PathBound(const PipelineSchedule& schedule, const ScheduleCosts& costs)
      : schedule_(schedule), costs_(costs), index_(schedule), ranks_(schedule.actions.size()) {}

  /// A microbatch's way down the stages and back up, with its messages.
  void add(int64_t microbatch) {
    way_.clear();
    double time = 0;
    const auto pass = [&](const Action& action) {
      const size_t rank = static_cast<size_t>(index_.rank_of(action));
      if (index_.sender_to(action) != -1) time += message_seconds(costs_, microbatch);
      if (action.kind == ActionKind::forward) ranks_[rank].head = std::min(ranks_[rank].head, time);
      time += costs_.of(action);
      ranks_[rank].work += costs_.of(action);
      way_.push_back({rank, time});
    };
    for (int64_t stage = 0; stage < schedule_.stages; ++stage) pass({ActionKind::forward, stage, microbatch});
    const bool trains = index_.at(0, microbatch).backward != -1;
    if (trains) way_.clear();  // a rank's last action is then no forward
    for (int64_t stage = schedule_.stages - 1; trains && stage >= 0; --stage) {
      const bool split = index_.at(stage, microbatch).split;
      pass({split ? ActionKind::backward_input : ActionKind::backward, stage, microbatch});
      if (!split) continue;
      RankBound& rank = ranks_[way_.back().first];
      const double weight = costs_.of({ActionKind::backward_weight, stage, microbatch});
      rank.work += weight;
      rank.tail = 0;
      longest_ = std::max(longest_, time + weight);
    }
    longest_ = std::max(longest_, time);
    for (const auto& [rank, end] : way_) ranks_[rank].tail = std::min(ranks_[rank].tail, time - end);
  }

  double result() const {
    double longest = longest_;
    for (const RankBound& rank : ranks_)
      if (rank.work > 0) longest = std::max(longest, rank.head + rank.work + rank.tail);
    return longest;
  }

 private:
  struct RankBound {
    double head = std::numeric_limits<double>::infinity();  ///< least time before its first action
    double tail = head;                                      ///< least time after its last one
    double work = 0;
  };
  const PipelineSchedule& schedule_;
  const ScheduleCosts& costs_;
  ScheduleIndex index_;
  std::vector<RankBound> ranks_;
  std::vector<std::pair<size_t, double>> way_;  ///< rank and end of the passes that may be a rank's last action
  double longest_ = 0;
};

}  // namespace

ScheduleCosts ScheduleCosts::equal(int64_t stages, int64_t microbatches, double forward, double input, double weight, int64_t input_bytes) {
  ScheduleCosts costs;
  costs.stages = stages;
  costs.microbatches = microbatches;
  const size_t passes = static_cast<size_t>(stages * microbatches);
  costs.seconds.assign(passes, {forward, input + weight, input, weight});
  costs.forward_bytes.assign(passes, 1);
  costs.input_bytes.assign(passes, input_bytes);
  costs.message_bytes.assign(static_cast<size_t>(microbatches), 0);
  return costs;
}

Simulation simulate(const PipelineSchedule& schedule, const ScheduleCosts& costs, bool with_timeline) {
  const ScheduleIndex index(schedule);
  check_passes(schedule, index);
  check_costs(schedule, costs);
  Simulator simulator(schedule, costs, index, with_timeline);
  check_progress(schedule, index, walk_schedule(schedule, index, [&](const Action& action) { simulator.add(action); }));
  return simulator.take();
}

double critical_path(const PipelineSchedule& schedule, const ScheduleCosts& costs) {
  check_schedule(schedule);
  check_costs(schedule, costs);
  PathBound bound(schedule, costs);
  for (int64_t microbatch = 0; microbatch < schedule.microbatches; ++microbatch) bound.add(microbatch);
  return bound.result();
}

}  // namespace quire
