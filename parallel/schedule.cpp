#include "parallel/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "parallel/zero_bubble.h"
#include "runtime/error.h"

namespace quire {
namespace {

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v"};
  return names;
}

/// No actions yet.
PipelineSchedule empty_schedule(std::string_view name, int64_t ranks, std::vector<int64_t> rank_of_stage, int64_t microbatches) {
  if (microbatches < 0) fail<ConfigError>("pipeline schedule", "{} microbatches, 0 or more can be scheduled", microbatches);
  PipelineSchedule schedule;
  schedule.name = name;
  schedule.ranks = ranks;
  schedule.stages = static_cast<int64_t>(rank_of_stage.size());
  schedule.rank_of_stage = std::move(rank_of_stage);
  schedule.microbatches = microbatches;
  schedule.actions.resize(static_cast<size_t>(ranks));
  return schedule;
}

/// A rank's forward passes in Megatron-LM's order: as many microbatches as there are ranks go through the rank's first stage, then through its
/// second, ...; its backward passes likewise from the last stage to the first. `microbatches` is a multiple of `ranks`.
std::vector<Action> passes_in_groups(ActionKind kind, int64_t rank, int64_t ranks, int64_t chunks, int64_t microbatches) {
  std::vector<Action> passes;
  for (int64_t first = 0; first < microbatches; first += ranks)
    for (int64_t c = 0; c < chunks; ++c) {
      const int64_t chunk = kind == ActionKind::forward ? c : chunks - 1 - c;
      for (int64_t microbatch = first; microbatch < first + ranks; ++microbatch)
        passes.push_back({kind, chunk * ranks + rank, microbatch});
    }
  return passes;
}

/// `warm_up` forwards, then a forward and a backward in turn, then the backwards that are left.
std::vector<Action> in_turn(const std::vector<Action>& forwards, const std::vector<Action>& backwards, int64_t warm_up) {
  const size_t count = forwards.size(), lead = std::min(static_cast<size_t>(warm_up), count);
  std::vector<Action> actions(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(lead));
  for (size_t i = lead; i < count; ++i) {
    actions.push_back(forwards[i]);
    actions.push_back(backwards[i - lead]);
  }
  actions.insert(actions.end(), backwards.end() - static_cast<std::ptrdiff_t>(lead), backwards.end());
  return actions;
}

/// The same order without the microbatches from `microbatches` on. Actions depend only on actions of their own microbatch, so what is left can be
/// carried out since the whole could, in no more time and with no more in flight. (The same turns over an incomplete group can wait
/// forever.)
void drop_microbatches(std::vector<Action>& actions, int64_t microbatches) {
  std::erase_if(actions, [&](const Action& action) { return action.microbatch >= microbatches; });
}

/// Every B as I right there; a W as soon as more than `delay` are kept back.
void split_actions(std::vector<Action>& actions, int64_t delay) {
  std::vector<Action> all;
  std::deque<Action> kept;
  const auto release = [&](size_t most) {
    for (; kept.size() > most; kept.pop_front()) all.push_back(kept.front());
  };
  for (Action action : actions) {
    if (action.kind == ActionKind::backward) {
      action.kind = ActionKind::backward_input;
      kept.push_back({ActionKind::backward_weight, action.stage, action.microbatch});
    }
    all.push_back(action);
    release(static_cast<size_t>(delay));
  }
  release(0);
  actions = std::move(all);
}

int64_t next_multiple(int64_t value, int64_t of) { return (value + of - 1) / of * of; }

}  // namespace

std::string to_string(const Action& action) {
  return fmt::format("{}{}{}", action.stage, "FBIW"[static_cast<size_t>(action.kind)], action.microbatch);
}

std::string describe(const PipelineSchedule& schedule) {
  std::string text;
  for (const std::vector<Action>& actions : schedule.actions) {
    for (size_t i = 0; i < actions.size(); ++i) {
      if (i > 0) text += ',';
      text += to_string(actions[i]);
    }
    text += '\n';
  }
  return text;
}

std::vector<int64_t> place_stages(std::string_view schedule, int64_t ranks, int64_t chunks) {
  if (ranks < 1) fail<ConfigError>("distributed.pp", "{} ranks for a pipeline, 1 or more are needed", ranks);
  if (chunks < 1) fail<ConfigError>("distributed.pp_chunks", "{} stages per rank, 1 or more are needed", chunks);
  std::vector<int64_t> rank_of_stage(static_cast<size_t>(ranks * chunks));
  for (size_t stage = 0; stage < rank_of_stage.size(); ++stage) {
    const int64_t place = static_cast<int64_t>(stage) % ranks, lap = static_cast<int64_t>(stage) / ranks;
    rank_of_stage[stage] = schedule == "zb_v" && lap % 2 == 1 ? ranks - 1 - place : place;
  }
  return rank_of_stage;
}

