// Ranks that are processes with an emulated device each, started as torchrun does (tests/cuda/nccl_ranks.cpp).
#include <signal.h>

#include <thread>

#include "check.h"
#include "cuda/run_program.h"
#include "parallel/tcp_sockets.h"

namespace quire::test {

namespace {

std::vector<ProgramOutcome> run_ranks(int ranks, const std::string& mode) {
  const int port = port_of(listen_on(0));
  std::vector<ProgramOutcome> outcomes(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      // Ranks that end because another one did leave their threads as they are: no leak.
      const std::string command = fmt::format("TSAN_OPTIONS=halt_on_error=1:report_thread_leaks=0 RANK={} LOCAL_RANK={} WORLD_SIZE={} LOCAL_WORLD_SIZE={} MASTER_ADDR=localhost MASTER_PORT={} " QUIRE_BUILD_ROOT "/tests/cuda/nccl_ranks {} 2>&1", rank,
                                              rank, ranks, ranks, port, mode);
      outcomes[static_cast<size_t>(rank)] = run_command(command);
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(nccl_processes)

BOOST_AUTO_TEST_CASE(messages_and_collectives) {
  for (const char* mode : {"messages", "collectives"})
    for (int ranks = 2; ranks <= 4; ranks += 2)
      for (const ProgramOutcome& outcome : run_ranks(ranks, mode)) BOOST_TEST((outcome.exit_code == 0 && outcome.output == "well\n"), mode << ": " << outcome.output);
}

BOOST_AUTO_TEST_CASE(a_killed_rank_ends_those_that_wait_for_it_on_their_devices) {
  const std::vector<ProgramOutcome> outcomes = run_ranks(3, "killed");
  for (const int rank : {0, 2}) {
    const ProgramOutcome& outcome = outcomes[static_cast<size_t>(rank)];
    BOOST_TEST(outcome.exit_code == 1);
    BOOST_TEST(outcome.output.find("[communicator] rank 1 is gone") != std::string::npos, outcome.output);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
