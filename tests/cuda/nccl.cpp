// Messages and collectives of device memory between ranks that are threads with an emulated device each, against the values that they should have.
#include "parallel/nccl.h"

#include <atomic>
#include <deque>
#include <random>

#include "check.h"
#include "cuda/nccl_case.h"
#include "parallel/collective_case.h"
#include "runtime/accelerator.h"
#include "runtime/add.h"
#include "runtime/dispatch.h"

namespace quire::test {

namespace {

struct PlannedMessage {
  int from, to;
  int64_t elements;
  DType dtype;
  int lag;  ///< how many messages of its receiver later the receiver waits for it
};

std::vector<PlannedMessage> random_messages(int ranks, int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t limit) { return static_cast<int>(random() % limit); };
  std::vector<PlannedMessage> plan;
  for (int i = 0; i < count; ++i) {
    const int from = below(static_cast<uint64_t>(ranks));
    const int to = (from + 1 + below(static_cast<uint64_t>(ranks) - 1)) % ranks;
    constexpr DType types[] = {DType::f32, DType::bf16, DType::i64};
    plan.push_back({from, to, random() % 8 == 0 ? 0 : 1 + below(600), types[below(3)], below(4)});
  }
  return plan;
}

std::vector<int64_t> words_of(int message, int64_t count) {
  std::vector<int64_t> words(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) words[static_cast<size_t>(i)] = message * 10007 + i;
  return words;
}

/// A tensor of the message's type whose bits are known, as it comes out of the device's work.
Tensor content(Rank& rank, const PlannedMessage& message, int number) {
  if (message.dtype == DType::i64) {
    const std::vector<int64_t> words = words_of(number, message.elements);
    return Tensor::from<int64_t>(rank, {message.elements}, words);
  }
  std::vector<float> half(static_cast<size_t>(message.elements));
  for (size_t i = 0; i < half.size(); ++i) half[i] = static_cast<float>((number + static_cast<int>(i)) % 100) / 2;
  if (message.dtype == DType::f32) {
    const Tensor values = Tensor::from<float>(rank, {message.elements}, half);
    dispatch(rank, AddArgs{DType::f32, message.elements, values.raw(), values.raw()});
    return values;
  }
  std::vector<bf16> narrow(half.size());
  for (size_t i = 0; i < half.size(); ++i) narrow[i] = bf16(2 * half[i]);
  return Tensor::from<bf16>(rank, {message.elements}, narrow);
}

void check_content(const Tensor& found, const PlannedMessage& message, int number) {
  if (message.dtype == DType::i64) return require(found.to_vector<int64_t>() == words_of(number, message.elements), "integers of message " + std::to_string(number));
  std::vector<float> values(static_cast<size_t>(message.elements));
  if (message.dtype == DType::f32) values = found.to_vector<float>();
  else std::ranges::transform(found.to_vector<bf16>(), values.begin(), [](bf16 value) { return static_cast<float>(value); });
  for (size_t i = 0; i < values.size(); ++i) require(values[i] == static_cast<float>((number + static_cast<int>(i)) % 100), "values of message " + std::to_string(number));
}

/// Every rank goes through the plan in its order, which is right under synchronous sends.
void carry_out(Rank& rank, Communicator& world, const std::vector<PlannedMessage>& plan) {
  struct Coming {
    int number, left;
    Tensor tensor;
    Request request;
  };
  std::deque<Coming> coming;
  std::vector<Request> sends;
  std::vector<std::pair<int, Tensor>> arrived;
  const auto take = [&] {
    coming.front().request.wait();
    const Tensor copied = Tensor::empty(rank, coming.front().tensor.shape(), coming.front().tensor.dtype());
    copy(rank, coming.front().tensor, copied);  // the message's own memory is free again for what comes
    arrived.emplace_back(coming.front().number, copied);
    coming.pop_front();
  };
  for (int number = 0; number < static_cast<int>(plan.size()); ++number) {
    const PlannedMessage& message = plan[static_cast<size_t>(number)];
    const MessageLabel label{MessageKind::activations, 1, 0, number};
    if (message.from == world.rank()) {
      while (!coming.empty()) take();  // what a send may have been computed from
      sends.push_back(world.send(content(rank, message, number), message.to, label));
    } else if (message.to == world.rank()) {
      const Tensor into = Tensor::empty(rank, {message.elements}, message.dtype);
      coming.push_back({number, message.lag, into, world.receive(into, message.from, label)});
    }
    while (!coming.empty() && --coming.front().left < 0) take();
  }
  while (!coming.empty()) take();
  for (const Request& sent : sends) sent.wait();
  for (const auto& [number, tensor] : arrived) check_content(tensor, plan[static_cast<size_t>(number)], number);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(nccl_messages)

BOOST_AUTO_TEST_CASE(messages_of_any_size_and_type_arrive_in_order) {
  for (const emulation::Pace pace : all_paces)
    for (int ranks = 2; ranks <= 4; ++ranks) {
      const emulation::Fresh fresh;
      set_pace(pace);
      const std::vector<PlannedMessage> plan = random_messages(ranks, 60, static_cast<uint64_t>(ranks));
      const auto body = [&](Communicator& world, Device device) {
        Rank rank(RankOptions{.device = device, .poison = true});
        world.connect(rank, all_pairs(ranks));
        carry_out(rank, world, plan);
      };
      run_local_on_devices(ranks, {.watchdog_seconds = 60}, [&](Communicator& world) { body(world, {DeviceKind::cuda, world.rank()}); });
      run_local(ranks, {.watchdog_seconds = 60}, [&](Communicator& world) { body(world, {}); });
    }
}

BOOST_AUTO_TEST_CASE(collectives_give_the_bits_of_adding_in_the_order_of_ranks) {
  for (const emulation::Pace pace : all_paces)
    for (int ranks = 2; ranks <= 4; ++ranks) {
      const emulation::Fresh fresh;
      set_pace(pace);
      run_local_on_devices(ranks, {.watchdog_seconds = 60}, [&](Communicator& world) {
        Rank rank(on_device(world.rank()));
        for (uint64_t round = 0; round < 3; ++round) collective_round(rank, world, round * 10 + static_cast<uint64_t>(ranks), 3000);
      });
    }
}

BOOST_AUTO_TEST_CASE(nothing_waits_on_the_host) {
  const emulation::Fresh fresh;
  run_local_on_devices(2, {.watchdog_seconds = 60}, [&](Communicator& world) {
    Rank rank(on_device(world.rank()));
    world.connect(rank, all_pairs(2));
    const Tensor values = Tensor::zeros(rank, {100}, DType::f32);
    world.barrier();
    emulation::reset_counters();
    world.barrier();
    // Rank 1 does nothing until rank 0 has gone through all of this.
    if (world.rank() == 0) {
      const Request sent = world.send(values, 1, {}), received = world.receive(values, 1, {});
      sent.wait();
      received.wait();
      require(!world.send(values, 1, {}).done(), "nobody has asked for it");
    }
    world.barrier();
    if (world.rank() == 1) {
      world.receive(values, 0, {}).wait();
      world.send(values, 0, {}).wait();
      world.receive(values, 0, {}).wait();
    }
    world.barrier();
    const emulation::Counters counted = emulation::counters();
    require(counted.stream_synchronizations + counted.event_synchronizations + counted.device_synchronizations + counted.synchronous_copies == 0, "a host that waited");
    require(counted.messages == 3, "three messages");
    world.barrier();
    require(values.to_vector<float>() == std::vector<float>(100, 0), "zeros");
  });
}

BOOST_AUTO_TEST_CASE(ranks_may_be_far_ahead_of_their_devices) {
  const emulation::Fresh fresh;
  run_local_on_devices(2, {.watchdog_seconds = 60}, [&](Communicator& world) {
    Rank rank(on_device(world.rank()));
    world.connect(rank, all_pairs(2));
    const Tensor sum = Tensor::zeros(rank, {8}, DType::f32);
    for (int i = 0; i < 500; ++i) {  // more than are kept in a list before those that are over are looked for
      const std::vector<float> ones(8, 1.0f);
      const Tensor values = world.rank() == 0 ? Tensor::from<float>(rank, {8}, ones) : Tensor::empty(rank, {8}, DType::f32);
      if (world.rank() == 0) {
        world.send(values, 1, {});  // nobody waits: the request is dropped
      } else {
        world.receive(values, 0, {}).wait();
        dispatch(rank, AddArgs{DType::f32, 8, values.raw(), sum.raw()});
      }
    }
    if (world.rank() == 1) require(sum.to_vector<float>() == std::vector<float>(8, 500), "500 ones");
  });
}

BOOST_AUTO_TEST_CASE(groups_go_one_after_the_other_and_channels_do_not) {
  const emulation::Fresh fresh;
  run_local_on_devices(3, {.watchdog_seconds = 60}, [&](Communicator& world) {
    Rank rank(on_device(world.rank()));
    const std::unique_ptr<Communicator> first = world.split(0), second = world.split(world.rank() == 2 ? 1 : 0);
    require(first->size() == 3 && second->size() == (world.rank() == 2 ? 1 : 2), "sizes of groups");
    world.connect(rank, all_pairs(3));
    const Tensor a = Tensor::zeros(rank, {300}, DType::f32), b = Tensor::zeros(rank, {2000}, DType::f64), c = Tensor::zeros(rank, {300}, DType::f32);
    // A message that is received only after all the rest: whatever shared its queue would wait for ever.
    std::vector<Request> late;
    if (world.rank() == 0) late.push_back(world.send(c, 1, {}));
    for (int i = 0; i < 5; ++i) {
      first->all_reduce(rank, b, Reduction::sum);
      second->all_reduce(rank, a, Reduction::max);
    }
    if (world.rank() == 2) late.push_back(world.send(b, 0, {}));
    if (world.rank() == 0) world.receive(b, 2, {}).wait();
    if (world.rank() == 1) late.push_back(world.receive(c, 0, {}));
    for (const Request& request : late) request.wait();
    require(b.to_vector<double>() == std::vector<double>(2000, 0) && a.to_vector<float>() == std::vector<float>(300, 0) && c.to_vector<float>() == a.to_vector<float>(), "zeros");
  });
}

BOOST_AUTO_TEST_CASE(host_memory_goes_beside) {
  const emulation::Fresh fresh;
  run_local_on_devices(2, {}, [&](Communicator& world) {
    Rank device(on_device(world.rank())), host;
    world.connect(device, all_pairs(2));
    const int other = 1 - world.rank();
    const Tensor on_host = Tensor::zeros(host, {3}, DType::f32), there = Tensor::zeros(device, {3}, DType::f32);
    const std::vector<float> own(3, static_cast<float>(world.rank()));
    const Tensor mine = Tensor::from<float>(host, {3}, own), mine_there = Tensor::from<float>(device, {3}, own);
    const Request requests[] = {world.receive(on_host, other, {}), world.receive(there, other, {}), world.send(mine_there, other, {}), world.send(mine, other, {})};
    for (const Request& request : requests) request.wait();
    const std::vector<float> expected(3, static_cast<float>(other));
    require(on_host.to_vector<float>() == expected && there.to_vector<float>() == expected, "both kinds of memory");
    require(world.gather_texts("x").size() == 2 && world.name() == "local and nccl", "texts");
  });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
