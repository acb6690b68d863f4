// Stop signals to a running train: the step is finished and saved, the same command goes on, and the end is that of a run that never stopped.
#include <chrono>
#include <thread>

#include "programs/fixture.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(stop_signals)

BOOST_AUTO_TEST_CASE(a_stopped_run_says_how_to_resume_and_ends_with_the_same_bits) {
  Workshop workshop;
  const std::vector<std::string> steps{"train.max_steps=300", "checkpoint.interval=0", "eval.interval=100"};
  run_well(workshop.training("whole", steps));
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string run = fmt::format("stopped-{}", signal);
    int stopped = 0;
    for (const char* seen : {"step   2/300", "step  70/300"}) {
      Program program(workshop.training(run, steps));
      BOOST_REQUIRE(program.wait_for(seen));
      program.send(signal);
      const ProgramResult result = program.wait();
      BOOST_TEST(result.status == 0);
      BOOST_TEST(result.err == "");
      const std::string last = result.out.substr(result.out.rfind('\n', result.out.size() - 2) + 1);
      if (last.find("stopped by") == std::string::npos) continue;  // the run ended before the signal was seen
      ++stopped;
      BOOST_TEST(last.find(signal == SIGINT ? "SIGINT" : "SIGTERM") != std::string::npos, last);
      BOOST_TEST(last.find("same command resumes") != std::string::npos, last);
      // Nothing beyond the saved step is on record.
      const std::vector<StepMetrics> metrics = metrics_of(workshop.config(run, steps));
      const CheckpointSearch saved = latest_checkpoint(disk(), workshop.path(run));
      BOOST_TEST(saved.step == metrics.back().step);
      BOOST_TEST(last.find(fmt::format("after step {};", saved.step)) != std::string::npos, last);
    }
    BOOST_TEST(stopped >= 1);
    const ProgramResult rest = run_well(workshop.training(run, steps));
    BOOST_TEST(rest.out.find("resuming after step") != std::string::npos);
    check_same_training(workshop.config("whole", steps), workshop.config(run, steps), run);
  }
}

BOOST_AUTO_TEST_CASE(a_second_interrupt_ends_at_once_and_the_next_start_resumes) {
  Workshop workshop;
  const std::vector<std::string> slow{"train.seq_len=2048", "train.global_batch_size=64", "train.microbatch_size=1", "data.epochs=0", "data.strategy=concat",
                                      "train.max_steps=6", "checkpoint.interval=1", "eval.interval=0"};
  Program program(workshop.training("slow", slow));
  // Both signals must come within one step: its length is taken from the step before, and the first signal is sent in its middle.
  BOOST_REQUIRE(program.wait_for("step 1/6"));
  const auto begin = std::chrono::steady_clock::now();
  BOOST_REQUIRE(program.wait_for("step 2/6"));
  std::this_thread::sleep_for((std::chrono::steady_clock::now() - begin) / 2);
  program.send(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  program.send(SIGINT);
  const ProgramResult result = program.wait();
  BOOST_TEST(result.status == 130);
  BOOST_TEST(result.out.find("stopped by") == std::string::npos);
  const ProgramResult next = run_well(workshop.training("slow", slow));
  BOOST_TEST(next.out.find("done: 6 steps") != std::string::npos, next.out);
  run_well(workshop.training("slow-whole", slow));
  check_same_training(workshop.config("slow-whole", slow), workshop.config("slow", slow), "interrupted twice");
}

BOOST_AUTO_TEST_SUITE_END()
