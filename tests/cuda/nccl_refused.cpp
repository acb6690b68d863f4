// Messages between devices that go wrong: one clear error, nothing hangs, whoever waits is ended.
#include <atomic>
#include <mutex>
#include <thread>

#include "check.h"
#include "cuda/nccl_case.h"
#include "parallel/collective_case.h"
#include "runtime/accelerator.h"
#include "runtime/cuda/nccl_library.h"
#include "runtime/cuda/shared_library.h"

namespace quire::test {

namespace {

constexpr MessageLabel label{MessageKind::activations, 17, 1, 3};

/// Waits for a message that nobody sends, as a training step would: on the device, then for its result. Returns by an error.
void wait_in_vain(Rank& rank, Communicator& world) {
  const Tensor into = Tensor::zeros(rank, {64}, DType::f32);
  world.receive(into, 1 - world.rank(), label).wait();
  into.to_vector<float>();
  for (;;) {
    world.poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void look_until_ended(Communicator& world) {
  for (;;) {
    world.poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Two ranks on the devices 0 and 1, connected.
void on_two(const CommunicatorOptions& options, const std::function<void(Rank& rank, Communicator& world)>& body) {
  run_local_on_devices(2, options, [&](Communicator& world) {
    Rank rank(on_device(world.rank()));
    world.connect(rank, all_pairs(2));
    body(rank, world);
  });
}

void send_and_receive(Rank& rank, Communicator& world) {
  const Tensor values = Tensor::zeros(rank, {64}, DType::f32);
  if (world.rank() == 0) world.send(values, 1, label).wait();
  else world.receive(values, 0, label).wait();
  rank.accelerator()->synchronize();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(nccl_refused)

BOOST_AUTO_TEST_CASE(library) {
  BOOST_TEST(nccl_version() == nccl_version_text(NCCL_VERSION_CODE));
  BOOST_TEST(nccl_version_text(21805) == "2.18.5");
  BOOST_TEST(nccl_version_text(2804) == "2.8.4");
  check_nccl_version(21801);
  check_error<UnsupportedError>([] { check_nccl_version(21703); }, {"[cuda]", "found: NCCL 2.17.3", "needed: 2.18.1", "several ranks"});
  const emulation::Fresh fresh;
  change_settings([](emulation::Settings& settings) { settings.libraries = false; });
  check_error<UnsupportedError>([] { SharedLibrary({"libnccl.so.2"}, "several ranks on devices"); }, {"[cuda]", "libnccl.so.2", "several ranks on devices"});
}

BOOST_AUTO_TEST_CASE(calls_in_the_wrong_order) {
  const emulation::Fresh fresh;
  const auto refused = [](const std::function<void(Rank&, Communicator&)>& body, std::initializer_list<std::string> parts) {
    check_error<StateError>(
        [&] {
          run_local_on_devices(2, {.watchdog_seconds = 60}, [&](Communicator& world) {
            Rank rank(on_device(world.rank()));
            body(rank, world);
          });
        },
        parts);
  };
  refused([](Rank& rank, Communicator& world) { world.send(Tensor::zeros(rank, {3}, DType::f32), 1 - world.rank(), label); }, {"[nccl]", "before `connect`"});
  refused(
      [](Rank& rank, Communicator& world) {
        world.connect(rank);
        world.send(Tensor::zeros(rank, {3}, DType::f32), 1 - world.rank(), label);
      },
      {"[nccl]", "activations for stage 1, microbatch 3, step 17 of device memory from rank", "without `connect`"});
  refused(
      [](Rank& rank, Communicator& world) {
        world.connect(rank);
        const Tensor values = Tensor::zeros(rank, {3}, DType::f32);
        world.together([&] { world.send(values, 1 - world.rank(), label).wait(); });
      },
      {"[nccl]", "within `together`"});
  refused([](Rank& rank, Communicator& world) { world.connect(rank, std::vector<std::array<int, 2>>{{0, 2}}); }, {"[nccl]", "from rank 0 to rank 2 of a group of 2"});
  refused(
      [](Rank& rank, Communicator& world) {
        world.connect(rank);
        Rank other(on_device(world.rank() + 4));
        world.connect(other);
      },
      {"[nccl]", "one device for each rank"});
}

BOOST_AUTO_TEST_CASE(two_ranks_on_one_device) {
  const emulation::Fresh fresh;
  change_settings([](emulation::Settings& settings) { settings.communication_patience = 300; });
  check_error<CommunicationError>(
      [] {
        run_local_on_devices(2, {.watchdog_seconds = 60}, [](Communicator& world) {
          Rank rank(on_device(0));
          world.connect(rank);
        });
      },
      {"[nccl] ncclGroupEnd", "invalid usage"});
}

BOOST_AUTO_TEST_CASE(calls_that_fail_are_named) {
  for (const char* function : {"ncclGetUniqueId", "ncclGroupStart", "ncclGroupEnd", "ncclSend", "ncclRecv"}) {
    const emulation::Fresh fresh;
    change_settings([](emulation::Settings& settings) { settings.communication_patience = 300; });
    emulation::fail_call(function, 1, ncclSystemError);
    // Of both ranks' errors the first one counts: that of the rank whose call it was.
    check_error<Error>([&] { on_two({.watchdog_seconds = 60}, send_and_receive); }, {"[nccl] ", std::string(function), "unhandled system error"});
  }
}

BOOST_AUTO_TEST_CASE(another_size_fails_on_the_device) {
  const emulation::Fresh fresh;
  check_error<Error>(
      [] {
        on_two({.watchdog_seconds = 60}, [](Rank& rank, Communicator& world) {
          const Tensor values = Tensor::zeros(rank, {3 + world.rank()}, DType::f32);
          if (world.rank() == 0) world.send(values, 1, label).wait();
          else world.receive(values, 0, label).wait();
          rank.accelerator()->synchronize();
        });
      },
      {"device 1 receives 16 values", "from device 0, which sends 12"});
}

BOOST_AUTO_TEST_CASE(a_wait_on_the_device_ends_with_the_watchdog_and_its_sentence) {
  const emulation::Fresh fresh;
  change_settings([](emulation::Settings& settings) { settings.communication_patience = 0; });  // NCCL itself waits for ever
  std::string said;
  CommunicatorOptions options;
  options.report = [&](const std::string& sentence) { said += sentence + "\n"; };
  check_error<CommunicationError>(
      [&] {
        on_two(options, [](Rank& rank, Communicator& world) {
          world.set_watchdog(0.3);
          if (world.rank() == 0) wait_in_vain(rank, world);
          look_until_ended(world);
        });
      },
      {"[communicator] rank 0 waited for activations for stage 1, microbatch 3, step 17 from rank 1 longer than the watchdog's 0.3 s"});
  BOOST_TEST(said.find("rank 0 waits for activations for stage 1, microbatch 3, step 17 from rank 1 since") == 0u, said);
}

BOOST_AUTO_TEST_CASE(a_rank_that_fails_ends_those_that_wait_on_their_devices) {
  const emulation::Fresh fresh;
  change_settings([](emulation::Settings& settings) { settings.communication_patience = 0; });
  check_error<DataError>(
      [&] {
        on_two({}, [](Rank& rank, Communicator& world) {
          if (world.rank() == 0) wait_in_vain(rank, world);
          fail<DataError>("test", "rank 1 has an error of its own");
        });
      },
      {"an error of its own"});
}

BOOST_AUTO_TEST_CASE(an_abort_ends_those_that_wait_on_their_devices) {
  const emulation::Fresh fresh;
  change_settings([](emulation::Settings& settings) { settings.communication_patience = 0; });
  check_error<AbortedError>(
      [&] {
        on_two({}, [](Rank& rank, Communicator& world) {
          if (world.rank() == 0) wait_in_vain(rank, world);
          world.abort("enough");
        });
      },
      {"enough"});
}

BOOST_AUTO_TEST_CASE(an_asynchronous_error_is_found) {
  const emulation::Fresh fresh;
  change_settings([](emulation::Settings& settings) { settings.communication_patience = 0; });
  check_error<CommunicationError>(
      [&] {
        on_two({}, [](Rank& rank, Communicator& world) {
          world.barrier();
          if (world.rank() == 0) emulation::fail_call("ncclCommGetAsyncError", 1, ncclRemoteError);
          wait_in_vain(rank, world);
        });
      },
      {"[nccl] messages between devices", "remote process exited"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
