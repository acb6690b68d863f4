#include <algorithm>
#include <map>
#include <tuple>

#include "parallel/schedule_index.h"
#include "runtime/error.h"

namespace quire {
namespace {

/// Messages from each rank to each other rank, named by their consumers, in the order in which they are made. [ranks][ranks]
using SendingOrder = std::vector<std::vector<std::vector<Action>>>;

SendingOrder sending_order(const PipelineSchedule& schedule, const ScheduleIndex& index) {
  const size_t ranks = static_cast<size_t>(schedule.ranks);
  SendingOrder order(ranks, std::vector<std::vector<Action>>(ranks));
  for (size_t rank = 0; rank < ranks; ++rank)
    for (const Action& action : schedule.actions[rank])
      if (const std::optional<Action> consumer = index.consumer_of(action); consumer && index.sender_to(*consumer) != -1)
        order[rank][static_cast<size_t>(index.rank_of(*consumer))].push_back(*consumer);
  return order;
}

/// One rank's instructions, with the receives of each computation posted `lookahead` computations before it. Receives from one peer keep its sending
/// order: what it sends earlier is posted earlier, though it may be needed later.
std::vector<Instruction> lower_rank(const PipelineSchedule& schedule, const ScheduleIndex& index, const SendingOrder& order, size_t rank,
                                    size_t lookahead) {
  const std::vector<Action>& actions = schedule.actions[rank];
  std::vector<Instruction> instructions;
  std::vector<size_t> posted_from(order.size(), 0);
  std::vector<bool> posted(index.messages(), false);
  size_t ready = 0;  // computations whose receives are posted
  for (size_t i = 0; i < actions.size(); ++i) {
    for (; ready < actions.size() && ready <= i + lookahead; ++ready) {
      const int64_t peer = index.sender_to(actions[ready]);
      while (peer != -1 && !posted[index.message(actions[ready])]) {
        const Action& consumer = order[static_cast<size_t>(peer)][rank][posted_from[static_cast<size_t>(peer)]++];
        posted[index.message(consumer)] = true;
        instructions.push_back({InstructionKind::post_receive, consumer, peer});
      }
    }
    if (const int64_t peer = index.sender_to(actions[i]); peer != -1)
      instructions.push_back({InstructionKind::await, actions[i], peer});
    instructions.push_back({InstructionKind::compute, actions[i], -1});
    if (const std::optional<Action> consumer = index.consumer_of(actions[i]); consumer && index.sender_to(*consumer) != -1)
      instructions.push_back({InstructionKind::send, *consumer, index.rank_of(*consumer)});
  }
  return instructions;
}

}  // namespace

std::string to_string(const Instruction& instruction) {
  const std::string action = to_string(instruction.action);
  switch (instruction.kind) {
    case InstructionKind::compute: return "compute " + action;
    case InstructionKind::post_receive: return fmt::format("receive for {} from rank {}", action, instruction.peer);
    case InstructionKind::await: return fmt::format("await {} from rank {}", action, instruction.peer);
    case InstructionKind::send: return fmt::format("send for {} to rank {}", action, instruction.peer);
  }
  return action;
}

PipelineProgram lower(const PipelineSchedule& schedule) {
  check_schedule(schedule);
  const ScheduleIndex index(schedule);
  const SendingOrder order = sending_order(schedule, index);
  size_t longest = 1;
  for (const std::vector<Action>& actions : schedule.actions) longest = std::max(longest, actions.size());
  const auto attempt = [&](size_t lookahead) -> std::optional<PipelineProgram> {
    PipelineProgram program{schedule, {}};
    for (size_t rank = 0; rank < order.size(); ++rank) program.instructions.push_back(lower_rank(schedule, index, order, rank, lookahead));
    try {
      check_program(program);
      return program;
    } catch (const ScheduleError&) {
      if (lookahead >= longest) throw;
      return std::nullopt;
    }
  };
  // With everything posted at the start no send ever waits, so the longest lookahead succeeds, and a longer one succeeds where a shorter one does. A receive
  // posted early costs memory for longer: the shortest that succeeds is taken, found by doubling and then halving what lies between.
  size_t fails = 0, succeeds = 1;
  std::optional<PipelineProgram> program = attempt(succeeds);
  while (!program) {
    fails = succeeds;
    succeeds = std::min(2 * succeeds, longest);
    program = attempt(succeeds);
  }
  while (succeeds - fails > 1) {
    const size_t middle = fails + (succeeds - fails) / 2;
    if (std::optional<PipelineProgram> shorter = attempt(middle)) {
      program = std::move(shorter);
      succeeds = middle;
    } else {
      fails = middle;
    }
  }
  return *std::move(program);
}

int64_t late_sends(const PipelineProgram& program) {
  int64_t late = 0;
  for (const std::vector<Instruction>& instructions : program.instructions) {
    std::map<std::tuple<bool, int64_t, int64_t>, int64_t> made;  // number of computations when the content was there
    int64_t computations = 0;
    for (const Instruction& instruction : instructions) {
      const Action& action = instruction.action;
      const bool forward = action.kind == ActionKind::forward;
      if (instruction.kind == InstructionKind::compute) {
        ++computations;
        if (action.kind != ActionKind::backward_weight) made[{forward, action.stage, action.microbatch}] = computations;
      } else if (instruction.kind == InstructionKind::send) {
        const auto producer = made.find({forward, forward ? action.stage - 1 : action.stage + 1, action.microbatch});
        late += producer != made.end() && producer->second < computations;
      }
    }
  }
  return late;
}

int64_t unoverlapped_receives(const PipelineProgram& program) {
  int64_t unoverlapped = 0;
  for (const std::vector<Instruction>& instructions : program.instructions) {
    std::map<std::tuple<bool, int64_t, int64_t>, int64_t> posted;  // number of computations before the receive
    int64_t computations = 0;
    for (const Instruction& instruction : instructions) {
      const std::tuple message{instruction.action.kind == ActionKind::forward, instruction.action.stage, instruction.action.microbatch};
      if (instruction.kind == InstructionKind::compute) ++computations;
      if (instruction.kind == InstructionKind::post_receive) posted[message] = computations;
      if (instruction.kind == InstructionKind::await && computations > 0) {
        const auto receive = posted.find(message);
        unoverlapped += receive == posted.end() || receive->second == computations;
      }
    }
  }
  return unoverlapped;
}

}  // namespace quire
