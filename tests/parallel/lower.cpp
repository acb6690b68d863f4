#include <deque>
#include <set>

#include "check.h"
#include "parallel/schedule.h"
#include "schedules.h"

using namespace quire;
using namespace quire::test;

namespace {

constexpr InstructionKind compute = InstructionKind::compute, receive = InstructionKind::post_receive, await = InstructionKind::await,
                          send = InstructionKind::send;

std::string describe(const std::vector<Instruction>& instructions) {
  std::string text;
  for (const Instruction& instruction : instructions) text += to_string(instruction) + "\n";
  return text;
}

size_t place_of(const std::vector<Instruction>& instructions, InstructionKind kind, const Action& action) {
  for (size_t i = 0; i < instructions.size(); ++i)
    if (instructions[i].kind == kind && instructions[i].action == action) return i;
  BOOST_FAIL("no such instruction");
  return 0;
}

int64_t count(const PipelineProgram& program, InstructionKind kind) {
  int64_t found = 0;
  for (const std::vector<Instruction>& instructions : program.instructions)
    found += std::count_if(instructions.begin(), instructions.end(), [&](const Instruction& i) { return i.kind == kind; });
  return found;
}

/// The program with instruction `from` of `rank` moved to stand where `to` is now (before it, when it moves up).
PipelineProgram moved(PipelineProgram program, size_t rank, size_t from, size_t to) {
  std::vector<Instruction>& list = program.instructions[rank];
  const Instruction instruction = list[from];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(from));
  list.insert(list.begin() + static_cast<std::ptrdiff_t>(to), instruction);
  return program;
}

/// Receives posted only when they are awaited: for programs whose messages are awaited in the order of sending.
PipelineProgram with_receives_at_the_last_moment(PipelineProgram program) {
  for (std::vector<Instruction>& list : program.instructions) {
    std::vector<Instruction> late;
    for (const Instruction& instruction : list) {
      if (instruction.kind == receive) continue;
      if (instruction.kind == await) late.push_back({receive, instruction.action, instruction.peer});
      late.push_back(instruction);
    }
    list = late;
  }
  return program;
}

/// The program with each receive `lookahead` computations before the one that awaits it, or as early as one that its peer sends later.
PipelineProgram with_lookahead(PipelineProgram program, size_t lookahead) {
  for (std::vector<Instruction>& list : program.instructions) {
    std::vector<Instruction> takes, other, changed;  // what each computation awaits, itself where nothing; the rest, in order
    std::map<int64_t, std::deque<Instruction>> receives;
    for (const Instruction& instruction : list) {
      if (instruction.kind == receive) receives[instruction.peer].push_back(instruction);
      else other.push_back(instruction);
      if (instruction.kind == compute) takes.push_back(other.size() > 1 && other[other.size() - 2].kind == await ? other[other.size() - 2] : instruction);
    }
    std::set<std::string> posted;
    size_t computed = 0, ready = 0;
    for (size_t i = 0; i < other.size(); ++i) {
      if (other[i].kind == await || (other[i].kind == compute && takes[computed].kind == compute))
        for (; ready < takes.size() && ready <= computed + lookahead; ++ready)
          while (takes[ready].kind == await && !posted.contains(to_string(takes[ready].action))) {
            std::deque<Instruction>& from = receives[takes[ready].peer];
            posted.insert(to_string(from.front().action));
            changed.push_back(from.front());
            from.pop_front();
          }
      computed += other[i].kind == compute;
      changed.push_back(other[i]);
    }
    list = changed;
  }
  return program;
}

