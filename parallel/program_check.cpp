#include <algorithm>

#include "parallel/schedule_index.h"
#include "runtime/error.h"

namespace quire {
namespace {

constexpr std::string_view program_place = "pipeline program";

/// What has happened to a message, on either side, in the order of the lists.
struct MessageState {
  bool posted = false, awaited = false, sent = false;
};

class ProgramCheck {
 public:
  explicit ProgramCheck(const PipelineProgram& program)
      : program_(program), schedule_(program.schedule), index_(program.schedule), ranks_(static_cast<size_t>(schedule_.ranks)),
        messages_(index_.messages()), sends_(ranks_ * ranks_), receives_(ranks_ * ranks_) {}

  void run() {
    if (program_.instructions.size() != ranks_)
      fail<ScheduleError>(program_place, "{}: instructions for {} ranks, the schedule has {}", schedule_.name, program_.instructions.size(), ranks_);
    for (size_t rank = 0; rank < ranks_; ++rank) check_rank(rank);
    for (size_t from = 0; from < ranks_; ++from)
      for (size_t to = 0; to < ranks_; ++to) check_pair(from, to);
    check_progress();
  }

 private:
  size_t pair(size_t from, size_t to) const { return from * ranks_ + to; }
  MessageState& message(const Action& consumer) { return messages_[index_.message(consumer)]; }

  template <class... Args>
  [[noreturn]] void refuse(size_t rank, const Instruction& instruction, fmt::format_string<Args...> format, Args&&... args) const {
    fail<ScheduleError>(program_place, "{}, rank {}, {}: {}", schedule_.name, rank, to_string(instruction),
                        fmt::vformat(format, fmt::make_format_args(args...)));
  }

  /// Each rank's list by itself: the schedule's computations in its order, each with its input awaited, nothing sent before it is made.
  void check_rank(size_t rank) {
    size_t computed = 0;
    const std::vector<Action>& actions = schedule_.actions[rank];
    for (const Instruction& instruction : program_.instructions[rank]) {
      if (!index_.has(instruction.action)) refuse(rank, instruction, "the schedule has no {}", to_string(instruction.action));
      if (instruction.kind == InstructionKind::compute) {
        if (computed == actions.size() || instruction.action != actions[computed])
          refuse(rank, instruction, "the schedule has {} here", computed == actions.size() ? "nothing" : to_string(actions[computed]));
        if (index_.sender_to(instruction.action) != -1 && !message(instruction.action).awaited)
          refuse(rank, instruction, "its input was not awaited");
        ++computed;
      } else if (instruction.kind == InstructionKind::send) {
        check_send(rank, instruction, computed);
      } else {
        check_receive(rank, instruction);
      }
    }
    if (computed < actions.size())
      fail<ScheduleError>(program_place, "{}, rank {}: {} is not computed", schedule_.name, rank, to_string(actions[computed]));
  }

  void check_send(size_t rank, const Instruction& instruction, size_t computed) {
    const Action& consumer = instruction.action;
    if (index_.sender_to(consumer) != static_cast<int64_t>(rank)) refuse(rank, instruction, "this rank does not make that message");
    if (index_.rank_of(consumer) != instruction.peer) refuse(rank, instruction, "rank {} takes that message", index_.rank_of(consumer));
    const Action producer = *index_.input_of(consumer);
    const StagePasses& passes = index_.at(producer.stage, producer.microbatch);
    if ((producer.kind == ActionKind::forward ? passes.forward : passes.backward) >= static_cast<int64_t>(computed))
      refuse(rank, instruction, "sent before {} makes it", to_string(producer));
    if (message(consumer).sent) refuse(rank, instruction, "sent twice");
    message(consumer).sent = true;
    sends_[pair(rank, static_cast<size_t>(instruction.peer))].push_back(consumer);
  }

  void check_receive(size_t rank, const Instruction& instruction) {
    const Action& consumer = instruction.action;
    if (index_.rank_of(consumer) != static_cast<int64_t>(rank))
      refuse(rank, instruction, "rank {} takes that message", index_.rank_of(consumer));
    if (index_.sender_to(consumer) != instruction.peer || instruction.peer == -1)
      refuse(rank, instruction, "no such message; the action takes {}",
             index_.sender_to(consumer) == -1 ? "none" : fmt::format("one from rank {}", index_.sender_to(consumer)));
    MessageState& state = message(consumer);
    if (instruction.kind == InstructionKind::post_receive) {
      if (state.posted) refuse(rank, instruction, "posted twice");
      state.posted = true;
      receives_[pair(static_cast<size_t>(instruction.peer), rank)].push_back(consumer);
    } else {
      if (!state.posted) refuse(rank, instruction, "its receive was not posted");
      if (state.awaited) refuse(rank, instruction, "awaited twice");
      state.awaited = true;
    }
  }

  void check_pair(size_t from, size_t to) const {
    const std::vector<Action>& sends = sends_[pair(from, to)];
    const std::vector<Action>& receives = receives_[pair(from, to)];
    for (size_t i = 0; i < std::max(sends.size(), receives.size()); ++i) {
      const std::string sent = i < sends.size() ? "for " + to_string(sends[i]) : "missing";
      const std::string received = i < receives.size() ? "for " + to_string(receives[i]) : "missing";
      if (sent != received)
        fail<ScheduleError>(program_place, "{}: from rank {} to rank {}, send {} is {} but receive {} is {}", schedule_.name, from, to, i, sent, i,
                            received);
    }
  }

  /// Runs all ranks: a send waits for the one before it to the same peer, which is complete once its receive is posted; an await for its send.
  void check_progress() {
    std::vector<size_t> next(ranks_, 0), sent(ranks_ * ranks_, 0), posted(ranks_ * ranks_, 0);
    std::fill(messages_.begin(), messages_.end(), MessageState{});
    const auto goes_on = [&](size_t rank, const Instruction& instruction) {
      const size_t peer = static_cast<size_t>(instruction.peer);
      switch (instruction.kind) {
        case InstructionKind::compute: return true;
        case InstructionKind::await: return message(instruction.action).sent;
        case InstructionKind::post_receive: ++posted[pair(peer, rank)]; return true;
        case InstructionKind::send:
          if (posted[pair(rank, peer)] < sent[pair(rank, peer)]) return false;
          ++sent[pair(rank, peer)];
          message(instruction.action).sent = true;
          return true;
      }
      return false;
    };
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < ranks_; ++rank) {
        const std::vector<Instruction>& instructions = program_.instructions[rank];
        for (; next[rank] < instructions.size() && goes_on(rank, instructions[next[rank]]); ++next[rank]) moved = true;
      }
    }
    std::string stuck;
    for (size_t rank = 0; rank < ranks_; ++rank)
      if (next[rank] < program_.instructions[rank].size())
        stuck += fmt::format("{}rank {} at {}", stuck.empty() ? "" : ", ", rank, to_string(program_.instructions[rank][next[rank]]));
    if (!stuck.empty()) fail<ScheduleError>(program_place, "{}: ranks wait for each other forever: {}", schedule_.name, stuck);
  }

  const PipelineProgram& program_;
  const PipelineSchedule& schedule_;
  ScheduleIndex index_;
  size_t ranks_;
  std::vector<MessageState> messages_;              // by ScheduleIndex::message
  std::vector<std::vector<Action>> sends_, receives_;  // consumers of each ordered pair's messages, in order
};

}  // namespace

void check_program(const PipelineProgram& program) {
  check_schedule(program.schedule);
  ProgramCheck(program).run();
}

}  // namespace quire