PipelineSchedule make_schedule(std::string_view name, int64_t ranks, int64_t chunks, int64_t microbatches) {
  const std::vector<std::string>& names = schedule_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    const std::string near = nearest(name, names);
    fail<ConfigError>("distributed.pp_schedule", "no schedule '{}'; there are {}{}", name,
                      fmt::join(names, ", "), near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
  }
  PipelineSchedule schedule = empty_schedule(name, ranks, place_stages(name, ranks, chunks), microbatches);
  if (name == "zb_v") {
    if (chunks != 2) fail<ConfigError>("distributed.pp_chunks", "{} stages per rank, zb_v has 2: down the ranks and back up", chunks);
    schedule.actions = zero_bubble_v(ranks, microbatches);
    return schedule;
  }
  if (chunks > 1 && name != "interleaved_1f1b")
    fail<ConfigError>("distributed.pp_chunks", "{} stages per rank, {} has 1; interleaved_1f1b allows more", chunks, name);
  const int64_t whole = chunks > 1 ? next_multiple(microbatches, ranks) : microbatches;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<Action> forwards, backwards;
    int64_t warm_up = 0;
    if (chunks > 1) {
      forwards = passes_in_groups(ActionKind::forward, rank, ranks, chunks, whole);
      backwards = passes_in_groups(ActionKind::backward, rank, ranks, chunks, whole);
      warm_up = 2 * (ranks - 1 - rank) + (chunks - 1) * ranks;
    } else {
      for (int64_t m = 0; m < microbatches; ++m) {
        forwards.push_back({ActionKind::forward, rank, m});
        backwards.push_back({ActionKind::backward, rank, m});
      }
      warm_up = name == "gpipe" ? microbatches : ranks - 1 - rank;
    }
    std::vector<Action>& actions = schedule.actions[static_cast<size_t>(rank)];
    actions = in_turn(forwards, backwards, warm_up);
    drop_microbatches(actions, microbatches);
    // A rank that starts later gets its first gradients earlier. It uses the time until the others are there for forward passes and input gradients
    // alone, and has that many weight gradients left for the end, when the others are still at work.
    if (name == "zb_h1") split_actions(actions, std::min(rank, std::max<int64_t>(microbatches - warm_up - 1, 0)));
  }
  return schedule;
}

PipelineSchedule forward_schedule(int64_t ranks, int64_t chunks, int64_t microbatches) {
  return forward_schedule(place_stages("forward", ranks, chunks), ranks, microbatches);
}

PipelineSchedule forward_schedule(const std::vector<int64_t>& rank_of_stage, int64_t ranks, int64_t microbatches) {
  for (const int64_t rank : rank_of_stage)
    if (rank < 0 || rank >= ranks) fail<ScheduleError>("pipeline schedule", "a stage on rank {}, there are {} ranks", rank, ranks);
  PipelineSchedule schedule = empty_schedule("forward", ranks, rank_of_stage, microbatches);
  std::vector<std::vector<int64_t>> held(static_cast<size_t>(ranks));  // last stage first: what is nearly through goes first
  for (int64_t stage = schedule.stages - 1; stage >= 0; --stage)
    held[static_cast<size_t>(rank_of_stage[static_cast<size_t>(stage)])].push_back(stage);
  std::vector<int64_t> done(rank_of_stage.size(), 0);
  for (int64_t left = schedule.stages * microbatches; left > 0;) {
    const std::vector<int64_t> before = done;  // of the steps before this one, in which each rank does one forward at most
    for (size_t rank = 0; rank < held.size(); ++rank)
      for (const int64_t stage : held[rank]) {
        const size_t s = static_cast<size_t>(stage);
        if (before[s] == (s == 0 ? microbatches : before[s - 1])) continue;
        schedule.actions[rank].push_back({ActionKind::forward, stage, done[s]++});
        --left;
        break;
      }
  }
  return schedule;
}

PipelineSchedule split_backward(const PipelineSchedule& schedule, int64_t delay) {
  if (delay < 0) fail<ConfigError>("split_backward", "a delay of {} weight gradients, 0 or more can be kept back", delay);
  PipelineSchedule split = schedule;
  split.name += " with split backward";
  for (std::vector<Action>& actions : split.actions) split_actions(actions, delay);
  return split;
}

}  // namespace quire