/// Runs a program as ranks would that know nothing of each other: messages of a pair are matched by order alone, ranks take turns at random, a second
/// send to a peer waits until the first is matched. Messages carry who made them. Checks that every computation finds what it needs; returns whether
/// all end.
bool runs(const PipelineProgram& program, std::mt19937_64& random) {
  using Name = std::tuple<bool, int64_t, int64_t>;  // forward, stage, microbatch
  const size_t ranks = program.instructions.size();
  struct Channel { std::deque<Name> sent; std::deque<Action> posted; };
  std::vector<Channel> channels(ranks * ranks);
  std::vector<std::map<Name, Name>> arrived(ranks);  // by consumer
  std::vector<std::map<Name, bool>> made(ranks);
  std::vector<size_t> next(ranks, 0);
  const auto name = [](const Action& action) { return Name{action.kind == F, action.stage, action.microbatch}; };
  const auto input = [](const Action& action) {
    return Name{action.kind == F, action.kind == F ? action.stage - 1 : action.stage + 1, action.microbatch};
  };
  const auto match = [&](size_t from, size_t to) {
    for (Channel& channel = channels[from * ranks + to]; !channel.sent.empty() && !channel.posted.empty();) {
      arrived[to][name(channel.posted.front())] = channel.sent.front();
      channel.sent.pop_front();
      channel.posted.pop_front();
    }
  };
  const auto step = [&](size_t rank) {
    const Instruction& instruction = program.instructions[rank][next[rank]];
    const size_t peer = static_cast<size_t>(instruction.peer);
    const Action& action = instruction.action;
    if (instruction.kind == receive) {
      channels[peer * ranks + rank].posted.push_back(action);
      match(peer, rank);
    } else if (instruction.kind == await) {
      if (!arrived[rank].contains(name(action))) return false;
    } else if (instruction.kind == send) {
      if (!channels[rank * ranks + peer].sent.empty()) return false;
      BOOST_TEST(made[rank].contains(input(action)));
      channels[rank * ranks + peer].sent.push_back(input(action));
      match(rank, peer);
    } else if (action.kind != W) {
      const int64_t from = action.kind == F ? action.stage - 1 : action.stage + 1;
      if (from >= 0 && from < program.schedule.stages) {
        const bool here = program.schedule.rank_of_stage[static_cast<size_t>(from)] == static_cast<int64_t>(rank);
        BOOST_TEST((here ? made[rank].contains(input(action)) : arrived[rank].at(name(action)) == input(action)));
      }
      made[rank][name(action)] = true;
    }
    ++next[rank];
    return true;
  };
  for (bool any = true; any;) {
    any = false;
    for (size_t turn = 0; turn < 4 * ranks; ++turn) {
      const size_t rank = random() % ranks;
      for (size_t steps = random() % 4; steps > 0 && next[rank] < program.instructions[rank].size() && step(rank); --steps) any = true;
    }
    for (size_t rank = 0; !any && rank < ranks; ++rank) any = next[rank] < program.instructions[rank].size() && step(rank);
  }
  for (size_t rank = 0; rank < ranks; ++rank)
    if (next[rank] < program.instructions[rank].size()) return false;
  return true;
}

