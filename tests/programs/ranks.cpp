// Training by several processes, as a user starts it: the same numbers as one process, and an end to everything when one of them ends.
#include "programs/ranks.h"

using namespace quire;
using namespace quire::test;
namespace utf = boost::unit_test;

namespace {

struct Ranks : Workshop {
  /// train small.toml --ranks N with eight layers.
  std::vector<std::string> started(const std::string& run, int ranks, const std::vector<std::string>& overrides) const {
    std::vector<std::string> all{"model.n_layers=8"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    std::vector<std::string> args = training(run, all);
    if (ranks > 0) args.insert(args.end(), {"--ranks", std::to_string(ranks)});
    return args;
  }
  Config config_of(const std::string& run) const { return config(run, {"model.n_layers=8"}); }
};

/// Steps that last: long enough for signals to come between them.
const std::vector<std::string> many{"train.max_steps=100000", "data.epochs=0", "checkpoint.interval=0", "eval.interval=0"};

std::vector<std::string> with(std::vector<std::string> all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// Three stages, the first on rank 1, the last two on rank 0: full backwards, and split ones with the weight gradients a microbatch later.
std::string user_schedule(int64_t microbatches) {
  std::string first, rest;
  for (int64_t m = 0; m < microbatches; ++m) {
    const std::string comma = m == 0 ? "" : ",";
    rest += comma + fmt::format("1F{0},2F{0},2I{0},1I{0}", m) + (m > 0 ? fmt::format(",2W{0},1W{0}", m - 1) : "");
    first += comma + fmt::format("0F{0},0B{0}", m);
  }
  rest += fmt::format(",2W{0},1W{0}", microbatches - 1);
  return rest + "\n" + first + "\n";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(ranks, *utf::precondition(can_start_ranks))

BOOST_AUTO_TEST_CASE(pipelines_of_processes_write_the_metrics_of_one_process_to_the_bit) {
  Scratch scratch;
  const std::string tiny = std::string(QUIRE_SOURCE_ROOT) + "/tools/configs/tiny.toml";
  const auto metrics = [&](const std::string& run, const std::vector<std::string>& more) {
    run_well(with({tool("train"), tiny, "run.threads=1", "run.dir=" + scratch.path(run)}, more));
    std::vector<StepMetrics> all = read_metrics(disk(), scratch.path(run) + "/metrics.jsonl");
    BOOST_TEST(!all.empty());
    for (StepMetrics& m : all) {
      m = without_time(m);
      m.resident_bytes = 0;
    }
    return all;
  };
  const auto one = metrics("one", {});
  BOOST_TEST((metrics("1f1b", {"--ranks", "2", "distributed.pp=2", "distributed.pp_schedule=1f1b"}) == one));
  BOOST_TEST((metrics("gpipe", {"--ranks", "2", "distributed.pp=2", "distributed.pp_schedule=gpipe", "train.activation_checkpointing=full"}) == one));
  BOOST_TEST((metrics("interleaved", {"--ranks", "2", "distributed.pp=2", "distributed.pp_schedule=interleaved_1f1b", "distributed.pp_chunks=2"}) == one));
  BOOST_TEST((metrics("zb_h1", {"--ranks", "2", "distributed.pp=2", "distributed.pp_schedule=zb_h1", "train.activation_checkpointing=full"}) == one));
  BOOST_TEST((metrics("zb_v", {"--ranks", "2", "distributed.pp=2", "distributed.pp_schedule=zb_v"}) == one));
  // Written by hand; tiny.toml has the microbatches: the first stage on rank 1, the last one on rank 0.
  const std::string mine = scratch.path("mine.csv");
  std::ofstream(mine) << user_schedule(load_config(tiny).microbatches());
  BOOST_TEST((metrics("mine", {"--ranks", "2", "distributed.pp=2", "distributed.pp_schedule=" + mine, "train.activation_checkpointing=attention"}) == one));
  BOOST_TEST((metrics("four", {"--ranks", "4", "distributed.pp=4"}) == one));
  const auto untied = metrics("untied", {"model.tie_embeddings=false"});
  BOOST_TEST((metrics("untied-2", {"--ranks", "2", "distributed.pp=2", "model.tie_embeddings=false"}) == untied));
  BOOST_TEST((untied != one));  // the comparison sees another model
}

BOOST_AUTO_TEST_CASE(replicas_of_processes_agree_with_one_process) {
  Ranks workshop;
  run_well(workshop.started("one", 0, {}));
  run_well(workshop.started("four", 4, {"distributed.pp=2", "distributed.dp_replicate=2"}));
  const auto one = metrics_of(workshop.config_of("one")), four = metrics_of(workshop.config_of("four"));
  BOOST_REQUIRE(one.size() == four.size());
  for (size_t i = 0; i < one.size(); ++i) {
    BOOST_TEST(std::abs(one[i].loss - four[i].loss) <= 1e-5 * one[i].loss);
    BOOST_TEST(std::abs(one[i].grad_norm - four[i].grad_norm) <= 1e-4 * one[i].grad_norm);
    BOOST_TEST(one[i].valid_tokens == four[i].valid_tokens);
    BOOST_TEST(one[i].computed_pairs == four[i].computed_pairs);
  }
}

BOOST_AUTO_TEST_CASE(a_killed_rank_ends_the_run_and_is_named) {
  Ranks workshop;
  for (const int victim : {0, 1, 3}) {
    const std::string run = fmt::format("killed-{}", victim), mark = workshop.path(run);
    Program program(workshop.started(run, 4, with(many, {"distributed.pp=4"})));
    BOOST_REQUIRE(program.wait_for("step     20/100000"));
    ::kill(processes_of(mark).at(victim), SIGKILL);
    const auto begin = std::chrono::steady_clock::now();
    const ProgramResult result = program.wait();
    BOOST_TEST((std::chrono::steady_clock::now() - begin < std::chrono::seconds(10)));
    BOOST_TEST(result.status == 1);
    BOOST_TEST(result.err.find(fmt::format("rank {} killed by signal 9 at step ", victim)) != std::string::npos, result.err);
    BOOST_TEST(std::count(result.err.begin(), result.err.end(), '\n') == 1, result.err);
    BOOST_TEST(processes_left(mark).empty());
  }
}

BOOST_AUTO_TEST_CASE(a_stopped_rank_is_waited_for_no_longer_than_the_watchdog_allows) {
  Ranks workshop;
  const std::string mark = workshop.path("stopped");
  Program program(workshop.started("stopped", 4, with(many, {"distributed.pp=2", "distributed.dp_replicate=2", "distributed.watchdog_seconds=2"})));
  BOOST_REQUIRE(program.wait_for("step     20/100000"));
  ::kill(processes_of(mark).at(2), SIGSTOP);
  const ProgramResult result = program.wait();
  BOOST_TEST(result.status == 1);
  for (const int other : {0, 1, 3}) BOOST_TEST(result.err.find(fmt::format("rank {} waits ", other)) != std::string::npos, "rank " << other << ": " << result.err);
  BOOST_TEST(result.err.find("from rank 2") != std::string::npos, result.err);
  BOOST_TEST(result.err.find("step ") != std::string::npos, result.err);
  BOOST_TEST(processes_left(mark).empty());
}

BOOST_AUTO_TEST_CASE(a_stop_signal_saves_and_any_other_layout_goes_on) {
  Ranks workshop;
  const std::vector<std::string> steps{"train.max_steps=200", "checkpoint.interval=0", "eval.interval=0"};
  run_well(workshop.started("whole", 0, steps));
  const std::vector<std::pair<int, std::vector<std::string>>> layouts{{4, {"distributed.pp=4"}},
                                                                      {0, {}},
                                                                      {2, {"distributed.pp=2", "distributed.pp_schedule=interleaved_1f1b", "distributed.pp_chunks=2"}}};
  int stopped = 0;
  for (const auto& [count, layout] : layouts) {
    Program program(workshop.started("moved", count, with(steps, layout)));
    BOOST_REQUIRE(program.wait_for(fmt::format("step {:>3}/200", 40 * (stopped + 1))));
    program.send(stopped % 2 == 0 ? SIGTERM : SIGINT);
    const ProgramResult result = program.wait();
    BOOST_TEST(result.status == 0);
    BOOST_TEST(result.err == "");
    BOOST_TEST(result.out.find("stopped by") != std::string::npos, result.out);
    ++stopped;
  }
  run_well(workshop.started("moved", 0, steps));
  check_same_training(workshop.config_of("whole"), workshop.config_of("moved"), "moved through three layouts");
}

BOOST_AUTO_TEST_CASE(a_terminal_that_hangs_up_saves_and_ctrl_z_stops_the_ranks_too) {
  Ranks workshop;
  const std::string mark = workshop.path("signals");
  const auto state = [](pid_t pid) {
    const std::string stat = contents(fmt::format("/proc/{}/stat", pid));
    return stat.substr(stat.rfind(')') + 2, 1);
  };
  Program program(workshop.started("signals", 2, with(many, {"distributed.pp=2", "distributed.watchdog_seconds=30"})));
  BOOST_REQUIRE(program.wait_for("step     20/100000"));
  const std::map<int, pid_t> before = processes_of(mark);
  program.send(SIGTSTP);
  for (const int rank : {0, 1}) {
    for (int tenths = 0; tenths < 100 && state(before.at(rank)) != "T"; ++tenths) ::usleep(100000);
    BOOST_TEST(state(before.at(rank)) == "T");
  }
  program.send(SIGCONT);
  for (const int rank : {0, 1}) {
    for (int tenths = 0; tenths < 100 && state(before.at(rank)) == "T"; ++tenths) ::usleep(100000);
    BOOST_TEST(state(before.at(rank)) != "T");
  }
  program.send(SIGHUP);
  const ProgramResult result = program.wait();
  BOOST_TEST(result.status == 0);
  BOOST_TEST(result.err == "");
  BOOST_TEST(result.out.find("saved; the same command resumes") != std::string::npos);
  BOOST_TEST(latest_checkpoint(disk(), mark).found());
  BOOST_TEST(processes_left(mark).empty());
}

BOOST_AUTO_TEST_CASE(mpirun_alone_starts_ranks_that_join) {
  Ranks workshop;
  run_well(workshop.started("one", 0, {}));
  std::vector<std::string> args{path_of_program("mpirun"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"};
  run_well(with(args, workshop.started("joined", 0, {"distributed.pp=2"})));
  check_same_training(workshop.config_of("one"), workshop.config_of("joined"), "joined");
}

BOOST_AUTO_TEST_CASE(ranks_that_do_not_fit_are_refused_by_one_message) {
  Ranks workshop;
  const auto refused = [&](const std::vector<std::string>& args, const std::vector<std::string>& words) {
    const ProgramResult result = run_program(args);
    BOOST_TEST(result.status == 1);
    for (const std::string& word : words) BOOST_TEST(result.err.find(word) != std::string::npos, word << " is not in: " << result.err);
    // mpirun, where it is called by hand, adds its own lines.
    size_t messages = 0;
    std::istringstream lines(result.err);
    for (std::string line; std::getline(lines, line);) messages += line.starts_with("[") && line.find("] ") != std::string::npos && line.find(words.at(0)) != std::string::npos;
    BOOST_TEST(messages == 1, result.err);
  };
  refused(workshop.started("a", 3, {"distributed.pp=2"}), {"3", "2"});
  refused(workshop.started("b", 2, {}), {"2", "1"});
  refused(workshop.started("c", 9, {"distributed.pp=9"}), {"9", "8"});
  refused(workshop.started("d", 2, {"distributed.pp=2", "train.microbatch_size=0", "train.global_batch_size=-1"}), {"train.global_batch_size"});
  const std::vector<std::string> mpirun{path_of_program("mpirun"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "1"};
  const std::vector<std::string> first = with(mpirun, workshop.started("e", 0, {"distributed.pp=2"}));
  refused(with(with(first, {":", "-np", "1"}), workshop.started("e", 0, {"distributed.pp=2", "train.seed=7"})), {"rank 1 was started with another config", "seed"});
}

BOOST_AUTO_TEST_SUITE_END()
