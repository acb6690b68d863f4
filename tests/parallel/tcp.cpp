// Ranks as processes over TCP: how they find each other, what goes wrong when they do not, messages, ends.
#include "parallel/tcp.h"

#include <sys/socket.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "check.h"
#include "collective_case.h"
#include "parallel/processes.h"
#include "parallel/tcp_start.h"

namespace quire::test {

namespace {

/// Ranks that join at a free port and do the same.
std::vector<ProcessOutcome> joined(int ranks, const std::function<std::string(Communicator& world)>& body, double watchdog = 60) {
  const int port = free_port();
  return run_processes(ranks, [&](int rank) {
    announce(rank, ranks, port);
    CommunicatorOptions options{.watchdog_seconds = watchdog};
    options.report = [](const std::string&) {};
    const std::unique_ptr<Communicator> world = join_tcp(options, 60);
    return body(*world);
  });
}

void check_all_well(const std::vector<ProcessOutcome>& outcomes) {
  for (const ProcessOutcome& outcome : outcomes) BOOST_TEST((outcome.exit_code == 0 && outcome.text == "well"), outcome.exit_code << ": " << outcome.text);
}

/// Each rank starts as `announced` says (rank, size; negative: not at all), with this limit.
struct Announced {
  int rank, size;
  bool late = false;
};
std::vector<ProcessOutcome> started(const std::vector<Announced>& announced, double limit, int port) {
  return run_processes(static_cast<int>(announced.size()), [&](int process) -> std::string {
    const Announced& own = announced[static_cast<size_t>(process)];
    if (own.late) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    announce(own.rank, own.size, port);
    join_tcp({.watchdog_seconds = 5}, limit)->barrier();
    return "well";
  });
}

void check_text(const ProcessOutcome& outcome, const std::vector<std::string>& parts) {
  BOOST_TEST(outcome.exit_code == 1, outcome.text);
  BOOST_TEST((outcome.text.starts_with('[') && outcome.text.find('\n') == std::string::npos), outcome.text);
  for (const std::string& part : parts) BOOST_TEST(outcome.text.find(part) != std::string::npos, "'" << outcome.text << "' lacks '" << part << "'");
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tcp)

BOOST_AUTO_TEST_CASE(collectives_over_processes) {
  for (int ranks = 2; ranks <= 4; ++ranks)
    check_all_well(joined(ranks, [](Communicator& world) -> std::string {
      Rank rank;
      for (uint64_t round = 0; round < 5; ++round) collective_round(rank, world, round, 20000);
      const std::unique_ptr<Communicator> half = world.split(world.rank() % 2), again = world.split(0);
      for (uint64_t round = 0; round < 3; ++round) {
        collective_round(rank, *half, round, 3000);
        collective_round(rank, *again, round, 3000);
      }
      return "well";
    }));
}

BOOST_AUTO_TEST_CASE(more_than_the_system_keeps_goes_both_ways_at_once) {
  check_all_well(joined(2, [](Communicator& world) -> std::string {
    Rank rank;
    const int other = 1 - world.rank();
    constexpr int64_t elements = 8 << 20;
    const std::vector<float> own(elements, static_cast<float>(world.rank() + 1));
    const Tensor mine = Tensor::from<float>(rank, {elements}, own), theirs = Tensor::zeros(rank, {elements}, DType::f32), early = Tensor::zeros(rank, {3}, DType::f32);
    const std::unique_ptr<Communicator> beside = world.split(0);
    std::vector<Request> requests{world.send(mine, other, {}), world.send(mine.slice(0, 0, 3), other, {})};
    requests.push_back(world.receive(theirs, other, {}));
    for (const Request& request : requests) request.wait();
    beside->barrier();
    world.receive(early, other, {}).wait();  // came long before it was asked for
    require(theirs.to_vector<float>() == std::vector<float>(elements, static_cast<float>(other + 1)), "a long message");
    require(early.to_vector<float>() == std::vector<float>(3, static_cast<float>(other + 1)), "an early message");
    return "well";
  }));
}

BOOST_AUTO_TEST_CASE(ranks_that_do_not_fit_together_are_told_so) {
  for (const bool late : {false, true}) {
    const std::vector<ProcessOutcome> sizes = started({{0, 3}, {1, 3, late}, {2, 4}}, 30, free_port());
    for (const ProcessOutcome& outcome : sizes) check_text(outcome, {"[start]", "rank 2 was started as one of 4 ranks (WORLD_SIZE)", "rank 0 as one of 3"});
  }
  const std::vector<ProcessOutcome> twice = started({{0, 3}, {1, 3}, {1, 3}}, 30, free_port());
  for (const ProcessOutcome& outcome : twice) check_text(outcome, {"[start]", "two processes were started as rank 1"});
  const std::vector<ProcessOutcome> none = started({{1, 2}}, 0.5, free_port());
  check_text(none[0], {"[start]", "rank 1 did not reach rank 0 at localhost:", "within 1 s", "refused"});
}

BOOST_AUTO_TEST_CASE(ranks_that_do_not_come_are_named) {
  const std::vector<ProcessOutcome> outcomes = started({{0, 4}, {2, 4}}, 1, free_port());
  for (const ProcessOutcome& outcome : outcomes) check_text(outcome, {"[start]", "ranks 1, 3 did not come within 1 s", "2 of 4 ranks are here"});
}

BOOST_AUTO_TEST_CASE(a_port_that_is_taken_is_named) {
  const Socket taken = listen_on(0);
  const std::vector<ProcessOutcome> outcomes = started({{0, 2}, {1, 2}}, 0.5, port_of(taken));
  check_text(outcomes[0], {"[start]", "port " + std::to_string(port_of(taken)), "Address already in use", "MASTER_PORT"});
  check_text(outcomes[1], {"[start]", "rank 1 did not reach rank 0"});  // who listens there says nothing
}

BOOST_AUTO_TEST_CASE(strangers_at_the_port_do_no_harm) {
  const int port = free_port();
  std::string reason;
  std::vector<Socket> strangers;
  std::thread knocking([&] {
    for (int i = 0; i < 40; ++i) {
      std::optional<Socket> stranger = connect_to({"localhost", port}, std::chrono::milliseconds(100), reason);
      const std::string said = i % 3 == 0 ? "GET / HTTP/1.1\r\n\r\n" : i % 3 == 1 ? "Quir" : std::string(100, '\0');
      if (stranger) write_some(*stranger, said.data(), static_cast<int64_t>(said.size()));
      if (stranger && i % 2 == 0) strangers.push_back(std::move(*stranger));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  const std::vector<ProcessOutcome> outcomes = run_processes(3, [&](int rank) -> std::string {
    std::this_thread::sleep_for(std::chrono::milliseconds(50 * rank));
    announce(rank, 3, port);
    join_tcp({.watchdog_seconds = 30}, 30)->barrier();
    return "well";
  });
  knocking.join();
  check_all_well(outcomes);
}

BOOST_AUTO_TEST_CASE(a_file_tells_where_rank_0_is) {
  const std::string file = (std::filesystem::temp_directory_path() / ("quire-start-" + std::to_string(::getpid()))).string();
  for (const bool stale : {false, true}) {
    if (stale) std::ofstream(file) << "localhost " << free_port() << "\n";  // of a job that is gone
    const std::vector<ProcessOutcome> outcomes = run_processes(3, [&](int rank) -> std::string {
      announce(rank, 3, 1);
      ::setenv("QUIRE_MASTER_FILE", file.c_str(), 1);
      if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      join_tcp({.watchdog_seconds = 30}, 30)->barrier();
      return "well";
    });
    check_all_well(outcomes);
    BOOST_TEST(!std::filesystem::exists(file));
  }
}

BOOST_AUTO_TEST_CASE(wrong_variables_are_named) {
  const auto with = [](const char* variable, const char* value) {
    return run_processes(1, [&](int) -> std::string {
      announce(1, 2, 29500);
      if (value == nullptr) ::unsetenv(variable);
      else ::setenv(variable, value, 1);
      join_tcp({}, 1);
      return "well";
    })[0];
  };
  check_text(with("RANK", "2"), {"[start]", "RANK is '2'", "0 to 1"});
  check_text(with("RANK", "one"), {"RANK is 'one'"});
  check_text(with("WORLD_SIZE", "0"), {"WORLD_SIZE is '0'"});
  check_text(with("MASTER_PORT", "70000"), {"MASTER_PORT is '70000'", "1 to 65535"});
  check_text(with("MASTER_PORT", nullptr), {"MASTER_PORT is not set", "torchrun"});
  check_text(with("MASTER_ADDR", nullptr), {"MASTER_ADDR is not", "QUIRE_MASTER_FILE"});
  check_text(with("MASTER_ADDR", "no.such.host.invalid"), {"did not reach rank 0 at no.such.host.invalid"});
}

BOOST_AUTO_TEST_CASE(what_torchrun_announces_is_found) {
  const std::vector<ProcessOutcome> outcomes = run_processes(1, [](int) -> std::string {
    for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_ID"}) ::unsetenv(variable);
    announce(2, 4, 29500);
    ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    const AnnouncedRanks found = announced_ranks();
    require(found.size == 4 && found.rank == 2 && found.local_size == 4 && found.local_rank == 2 && found.starter == "torchrun", "torchrun's variables");
    require(meeting_of_environment().master.port == 29501, "the port beside the agent's");
    ::setenv("TORCHELASTIC_USE_AGENT_STORE", "False", 1);
    require(meeting_of_environment().master.port == 29500 && meeting_of_environment().master.host == "localhost", "the port");
    ::setenv("WORLD_SIZE", "1", 1);
    ::setenv("RANK", "0", 1);
    require(announced_ranks().size == 0 && join_announced({})->size() == 1, "one rank needs nobody");
    return "well";
  });
  check_all_well(outcomes);
}

BOOST_AUTO_TEST_CASE(a_rank_that_is_gone_is_noticed) {
  const std::vector<ProcessOutcome> outcomes = joined(3, [](Communicator& world) -> std::string {
    Rank rank;
    const Tensor values = Tensor::zeros(rank, {4}, DType::f32);
    world.barrier();
    if (world.rank() == 1) ::kill(::getpid(), SIGKILL);
    world.receive(values, 1, {.kind = MessageKind::activations, .step = 3}).wait();
    return "well";
  });
  for (const int rank : {0, 2}) check_text(outcomes[static_cast<size_t>(rank)], {"[communicator] rank " + std::to_string(rank) + " waits for activations for step 3 from rank 1, which is gone"});
  BOOST_TEST(outcomes[1].exit_code == 128 + SIGKILL);
}

BOOST_AUTO_TEST_CASE(an_abort_reaches_everybody) {
  const std::vector<ProcessOutcome> outcomes = joined(3, [](Communicator& world) -> std::string {
    world.barrier();
    if (world.rank() == 2) {
      world.abort("out of patience");
      return "well";
    }
    world.barrier();  // in which rank 2 does not join
    return "well";
  });
  for (const int rank : {0, 1}) check_text(outcomes[static_cast<size_t>(rank)], {"[communicator] the ranks were ended: out of patience"});
  BOOST_TEST(outcomes[2].text == "well");
}

BOOST_AUTO_TEST_CASE(the_watchdog_ends_a_wait) {
  const std::vector<ProcessOutcome> outcomes = joined(2, [](Communicator& world) -> std::string {
    Rank rank;
    const Tensor values = Tensor::zeros(rank, {4}, DType::f32);
    if (world.rank() == 0) world.receive(values, 1, {.kind = MessageKind::activations, .step = 3}).wait();
    else std::this_thread::sleep_for(std::chrono::seconds(2));
    return "well";
  }, 0.5);
  check_text(outcomes[0], {"rank 0 waited for activations for step 3 from rank 1 longer than the watchdog's 0.5 s"});
}

BOOST_AUTO_TEST_CASE(another_size_or_kind_fails_on_the_receiving_rank) {
  for (const bool early : {false, true})
    for (const bool kind : {false, true}) {
      const std::vector<ProcessOutcome> outcomes = joined(2, [&](Communicator& world) -> std::string {
        Rank rank;
        const Tensor three = Tensor::zeros(rank, {3}, DType::f32), four = Tensor::zeros(rank, {4}, DType::f32);
        const std::unique_ptr<Communicator> beside = world.split(0);
        if (world.rank() == 0) {
          if (!early) beside->barrier();
          world.send(kind ? four : three, 1, {.kind = MessageKind::activations}).wait();
          if (early) beside->barrier();
          return "well";
        }
        if (early) beside->barrier();
        const Request wrong = world.receive(four, 0, {.kind = kind ? MessageKind::boundaries : MessageKind::activations});
        if (!early) beside->barrier();
        wrong.wait();
        return "well";
      });
      check_text(outcomes[1], {kind ? "rank 1 expects boundaries of 16 bytes from rank 0, which sends activations of 16 bytes" : "rank 1 expects activations of 16 bytes from rank 0, which sends activations of 12 bytes"});
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