/// Most computations between posting and awaiting a receive.
int64_t longest_lead(const PipelineProgram& program) {
  int64_t longest = 0;
  for (const std::vector<Instruction>& list : program.instructions)
    for (size_t i = 0; i < list.size(); ++i)
      if (list[i].kind == receive)
        longest = std::max<int64_t>(longest, std::count_if(list.begin() + static_cast<std::ptrdiff_t>(i),
                                                           list.begin() + static_cast<std::ptrdiff_t>(place_of(list, await, list[i].action)),
                                                           [](const Instruction& instruction) { return instruction.kind == compute; }));
  return longest;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(lower_schedules)

BOOST_AUTO_TEST_CASE(a_small_program_reads_as_expected) {
  const PipelineProgram program = lower(make_schedule("1f1b", 2, 1, 2));
  BOOST_TEST(describe(program.instructions[0]) ==
             "compute 0F0\nsend for 1F0 to rank 1\n"
             "receive for 0B0 from rank 1\ncompute 0F1\nsend for 1F1 to rank 1\n"
             "receive for 0B1 from rank 1\nawait 0B0 from rank 1\ncompute 0B0\n"
             "await 0B1 from rank 1\ncompute 0B1\n");
  BOOST_TEST(describe(program.instructions[1]) ==
             "receive for 1F0 from rank 0\nawait 1F0 from rank 0\ncompute 1F0\n"
             "receive for 1F1 from rank 0\ncompute 1B0\nsend for 0B0 to rank 0\n"
             "await 1F1 from rank 0\ncompute 1F1\ncompute 1B1\nsend for 0B1 to rank 0\n");
}

BOOST_AUTO_TEST_CASE(built_in_schedules_lower_to_programs_without_late_messages) {
  std::mt19937_64 random(1);
  for_built_in_schedules([&](const PipelineSchedule& made, int64_t) {
    for (const PipelineSchedule& schedule : {made, split_backward(made, 2)}) {
      const PipelineProgram program = lower(schedule);
      BOOST_CHECK_NO_THROW(check_program(program));
      BOOST_TEST(late_sends(program) == 0);
      BOOST_TEST(unoverlapped_receives(program) == 0);
      BOOST_TEST(runs(program, random));
      int64_t borders = 0;
      for (size_t stage = 1; stage < made.rank_of_stage.size(); ++stage) borders += made.rank_of_stage[stage] != made.rank_of_stage[stage - 1];
      for (const InstructionKind kind : {send, receive, await}) BOOST_TEST(count(program, kind) == 2 * borders * made.microbatches);
    }
  });
}

BOOST_AUTO_TEST_CASE(forward_schedules_lower) {
  std::mt19937_64 random(2);
  for (int64_t ranks = 1; ranks <= 4; ++ranks)
    for (int64_t chunks = 1; chunks <= 3; ++chunks)
      for (int64_t microbatches = 0; microbatches <= 7; ++microbatches) {
        const PipelineProgram program = lower(forward_schedule(ranks, chunks, microbatches));
        BOOST_TEST(runs(program, random));
        BOOST_TEST(late_sends(program) == 0);
        BOOST_TEST(unoverlapped_receives(program) == 0);
        BOOST_TEST(count(program, send) == (ranks == 1 ? 0 : (ranks * chunks - 1) * microbatches));
      }
}

BOOST_AUTO_TEST_CASE(any_valid_order_and_placement_lowers) {
  std::mt19937_64 random(3);
  int64_t farther = 0, split = 0;
  for (int round = 0; round < 600; ++round) {
    const int64_t ranks = 1 + static_cast<int64_t>(random() % 4), stages = ranks * (1 + static_cast<int64_t>(random() % 3));
    std::vector<int64_t> placement = v_placement(ranks, stages);
    if (round % 3 == 1)
      for (int64_t& rank : placement) rank = static_cast<int64_t>(random() % static_cast<uint64_t>(ranks));
    if (round % 3 == 2)
      for (int64_t stage = 0; stage < stages; ++stage) placement[static_cast<size_t>(stage)] = stage % ranks;
    const PipelineSchedule schedule = random_schedule(random, placement, ranks, static_cast<int64_t>(random() % 8));
    BOOST_TEST_CONTEXT("round " << round << "\n" << quire::describe(schedule)) {
      BOOST_CHECK_NO_THROW(check_schedule(schedule));
      const PipelineProgram program = lower(schedule);
      BOOST_CHECK_NO_THROW(check_program(program));
      BOOST_TEST(late_sends(program) == 0);
      BOOST_TEST(unoverlapped_receives(program) == 0);
      for (int turn = 0; turn < 3; ++turn) BOOST_TEST(runs(program, random));
      farther += longest_lead(program) > 1;
      for (const std::vector<Action>& actions : schedule.actions)
        split += std::count_if(actions.begin(), actions.end(), [](const Action& action) { return action.kind == I; });
    }
  }
  BOOST_TEST(farther > 0);
  BOOST_TEST(split > 0);
}

BOOST_AUTO_TEST_CASE(stages_that_follow_each_other_on_a_rank_hand_over_without_a_message) {
  const PipelineProgram alone = lower(make_schedule("interleaved_1f1b", 1, 3, 4));
  BOOST_TEST(count(alone, compute) == 24);
  for (const InstructionKind kind : {send, receive, await}) BOOST_TEST(count(alone, kind) == 0);
  std::mt19937_64 random(4);
  const PipelineProgram v = lower(random_schedule(random, v_placement(2, 4), 2, 3));  // 0 1 1 0: stages 1 and 2 are neighbours
  BOOST_TEST(count(v, send) == 2 * 2 * 3);
  for (const std::vector<Instruction>& list : v.instructions)
    for (const Instruction& instruction : list)
      if (instruction.kind != compute) BOOST_TEST(instruction.action.stage != (instruction.action.kind == F ? 2 : 1));
}

BOOST_AUTO_TEST_CASE(activations_and_gradients_between_two_ranks_are_received_in_one_order) {
  // Rank 1 sends rank 0 activations (stage 1 to 2) and gradients (1 to 0, 3 to 2).
  const PipelineProgram program = lower(make_schedule("interleaved_1f1b", 2, 2, 4));
  std::vector<Action> sent, received;
  for (const Instruction& instruction : program.instructions[1])
    if (instruction.kind == send) sent.push_back(instruction.action);
  for (const Instruction& instruction : program.instructions[0])
    if (instruction.kind == receive) received.push_back(instruction.action);
  BOOST_TEST((sent == received));
  size_t turns = 0;
  for (size_t i = 1; i < sent.size(); ++i) turns += (sent[i].kind == F) != (sent[i - 1].kind == F);
  BOOST_TEST(turns >= 3U);
}

// Rank 0 forwards all before its first backward, rank 1 turns each round at once. With receives posted at the last moment rank 0 can not send a
// microbatch before rank 1 takes the one before, nor rank 1 its second gradient before rank 0 takes the first.
BOOST_AUTO_TEST_CASE(synchronous_sends_that_wait_for_each_other_are_found) {
  PipelineSchedule schedule = make_schedule("gpipe", 2, 1, 6);
  schedule.actions[1] = make_schedule("1f1b", 2, 1, 6).actions[1];
  std::mt19937_64 random(5);
  const PipelineProgram program = lower(schedule);
  BOOST_TEST(runs(program, random));
  const PipelineProgram late = with_receives_at_the_last_moment(program);
  check_error<ScheduleError>([&] { check_program(late); }, {"forever", "rank 0 at send for 1F", "rank 1 at send for 0B"});
  BOOST_TEST(!runs(late, random));
  // Where nothing waits in a circle, late receives are valid, but counted.
  const PipelineProgram alternating = with_receives_at_the_last_moment(lower(make_schedule("1f1b", 2, 1, 4)));
  BOOST_CHECK_NO_THROW(check_program(alternating));
  BOOST_TEST(unoverlapped_receives(alternating) == 7);  // of 8, the first has no computation before it
}

BOOST_AUTO_TEST_CASE(the_least_lookahead_that_ends_is_taken) {
  BOOST_TEST(longest_lead(lower(make_schedule("gpipe", 4, 1, 8))) == 1);
  BOOST_TEST(longest_lead(lower(make_schedule("1f1b", 4, 1, 8))) == 1);
  // Schedules that need more: each rank has the order of another built-in one.
  std::mt19937_64 random(6);
  std::set<size_t> needed;
  for (int round = 0; round < 60; ++round) {
    const int64_t ranks = 2 + static_cast<int64_t>(random() % 3), microbatches = 1 + static_cast<int64_t>(random() % 12);
    PipelineSchedule schedule = make_schedule("gpipe", ranks, 1, microbatches);
    const int64_t turns = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(ranks));  // ranks from here on take turns as soon as they can
    for (int64_t rank = turns; rank < ranks; ++rank)
      schedule.actions[static_cast<size_t>(rank)] = make_schedule("1f1b", ranks, 1, microbatches).actions[static_cast<size_t>(rank)];
    const PipelineProgram program = lower(schedule);
    size_t least = 1;
    for (;; ++least)
      try {
        check_program(with_lookahead(program, least));
        break;
      } catch (const ScheduleError&) {
        BOOST_REQUIRE(least < 50);
      }
    needed.insert(least);
    BOOST_TEST((with_lookahead(program, least).instructions == program.instructions));
  }
  BOOST_TEST(needed.size() >= 3U);
}

