// Schedules for tests, and what happens when one is carried out.
#pragma once
#include <algorithm>
#include <map>
#include <random>

#include "check.h"
#include "parallel/schedule.h"

namespace quire::test {

constexpr ActionKind F = ActionKind::forward, B = ActionKind::backward, I = ActionKind::backward_input, W = ActionKind::backward_weight;

/// Whether the built-in schedule can have so many stages per rank.
inline bool has_chunks(std::string_view schedule, int64_t chunks) {
  return schedule == "interleaved_1f1b" || chunks == (schedule == "zb_v" ? 2 : 1);
}

/// Whether a schedule has input gradients by themselves.
inline bool is_split(const PipelineSchedule& schedule) {
  for (const std::vector<Action>& actions : schedule.actions)
    for (const Action& action : actions)
      if (action.kind == ActionKind::backward_input) return true;
  return false;
}

/// Calls `check(schedule)` for every built-in schedule of 1 to 6 ranks, 1 to 4 stages per rank and 0 to 13 microbatches.
template <class F>
void for_built_in_schedules(F&& check) {
  for (int64_t ranks = 1; ranks <= 6; ++ranks)
    for (int64_t chunks = 1; chunks <= 4; ++chunks)
      for (int64_t microbatches = 0; microbatches <= 13; ++microbatches)
        for (const char* name : {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v"})
          if (has_chunks(name, chunks))
            BOOST_TEST_CONTEXT(name << ", " << ranks << " ranks, " << chunks << " chunks, " << microbatches << " microbatches")
              check(make_schedule(name, ranks, chunks, microbatches), chunks);
}

/// Time at which the last rank is done when messages take none, forwards take `forward`, backwards `backward`, I and W half of it each.
inline int64_t time_of(const PipelineSchedule& schedule, int64_t forward, int64_t backward) {
  std::map<std::tuple<bool, int64_t, int64_t>, int64_t> done;
  std::vector<size_t> next(schedule.actions.size(), 0);
  std::vector<int64_t> clock(schedule.actions.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < next.size(); ++rank)
      while (next[rank] < schedule.actions[rank].size()) {
        const Action& action = schedule.actions[rank][next[rank]];
        const bool is_forward = action.kind == ActionKind::forward, is_weight = action.kind == ActionKind::backward_weight;
        const int64_t from = is_forward ? action.stage - 1 : action.stage + 1;
        int64_t start = clock[rank];
        if (!is_weight && from >= 0 && from < schedule.stages) {
          const auto input = done.find({is_forward, from, action.microbatch});
          if (input == done.end()) break;
          start = std::max(start, input->second);
        }
        clock[rank] = start + (is_forward ? forward : action.kind == ActionKind::backward ? backward : backward / 2);
        if (!is_weight) done[{is_forward, action.stage, action.microbatch}] = clock[rank];
        ++next[rank];
        moved = true;
      }
  }
  for (size_t rank = 0; rank < next.size(); ++rank) BOOST_REQUIRE_EQUAL(next[rank], schedule.actions[rank].size());
  return clock.empty() ? 0 : *std::max_element(clock.begin(), clock.end());
}

/// Most forwards on `rank` whose backward is still to come.
inline int64_t most_in_flight(const PipelineSchedule& schedule, size_t rank) {
  int64_t most = 0, now = 0;
  for (const Action& action : schedule.actions[rank]) {
    if (action.kind == ActionKind::forward) most = std::max(most, ++now);
    if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight) --now;
  }
  return most;
}

/// Stages there and back over the ranks: 0 1 2 2 1 0 0 1 ...
inline std::vector<int64_t> v_placement(int64_t ranks, int64_t stages) {
  std::vector<int64_t> rank_of_stage;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const int64_t lap = stage / ranks, place = stage % ranks;
    rank_of_stage.push_back(lap % 2 == 0 ? place : ranks - 1 - place);
  }
  return rank_of_stage;
}

/// All actions in a random order that can be carried out; about half of the backwards split.
inline PipelineSchedule random_schedule(std::mt19937_64& random, std::vector<int64_t> rank_of_stage, int64_t ranks, int64_t microbatches) {
  PipelineSchedule schedule{"random", ranks, static_cast<int64_t>(rank_of_stage.size()), microbatches, std::move(rank_of_stage), {}};
  schedule.actions.resize(static_cast<size_t>(ranks));
  // Each microbatch goes through its forwards, then its backwards; of all that could come next one is drawn.
  struct Way { int64_t done = 0; std::vector<Action> weights; };
  std::vector<Way> ways(static_cast<size_t>(microbatches));
  const auto add = [&](const Action& action) {
    schedule.actions[static_cast<size_t>(schedule.rank_of_stage[static_cast<size_t>(action.stage)])].push_back(action);
  };
  const double patience = std::uniform_real_distribution<>(0, 1)(random);  // some orders are near the usual, others wild
  for (std::vector<size_t> open;;) {
    open.clear();
    for (size_t m = 0; m < ways.size(); ++m)
      if (ways[m].done < 2 * schedule.stages || !ways[m].weights.empty()) open.push_back(m);
    if (open.empty()) return schedule;
    const bool first = std::uniform_real_distribution<>(0, 1)(random) < patience;
    const size_t m = open[first ? 0 : random() % open.size()];
    Way& way = ways[m];
    const int64_t microbatch = static_cast<int64_t>(m);
    if (!way.weights.empty() && (way.done == 2 * schedule.stages || random() % 3 == 0)) {
      const size_t w = random() % way.weights.size();
      add(way.weights[w]);
      way.weights.erase(way.weights.begin() + static_cast<std::ptrdiff_t>(w));
    } else if (way.done < schedule.stages) {
      add({ActionKind::forward, way.done++, microbatch});
    } else {
      const int64_t stage = 2 * schedule.stages - 1 - way.done++;
      const bool split = random() % 2 == 0;
      add({split ? ActionKind::backward_input : ActionKind::backward, stage, microbatch});
      if (split) way.weights.push_back({ActionKind::backward_weight, stage, microbatch});
    }
  }
}

}  // namespace quire::test
