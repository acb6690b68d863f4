#include "parallel/measured_times.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>
#include <map>
#include <tuple>

#include "runtime/error.h"

namespace quire {
namespace {

constexpr int64_t span_numbers = 5, message_numbers = 6;

MessageLabel label_of(const char* purpose) { return {MessageKind::control, -1, -1, -1, purpose}; }

void put(std::vector<int64_t>& numbers, const Action& action) {
  numbers.insert(numbers.end(), {static_cast<int64_t>(action.kind), action.stage, action.microbatch});
}

void put(std::vector<int64_t>& numbers, const std::vector<PassTimes::Message>& messages) {
  for (const PassTimes::Message& message : messages) {
    put(numbers, message.consumer);
    numbers.insert(numbers.end(), {message.peer, message.bytes, message.time});
  }
}

/// Numbers of spans, sent and received messages, then these.
std::vector<int64_t> packed(const PassTimes& times) {
  std::vector<int64_t> numbers{static_cast<int64_t>(times.spans.size()), static_cast<int64_t>(times.sent.size()), static_cast<int64_t>(times.received.size())};
  for (const PassTimes::Span& span : times.spans) {
    put(numbers, span.action);
    numbers.insert(numbers.end(), {span.begin, span.end});
  }
  put(numbers, times.sent);
  put(numbers, times.received);
  return numbers;
}

Action action_from(const int64_t* at) { return {static_cast<ActionKind>(at[0]), at[1], at[2]}; }

std::vector<PassTimes::Message> messages_from(const int64_t*& at, int64_t count) {
  std::vector<PassTimes::Message> messages;
  for (; count > 0; --count, at += message_numbers) messages.push_back({action_from(at), at[3], at[4], at[5]});
  return messages;
}

PassTimes unpacked(const std::vector<int64_t>& numbers) {
  PassTimes times;
  const int64_t* at = numbers.data() + 3;
  for (int64_t i = 0; i < numbers[0]; ++i, at += span_numbers) times.spans.push_back({action_from(at), at[3], at[4]});
  times.sent = messages_from(at, numbers[1]);
  times.received = messages_from(at, numbers[2]);
  return times;
}

/// All ranks' on rank 0, by point-to-point messages; nothing elsewhere.
std::vector<PassTimes> gather_times(Rank& rank, Communicator& group, const PassTimes& own) {
  const std::vector<int64_t> mine = packed(own);
  const auto size = static_cast<int64_t>(mine.size());
  const Tensor sizes = Tensor::zeros(rank, {group.size()}, DType::i64, Category::other);
  const Tensor one = Tensor::from<int64_t>(rank, {1}, std::span(&size, 1), Category::other);
  group.all_gather(rank, one, sizes, label_of("sizes of traces"));
  if (group.rank() != 0) {
    group.send(Tensor::from<int64_t>(rank, {size}, mine, Category::other), 0, label_of("trace")).wait();
    return {};
  }
  std::vector<PassTimes> all{own};
  const std::vector<int64_t> expected = sizes.to_vector<int64_t>();
  for (int other = 1; other < group.size(); ++other) {
    const Tensor theirs = Tensor::empty(rank, {expected[static_cast<size_t>(other)]}, DType::i64, Category::other);
    group.receive(theirs, other, label_of("trace")).wait();
    all.push_back(unpacked(theirs.to_vector<int64_t>()));
  }
  return all;
}

/// One boot of one kernel has one steady clock; "" where that can not be told.
std::string boot_of_machine() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

int64_t own_clock(int) { return steady_nanoseconds(); }

}  // namespace

int64_t steady_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ClockOffsets measure_clocks(Rank& rank, Communicator& group, int rounds) {
  const std::vector<std::string> boots = group.gather_texts(boot_of_machine(), label_of("machines of ranks"));
  const bool one = group.size() == 1 || (!boots[0].empty() && std::all_of(boots.begin(), boots.end(), [&](const std::string& boot) { return boot == boots[0]; }));
  if (!one) return ping_clocks(rank, group, rounds, own_clock);
  ClockOffsets clocks;
  clocks.nanoseconds.assign(static_cast<size_t>(group.size()), 0);
  return clocks;
}

ClockOffsets ping_clocks(Rank& rank, Communicator& group, int rounds, int64_t (*now)(int rank)) {
  const int self = group.rank();
  const MessageLabel label = label_of("clock");
  const Tensor message = Tensor::zeros(rank, {1}, DType::i64, Category::other);
  std::vector<int64_t> result(static_cast<size_t>(group.size()) + 1, 0);  // offsets, then the uncertainty
  for (int other = 1; other < group.size(); ++other) {
    int64_t shortest = std::numeric_limits<int64_t>::max();
    for (int round = 0; round < rounds && (self == 0 || self == other); ++round) {
      if (self == other) {
        group.receive(message, 0, label).wait();
        const int64_t time = now(self);
        write<int64_t>(rank, message, std::span(&time, 1));
        group.send(message, 0, label).wait();
        continue;
      }
      const int64_t begin = now(self);
      group.send(message, other, label).wait();
      group.receive(message, other, label).wait();
      const int64_t end = now(self);
      if (end - begin >= shortest) continue;
      shortest = end - begin;
      result[static_cast<size_t>(other)] = begin + (end - begin) / 2 - message.to_vector<int64_t>().at(0);
      result.back() = std::max(result.back(), shortest / 2);
    }
  }
  const Tensor all = Tensor::from<int64_t>(rank, {static_cast<int64_t>(result.size())}, result, Category::other);
  group.broadcast(rank, all, 0, label);
  result = all.to_vector<int64_t>();
  ClockOffsets clocks{result, false, result.back()};
  clocks.nanoseconds.pop_back();
  return clocks;
}

Timeline gather_timeline(Rank& rank, Communicator& group, const PassTimes& own, const ClockOffsets& clocks) {
  const std::vector<PassTimes> all = gather_times(rank, group, own);
  Timeline timeline;
  timeline.name = own.schedule;
  if (all.empty()) return timeline;
  int64_t first = std::numeric_limits<int64_t>::max();
  for (size_t r = 0; r < all.size(); ++r)
    for (const PassTimes::Span& span : all[r].spans) first = std::min(first, span.begin + clocks.nanoseconds[r]);
  const auto seconds = [&](size_t r, int64_t time) { return static_cast<double>(time + clocks.nanoseconds[r] - first) * 1e-9; };
  std::map<int64_t, int64_t> number;  // in the group, by world rank
  for (int r = 0; r < group.size(); ++r) number[group.world_rank(r)] = r;
  using Key = std::tuple<int64_t, int64_t, bool, int64_t, int64_t>;  // from, to, whether a forward takes it, its stage and microbatch
  const auto key = [](int64_t from, int64_t to, const Action& consumer) { return Key{from, to, consumer.kind == ActionKind::forward, consumer.stage, consumer.microbatch}; };
  std::map<Key, double> arrived;
  for (size_t r = 0; r < all.size(); ++r) {
    std::vector<TimelineSpan>& spans = timeline.spans.emplace_back();
    for (const PassTimes::Span& span : all[r].spans) spans.push_back({span.action, seconds(r, span.begin), seconds(r, span.end)});
    for (const PassTimes::Message& message : all[r].received) arrived[key(number.at(message.peer), static_cast<int64_t>(r), message.consumer)] = seconds(r, message.time);
  }
  for (size_t r = 0; r < all.size(); ++r)
    for (const PassTimes::Message& message : all[r].sent) {
      const int64_t to = number.at(message.peer);
      const auto end = arrived.find(key(static_cast<int64_t>(r), to, message.consumer));
      if (end == arrived.end()) fail<StateError>("trace", "rank {} sent a message for {} that rank {} has not noted", r, to_string(message.consumer), to);
      const double begin = seconds(r, message.time);
      timeline.transfers.push_back({message.consumer, static_cast<int64_t>(r), to, message.bytes, begin, std::max(begin, end->second)});
    }
  return timeline;
}

}  // namespace quire
