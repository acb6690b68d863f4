// Messages of the emulated NCCL between streams. A send is over when it was received. Who waits in a circle is told so at once, and everybody else after a while.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "nccl_state.h"
#include "sanitizers.h"
#include "state.h"

namespace emulation::communication {

State& state() {
  static State all;
  return all;
}

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8: case ncclUint8: case ncclFloat8e4m3: case ncclFloat8e5m2: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    default: return 0;
  }
}

namespace {

std::string describe(const Message& message) {
  const World& world = *message.world;
  return "device " + std::to_string(world.devices[static_cast<size_t>(message.rank)]) + " (rank " + std::to_string(message.rank) + " of communicator " +
         std::to_string(world.number) + ") waits to " + (message.sends ? "send " : "receive ") + std::to_string(message.count * size_of(message.type)) + " bytes " +
         (message.sends ? "to" : "from") + " device " + std::to_string(world.devices[static_cast<size_t>(message.peer)]);
}

/// The first message of a group that is not done; null where all are.
const Message* open_message(const Group& group) {
  for (const auto& message : group.messages)
    if (message->state != Message::State::done) return message.get();
  return nullptr;
}

std::shared_ptr<Group> running_on(const Stream& stream) {
  for (const auto& group : state().groups)
    if (group->running && group->stream.get() == &stream) return group;
  return nullptr;
}

/// Groups that must be over before this one can be: those that keep the other sides of its messages from beginning.
std::vector<std::shared_ptr<Group>> holding_up(const Group& group) {
  std::vector<std::shared_ptr<Group>> result;
  for (const auto& message : group.messages) {
    if (message->state != Message::State::posted || message->other == nullptr) continue;
    Group& theirs = *message->other->group;
    if (theirs.running) continue;
    if (theirs.before != nullptr && !theirs.before->over && theirs.before->running) result.push_back(theirs.before);
    if (const auto first = running_on(*theirs.stream); first != nullptr) result.push_back(first);
  }
  return result;
}

/// Groups from one that waits for itself back to it; empty where it does not.
std::vector<std::shared_ptr<Group>> circle_from(const std::shared_ptr<Group>& start) {
  std::vector<std::shared_ptr<Group>> path{start};
  std::set<const Group*> seen;
  const auto walk = [&](const auto& self) -> bool {
    for (const auto& next : holding_up(*path.back())) {
      if (next == start) return true;
      if (!seen.insert(next.get()).second) continue;
      path.push_back(next);
      if (self(self)) return true;
      path.pop_back();
    }
    return false;
  };
  return walk(walk) ? path : std::vector<std::shared_ptr<Group>>{};
}

void fail_groups(const std::vector<std::shared_ptr<Group>>& groups, const std::string& what) {
  std::string text = what;
  for (const auto& group : groups)
    if (const Message* message = open_message(*group)) text += "; " + describe(*message);
  for (const auto& group : groups) group->failure = text;
  state().changed.notify();
}

/// Both sides have begun: the values move, seen by sanitizers.
void move(Message& mine) {
  Message& theirs = *mine.other;
  const Message &from = mine.sends ? mine : theirs, &to = mine.sends ? theirs : mine;
  acquire(&theirs.order);
  if (from.count > 0) std::memcpy(to.data, from.data, from.count * size_of(from.type));
  release(&mine.order);
  release(&theirs.order);
  const Quiet quiet;
  const std::lock_guard<Lock> guard(state().lock);
  mine.state = theirs.state = Message::State::done;
  state().changed.notify();
}

bool is_over(const Group& group) { return !group.failure.empty() || group.member->aborted; }

/// How long no stream has done anything or is about it.
struct Idleness {
  int64_t works = counted().works;
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  bool lasts(int milliseconds) {
    const auto now = std::chrono::steady_clock::now();
    if (const int64_t done = counted().works; done != works || Stream::any_works()) {  // a kernel under a sanitizer may take long
      works = done;
      since = now;
    }
    return milliseconds > 0 && now - since > std::chrono::milliseconds(milliseconds);
  }
};

enum class Next : uint8_t { move, look_again, end };

/// With the lock: messages whose other sides have begun, marked as moving; or a pause.
Next look(const std::shared_ptr<Group>& group, Idleness& idleness, std::vector<Message*>& to_move) {
  bool all_done = true, moving = false;
  for (const auto& message : group->messages) {
    if (message->state == Message::State::posted && message->other != nullptr && message->other->group->running && !is_over(*group) && !is_over(*message->other->group)) {
      message->state = message->other->state = Message::State::moving;
      to_move.push_back(message.get());
    }
    all_done = all_done && message->state == Message::State::done;
    moving = moving || message->state == Message::State::moving;
  }
  if (!to_move.empty()) return Next::move;
  if (all_done || (is_over(*group) && !moving)) return Next::end;
  for (const auto& message : group->messages)  // what this waits for is to be done
    if (message->state == Message::State::posted && message->other != nullptr && !message->other->group->running)
      message->other->group->stream->demand(message->other->group->place);
  if (const auto circle = circle_from(group); !circle.empty()) {
    fail_groups(circle, "deadlock: messages wait for each other");
  } else if (idleness.lasts(settings().communication_patience)) {
    std::vector<std::shared_ptr<Group>> waiting;
    for (const auto& each : state().groups)
      if (each->running) waiting.push_back(each);
    fail_groups(waiting, "deadlock: messages wait for what does not come");
  } else {
    state().changed.pause(state().lock, 50);
  }
  return Next::look_again;
}

/// In the stream's thread: until all messages have moved, or something ends the waiting.
void exchange(const std::shared_ptr<Group>& group) {
  Idleness idleness;
  for (Next next = Next::look_again; next != Next::end;) {
    std::vector<Message*> to_move;
    {
      const Quiet quiet;
      const std::lock_guard<Lock> guard(state().lock);
      next = look(group, idleness, to_move);
    }
    for (Message* const message : to_move) move(*message);
  }
}

/// The same with other processes, which nobody here knows more of than what they hand over.
void exchange_with_processes(Group& group) {
  const SharedWorld& world = *group.member->world->shared;
  std::vector<SharedWorld::Transfer> transfers(group.messages.size());
  auto last_progress = std::chrono::steady_clock::now();
  for (;;) {
    {
      const std::lock_guard<Lock> guard(state().lock);
      if (group.member->aborted) return;  // nothing more is taken or given: others would read the next message for the rest of this one
    }
    bool progress = false, all_done = true;
    for (size_t i = 0; i < transfers.size(); ++i) {
      const Message& message = *group.messages[i];
      SharedWorld::Transfer& transfer = transfers[i];
      if (transfer.done) continue;
      all_done = false;
      const size_t bytes = message.count * size_of(message.type);
      // Of messages with one rank the first goes first.
      const bool later = std::any_of(group.messages.begin(), group.messages.begin() + static_cast<std::ptrdiff_t>(i), [&](const auto& each) {
        return each->peer == message.peer && each->sends == message.sends && !transfers[static_cast<size_t>(&each - group.messages.data())].done;
      });
      if (later) continue;
      progress = (message.sends ? world.send(transfer, message.peer, message.data, bytes, message.type) : world.receive(transfer, message.peer, message.data, bytes, message.type)) || progress;
      if (!transfer.problem.empty()) throw std::runtime_error(transfer.problem);
    }
    if (all_done) return;
    const auto now = std::chrono::steady_clock::now();
    if (progress) {
      last_progress = now;
      continue;
    }
    {
      const std::lock_guard<Lock> guard(state().lock);
      for (const auto& message : group.messages)
        if (world.gone(message->peer)) group.member->other_gone = true;
    }
    const int patience = settings().communication_patience;
    if (patience > 0 && now - last_progress > std::chrono::milliseconds(patience)) throw std::runtime_error("deadlock: messages wait for what other processes do not do");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void begin(Group& group) {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(state().lock);
  if (group.before != nullptr) {
    group.before->stream->demand(group.before->place);
    state().changed.wait(state().lock, [&] { return group.before->over; });
    group.before.reset();
  }
  group.running = true;
  state().changed.notify();
}

/// What failed, "" for nothing.
std::string end(const std::shared_ptr<Group>& group) {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(state().lock);
  for (const auto& message : group->messages) {
    if (message->state == Message::State::done) continue;
    for (auto* queues : {&message->world->sends, &message->world->receives})
      for (auto& [pair, queue] : *queues) std::erase(queue, message.get());
    if (message->other != nullptr) message->other->other = nullptr;  // nobody will answer it any more
  }
  group->running = false;
  group->over = true;
  --group->member->under_way;
  std::erase(state().groups, group);
  state().changed.notify();
  return group->failure;
}

/// In the stream's thread.
void carry_out(const std::shared_ptr<Group>& group) {
  for (const auto& message : group->messages) release(&message->order);
  std::string failure;
  {
    const Stream::Blocked blocked;
    begin(*group);
    try {
      if (group->member->world->shared != nullptr) exchange_with_processes(*group);
      else exchange(group);
    } catch (const std::exception& error) {
      group->failure = error.what();
    }
    failure = end(group);
  }
  for (const auto& message : group->messages) acquire(&message->order);
  if (!failure.empty()) throw std::runtime_error(failure);
}

/// Finds the other side, and compares.
void post(Message& message) {
  World& world = *message.world;
  if (world.shared != nullptr) return;
  const std::pair<int, int> pair = message.sends ? std::pair{message.rank, message.peer} : std::pair{message.peer, message.rank};
  auto& others = message.sends ? world.receives[pair] : world.sends[pair];
  if (others.empty()) {
    (message.sends ? world.sends : world.receives)[pair].push_back(&message);
    return;
  }
  message.other = others.front();
  others.pop_front();
  message.other->other = &message;
  const Message &from = message.sends ? message : *message.other, &to = message.sends ? *message.other : message;
  if (from.count == to.count && from.type == to.type) return;
  const std::string text = "device " + std::to_string(world.devices[static_cast<size_t>(to.rank)]) + " receives " + std::to_string(to.count) + " values of type " +
                           std::to_string(to.type) + " from device " + std::to_string(world.devices[static_cast<size_t>(from.rank)]) + ", which sends " +
                           std::to_string(from.count) + " of type " + std::to_string(from.type);
  message.group->failure = message.other->group->failure = text;
}

}  // namespace

void launch(const std::shared_ptr<Group>& group) {
  const std::lock_guard<Lock> guard(state().lock);
  {
    const Quiet quiet;
    Member& member = *group->member;
    if (member.last != nullptr && !member.last->over && member.last->stream != group->stream) group->before = member.last;
    member.last = group;
    ++member.under_way;
    state().groups.push_back(group);
    for (const auto& message : group->messages) {
      message->group = group.get();
      if (message->sends) ++counted().messages;
    }
    ++counted().message_groups;
  }
  group->place = group->stream->enqueue([group] { carry_out(group); }, true);  // before anything can find it
  if (group->member->world->shared != nullptr) group->stream->demand(group->place);  // nobody here knows when the other process waits for it
  const Quiet quiet;
  for (const auto& message : group->messages) post(*message);
  state().changed.notify();
}

}  // namespace emulation::communication