// Controls: each breaks one thing of a program that is right.
BOOST_AUTO_TEST_CASE(broken_programs_are_refused) {
  const PipelineProgram program = lower(make_schedule("1f1b", 2, 1, 3));
  BOOST_CHECK_NO_THROW(check_program(program));
  const auto refused = [](const PipelineProgram& broken, std::initializer_list<std::string> parts) {
    check_error<ScheduleError>([&] { check_program(broken); }, parts);
  };
  const auto without = [&](size_t rank, InstructionKind kind, const Action& action) {
    PipelineProgram broken = program;
    std::vector<Instruction>& list = broken.instructions[rank];
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(place_of(list, kind, action)));
    return broken;
  };
  const auto swapped = [&](size_t rank, InstructionKind kind, const Action& a, const Action& b) {
    PipelineProgram broken = program;
    std::vector<Instruction>& list = broken.instructions[rank];
    std::swap(list[place_of(list, kind, a)], list[place_of(list, kind, b)]);
    return broken;
  };
  const auto doubled = [&](size_t rank, InstructionKind kind, const Action& action) {
    PipelineProgram broken = program;
    std::vector<Instruction>& list = broken.instructions[rank];
    list.insert(list.begin() + static_cast<std::ptrdiff_t>(place_of(list, kind, action)) + 1, list[place_of(list, kind, action)]);
    return broken;
  };
  const auto with_peer = [&](size_t rank, InstructionKind kind, const Action& action, int64_t peer) {
    PipelineProgram broken = program;
    broken.instructions[rank][place_of(broken.instructions[rank], kind, action)].peer = peer;
    return broken;
  };
  // Both receives stand before either await: only the order is wrong.
  PipelineProgram early = moved(program, 1, place_of(program.instructions[1], receive, {F, 1, 1}), 0);
  refused(early, {"from rank 0 to rank 1, send 0 is for 1F0 but receive 0 is for 1F1"});
  refused(swapped(0, receive, {B, 0, 0}, {B, 0, 1}), {"rank 0", "await 0B0", "not posted"});
  refused(without(1, receive, {F, 1, 1}), {"rank 1", "await 1F1", "not posted"});
  refused(without(1, await, {F, 1, 1}), {"rank 1", "compute 1F1", "not awaited"});
  refused(without(0, send, {F, 1, 2}), {"send 2 is missing but receive 2 is for 1F2"});
  refused(without(0, compute, {B, 0, 2}), {"rank 0", "0B2 is not computed"});
  refused(without(1, compute, {B, 1, 0}), {"rank 1", "send for 0B0", "before 1B0 makes it"});
  refused(doubled(1, receive, {F, 1, 1}), {"posted twice"});
  refused(doubled(1, await, {F, 1, 1}), {"awaited twice"});
  refused(doubled(0, send, {F, 1, 1}), {"sent twice"});
  refused(doubled(0, compute, {F, 0, 1}), {"rank 0", "compute 0F1", "the schedule has 0B0 here"});
  refused(with_peer(0, send, {F, 1, 1}, 0), {"rank 1 takes that message"});
  refused(with_peer(1, receive, {F, 1, 1}, 1), {"one from rank 0"});
  refused(with_peer(1, await, {F, 1, 1}, -1), {"one from rank 0"});
  const auto added = [&](size_t rank, const Instruction& instruction) {
    PipelineProgram broken = program;
    broken.instructions[rank].push_back(instruction);
    return broken;
  };
  refused(added(0, {receive, {F, 0, 0}, 1}), {"rank 0", "takes none"});
  refused(added(0, {receive, {F, 0, 0}, -1}), {"rank 0", "takes none"});
  refused(added(0, {receive, {F, 1, 0}, 1}), {"rank 1 takes that message"});
  refused(added(1, {send, {F, 1, 0}, 1}), {"rank 1", "does not make"});
  refused(added(0, {compute, {F, 0, 7}, -1}), {"the schedule has no 0F7"});
  refused(added(0, {compute, {I, 0, 0}, -1}), {"the schedule has no 0I0"});
  refused(added(0, {compute, {F, 0, 0}, -1}), {"the schedule has nothing here"});
  PipelineProgram other = program;
  other.instructions.pop_back();
  refused(other, {"1 ranks"});
  other = program;
  other.schedule.actions[0].pop_back();
  refused(other, {"0B2 is missing"});
}

BOOST_AUTO_TEST_CASE(messages_that_come_later_than_needed_are_counted) {
  const PipelineProgram program = lower(make_schedule("1f1b", 2, 1, 4));
  BOOST_TEST(late_sends(program) == 0);
  // Rank 0 sends microbatch 1 only after its next computation.
  const std::vector<Instruction>& list = program.instructions[0];
  const PipelineProgram late = moved(program, 0, place_of(list, send, {F, 1, 1}), place_of(list, compute, {B, 0, 0}));
  BOOST_CHECK_NO_THROW(check_program(late));
  BOOST_TEST(late_sends(late) == 1);
  // Rank 1 posts the receive for microbatch 1 after the computation that could have hidden the transfer.
  const std::vector<Instruction>& other = program.instructions[1];
  const PipelineProgram idle = moved(program, 1, place_of(other, receive, {F, 1, 1}), place_of(other, compute, {B, 1, 0}));
  BOOST_CHECK_NO_THROW(check_program(idle));
  BOOST_TEST(unoverlapped_receives(program) == 0);
  BOOST_TEST(unoverlapped_receives(idle) == 1);
}

BOOST_AUTO_TEST_SUITE_END()
