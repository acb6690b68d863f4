// The launcher: ranks of waiting_ranks.cpp that end, die, stop and fail, as a user sees it. Passed over, with a message, where ranks can not be started here.
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "programs/ranks.h"
#include "run/machine.h"

namespace quire::test {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string> waiting(int ranks, const std::string& name, const std::string& watchdog = "100") {
  return {std::string(QUIRE_BUILD_ROOT) + "/tests/programs/waiting_ranks", std::to_string(ranks), watchdog, name};
}

bool lives(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t end = text.rfind(')');
  return end != std::string::npos && end + 2 < text.size() && text[end + 2] != 'Z' && text[end + 2] != 'X';
}

/// Ranks under a launcher that have begun to step.
struct LaunchedRanks {
  explicit LaunchedRanks(const std::vector<std::string>& args) : program(args, {.patience_seconds = 100}) {
    BOOST_REQUIRE(program.wait_for("\nfolder: "));
    BOOST_REQUIRE(program.wait_for("\nstep "));
    read();
  }
  void read() {
    std::istringstream lines(program.output());
    std::string word;
    while (lines >> word && word != "processes:") {
    }
    for (pid_t pid, parent; lines >> pid >> parent;) {
      pids.push_back(pid);
      mpirun = parent;
    }
    lines.clear();
    while (lines >> word && word != "folder:") {
    }
    lines >> folder;
    BOOST_REQUIRE(!folder.empty());
    BOOST_REQUIRE(lives(mpirun));
    for (const pid_t pid : pids) BOOST_REQUIRE(lives(pid));
    BOOST_REQUIRE(std::filesystem::exists(folder + "/board"));
  }
  /// The result, once it is sure that nothing is left.
  ProgramResult wait() {
    const ProgramResult result = program.wait();
    BOOST_TEST(!lives(mpirun));
    for (const pid_t pid : pids) BOOST_TEST(!lives(pid));
    BOOST_TEST(!std::filesystem::exists(folder));
    return result;
  }

  Program program;
  std::vector<pid_t> pids;
  pid_t mpirun = 0;
  std::string folder;
};

BOOST_AUTO_TEST_SUITE(launcher)

int64_t lines_of(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

BOOST_AUTO_TEST_CASE(ranks_that_end_well_end_well, *boost::unit_test::precondition(can_start_ranks)) {
  for (const int ranks : {1, 2, 4}) {
    const ProgramResult result = run_well(waiting(ranks, "ends"));
    BOOST_TEST(result.err == "");
    BOOST_TEST(result.out.ends_with("step 1\nstep 2\nstep 3\nstep 4\nstep 5\nended after step 5 by 0\n"), result.out);
  }
}

BOOST_AUTO_TEST_CASE(a_killed_rank_is_named_with_signal_and_step_within_ten_seconds, *boost::unit_test::precondition(can_start_ranks)) {
  for (const int ranks : {1, 3})
    for (int rank = 0; rank < ranks; ++rank) {
      LaunchedRanks all(waiting(ranks, "steps"));
      BOOST_REQUIRE(all.program.wait_for("\nstep 4\n"));
      const Clock::time_point begin = Clock::now();
      ::kill(all.pids.at(static_cast<size_t>(rank)), SIGKILL);
      const ProgramResult result = all.wait();
      BOOST_TEST((Clock::now() - begin < std::chrono::seconds(10)));
      BOOST_TEST(result.status == 1);
      BOOST_TEST(result.err.starts_with(fmt::format("[waiting] rank {} killed by signal 9 at step ", rank)), result.err);
      BOOST_TEST(result.err.ends_with("; the same command goes on from the last checkpoint, if there is one\n"), result.err);
      BOOST_TEST(lines_of(result.err) == 1, result.err);
      BOOST_TEST(std::stoi(result.err.substr(result.err.find("step ") + 5)) >= 3, result.err);  // it may be late by one
    }
}

BOOST_AUTO_TEST_CASE(a_rank_that_leaves_without_a_word_is_named, *boost::unit_test::precondition(can_start_ranks)) {
  const ProgramResult status = run_program(waiting(3, "status"));
  BOOST_TEST(status.status == 1);
  BOOST_TEST(status.err == "[waiting] rank 2 ended with status 3 at step 3; the same command goes on from the last checkpoint, if there is one\n");
  const ProgramResult quits = run_program(waiting(3, "quits"));
  BOOST_TEST(quits.status == 1);
  BOOST_TEST(quits.err.starts_with("[waiting] rank 2 ended too early at step 3"), quits.err);
  BOOST_TEST(lines_of(quits.err) == 1, quits.err);
}

BOOST_AUTO_TEST_CASE(an_error_is_printed_once_by_whoever_meets_it, *boost::unit_test::precondition(can_start_ranks)) {
  const ProgramResult one = run_program(waiting(3, "error"));
  BOOST_TEST(one.status == 1);
  BOOST_TEST(one.err == "[shard 7] is torn (rank 2)\n");
  for (int round = 0; round < 2; ++round) {
    const ProgramResult all = run_program(waiting(3, "errors"));
    BOOST_TEST(all.status == 1);
    BOOST_TEST(all.err.starts_with("[shard 7] is torn for everybody (rank "), all.err);
    BOOST_TEST(lines_of(all.err) == 1, all.err);
  }
  const ProgramResult config = run_program(waiting(3, "wrong_config"));
  BOOST_TEST(config.status == 1);
  BOOST_TEST(config.err == "[small.toml:3] is wrong for everybody\n");
  const ProgramResult odd = run_program(waiting(2, "odd_error"));
  BOOST_TEST(odd.status == 1);
  BOOST_TEST(odd.err == "[waiting] an unknown error (rank 1)\n");
}

BOOST_AUTO_TEST_CASE(a_stopped_rank_ends_the_run_and_every_other_says_what_it_awaits, *boost::unit_test::precondition(can_start_ranks)) {
  for (const int stopped : {0, 2}) {
    LaunchedRanks all(waiting(4, "steps", "2"));
    ::kill(all.pids.at(static_cast<size_t>(stopped)), SIGSTOP);
    const ProgramResult result = all.wait();
    BOOST_TEST(result.status == 1);
    for (int rank = 0; rank < 4; ++rank)
      BOOST_TEST((result.err.find(fmt::format("rank {} waits ", rank)) != std::string::npos) == (rank != stopped), result.err);
    BOOST_TEST(result.err.find("[communicator] rank ") != std::string::npos, result.err);
    BOOST_TEST(lines_of(result.err) == 4, result.err);  // three who wait, and the error
  }
}

BOOST_AUTO_TEST_CASE(ranks_that_do_not_come_together_are_given_up, *boost::unit_test::precondition(can_start_ranks)) {
  const ProgramResult result = run_program(waiting(3, "stopped_at_start", "2"));
  BOOST_TEST(result.status == 1);
  BOOST_TEST(result.err.starts_with("[waiting] the ranks have not come together within 2 s: rank 0 joining, rank 1 absent, rank 2 joining"), result.err);
  BOOST_TEST(lines_of(result.err) == 1, result.err);
}

BOOST_AUTO_TEST_CASE(a_stop_signal_is_agreed_and_ends_well, *boost::unit_test::precondition(can_start_ranks)) {
  for (const int signal : {SIGTERM, SIGINT}) {
    LaunchedRanks all(waiting(3, "steps"));
    all.program.send(signal);
    const ProgramResult result = all.wait();
    BOOST_TEST(result.status == 0);
    BOOST_TEST(result.err == "");
    BOOST_TEST(result.out.ends_with(fmt::format("by {}\n", signal)), result.out);
  }
}

BOOST_AUTO_TEST_CASE(a_stop_signal_before_the_first_step_waits_until_it_can_be_taken, *boost::unit_test::precondition(can_start_ranks)) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Program program(waiting(2, "late"), {.patience_seconds = 100});
    BOOST_REQUIRE(program.wait_for("folder: "));
    program.send(signal);
    const ProgramResult result = program.wait();
    BOOST_TEST(result.status == 0);
    BOOST_TEST(result.err == "");
    BOOST_TEST(result.out.ends_with(fmt::format("\nended after step 0 by {}\n", signal)), result.out);
  }
}

BOOST_AUTO_TEST_CASE(a_second_interrupt_ends_everything, *boost::unit_test::precondition(can_start_ranks)) {
  for (const int first : {SIGINT, SIGTERM}) {
    LaunchedRanks all(waiting(3, "deaf"));
    all.program.send(first);
    BOOST_REQUIRE(all.program.wait_for("\nstep 20\n"));  // nobody stops
    all.program.send(SIGINT);
    const ProgramResult result = all.wait();
    BOOST_TEST(result.status == 130);
    BOOST_TEST(result.err == "");
  }
}

BOOST_AUTO_TEST_CASE(a_killed_launcher_or_mpirun_leaves_no_rank, *boost::unit_test::precondition(can_start_ranks)) {
  {
    LaunchedRanks all(waiting(3, "steps"));
    ::kill(all.pids.at(1), SIGSTOP);
    all.program.send(SIGKILL);
    const Clock::time_point end = Clock::now() + std::chrono::seconds(60);
    const auto left = [&] { return lives(all.mpirun) || std::any_of(all.pids.begin(), all.pids.end(), lives); };
    while (left() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    BOOST_TEST(!left());
    BOOST_TEST(std::filesystem::exists(all.folder));  // nobody was left to remove it
    run_well(waiting(1, "ends"));
    BOOST_TEST(!std::filesystem::exists(all.folder));  // the next launcher did
  }
  LaunchedRanks all(waiting(3, "steps"));
  ::kill(all.mpirun, SIGKILL);
  const ProgramResult result = all.wait();
  BOOST_TEST(result.status == 1);
  BOOST_TEST(result.err == "[waiting] mpirun was killed by signal 9; the same command goes on from the last checkpoint, if there is one\n");
}

BOOST_AUTO_TEST_CASE(output_comes_at_once_and_unchanged, *boost::unit_test::precondition(can_start_ranks)) {
  Program program(waiting(2, "outputs"), {.patience_seconds = 100});
  BOOST_REQUIRE(program.wait_for("half a line"));  // while the ranks go on
  BOOST_REQUIRE(program.wait_for("step 3\n"));
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  BOOST_TEST(result.status == 0);
  const int threads = std::max(usable_processors() / 2, 1);  // the machine's are shared
  BOOST_TEST(result.out.find(fmt::format("terminals 0 0 0, columns 0, threads {}\n", threads)) != std::string::npos, result.out);
  BOOST_TEST(result.out.find("half a linestep 1\nstep 2\n") != std::string::npos, result.out);
  BOOST_TEST(result.out.find('\r') == std::string::npos);
  BOOST_TEST(result.err.find("rank 0 on the error stream\n") != std::string::npos, result.err);
  BOOST_TEST(result.err.find("rank 1 on the error stream\n") != std::string::npos, result.err);
  BOOST_TEST(lines_of(result.err) == 2, result.err);
}

/// A program on a terminal of 57 columns, as its foreground process.
struct OnTerminal {
  explicit OnTerminal(const std::vector<std::string>& args) {
    master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    BOOST_REQUIRE((master >= 0 && ::grantpt(master) == 0 && ::unlockpt(master) == 0));
    const winsize size{24, 57, 0, 0};
    ::ioctl(master, TIOCSWINSZ, &size);
    const std::string slave = ::ptsname(master);
    child = ::fork();
    if (child == 0) {
      ::setsid();
      const int terminal = ::open(slave.c_str(), O_RDWR);
      ::ioctl(terminal, TIOCSCTTY, 0);
      for (const int stream : {0, 1, 2}) ::dup2(terminal, stream);
      for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);
      std::vector<char*> pointers;
      for (const std::string& arg : args) pointers.push_back(const_cast<char*>(arg.c_str()));
      pointers.push_back(nullptr);
      ::execv(pointers[0], pointers.data());
      ::_exit(127);
    }
  }
  ~OnTerminal() {
    if (child > 0) ::kill(child, SIGKILL), ::waitpid(child, nullptr, 0);
    ::close(master);
  }
  /// Reads until `text` was there, or the end.
  bool wait_for(const std::string& text) {
    const Clock::time_point end = Clock::now() + std::chrono::seconds(100);
    while (text.empty() || seen.find(text) == std::string::npos) {
      pollfd entry{master, POLLIN, 0};
      char buffer[4096];
      if (Clock::now() > end || ::poll(&entry, 1, 1000) < 0) return false;
      if (entry.revents == 0) continue;
      const ssize_t count = ::read(master, buffer, sizeof buffer);
      if (count <= 0) return false;  // the terminal's last user is gone
      seen.append(buffer, static_cast<size_t>(count));
    }
    return true;
  }
  int status() {
    int status = 0;
    ::waitpid(std::exchange(child, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int master = -1;
  pid_t child = -1;
  std::string seen;
};

BOOST_AUTO_TEST_CASE(a_terminal_is_the_ranks_terminal_and_its_interrupt_the_launchers_alone, *boost::unit_test::precondition(can_start_ranks)) {
  OnTerminal terminal(waiting(2, "outputs"));
  BOOST_REQUIRE(terminal.wait_for("terminals 0 1 1, columns 57"));
  BOOST_REQUIRE(terminal.wait_for("step 3\r\n"));
  BOOST_REQUIRE(::write(terminal.master, "\x03", 1) == 1);
  terminal.wait_for("");
  BOOST_TEST(terminal.status() == 0);
  BOOST_TEST(terminal.seen.find(fmt::format("by {}\r\n", SIGINT)) != std::string::npos, terminal.seen);
  const std::string hint = "stopping after this step";
  const size_t said = terminal.seen.find(hint);
  BOOST_TEST(said != std::string::npos, terminal.seen);
  BOOST_TEST(terminal.seen.find(hint, said + 1) == std::string::npos, terminal.seen);  // by one rank
}

BOOST_AUTO_TEST_CASE(a_launched_training_stops_or_dies_and_goes_on_to_the_bits_of_one_process, *boost::unit_test::precondition(can_start_ranks)) {
  const Workshop workshop;
  const std::vector<std::string> steps{"train.max_steps=200", "checkpoint.interval=20", "eval.interval=100"};
  run_well(workshop.training("whole", steps));
  std::vector<std::string> pipelined = workshop.training("moved", steps);
  pipelined.insert(pipelined.end(), {"distributed.pp=2", "--ranks", "2"});
  {
    Program program(pipelined);
    BOOST_REQUIRE(program.wait_for("step   5/200"));
    program.send(SIGTERM);
    const ProgramResult result = program.wait();
    BOOST_TEST(result.status == 0);
    BOOST_TEST(result.err == "");
    BOOST_TEST(result.out.find("stopped by SIGTERM after step ") != std::string::npos, result.out);
  }
  {
    Program program(pipelined);
    BOOST_REQUIRE(program.wait_for("step  45/200"));
    // Its last child's child: the rank with the highest number.
    const ProgramResult ranks = run_program({"/bin/sh", "-c", fmt::format("for m in $(cat /proc/{0}/task/{0}/children); do cat /proc/$m/task/*/children; done", program.pid())});
    std::istringstream pids(ranks.out);
    pid_t rank = 0;
    while (pids >> rank) {
    }
    BOOST_REQUIRE(rank > 1);
    ::kill(rank, SIGKILL);
    const ProgramResult result = program.wait();
    BOOST_TEST(result.status == 1);
    BOOST_TEST(result.err.find(" killed by signal 9 at step ") != std::string::npos, result.err);
    BOOST_TEST(lines_of(result.err) == 1, result.err);
  }
  run_well(workshop.training("moved", steps));  // by one process
  check_same_training(workshop.config("whole", steps), workshop.config("moved", steps), "moved between layouts");
}

/// A folder with an `mpirun` that says it is MPICH's.
void put_other_mpirun(const std::string& folder) {
  std::filesystem::create_directories(folder);
  store(folder + "/mpirun", "#!/bin/sh\necho 'HYDRA build details:'\nexit 0\n");
  std::filesystem::permissions(folder + "/mpirun", std::filesystem::perms::owner_all);
}

std::vector<std::string> with_path(const std::string& path, std::vector<std::string> args) {
  args.insert(args.begin(), {"/usr/bin/env", "PATH=" + path});
  return args;
}

BOOST_AUTO_TEST_CASE(a_missing_mpirun_or_anothers_is_refused_in_one_line) {
  const Scratch scratch;
  const ProgramResult missing = run_program(with_path(scratch.path("nothing"), waiting(2, "ends")));
  BOOST_TEST(missing.status == 1);
  BOOST_TEST(missing.out == "");
  BOOST_TEST(lines_of(missing.err) == 1, missing.err);
  if (!mpi_is_built()) {
    BOOST_TEST(missing.err.find("built without MPI") != std::string::npos, missing.err);
    return;
  }
  BOOST_TEST(missing.err.starts_with("[launch] no mpirun in PATH"), missing.err);
  if (mpi_version().find("Open MPI") == std::string::npos) return;
  put_other_mpirun(scratch.path("other"));
  const ProgramResult other = run_program(with_path(scratch.path("other"), waiting(2, "ends")));
  BOOST_TEST(other.status == 1);
  BOOST_TEST(lines_of(other.err) == 1, other.err);
  for (const std::string& part : {"[launch] PATH has " + scratch.path("other") + "/mpirun of MPICH", std::string("built for Open MPI")})
    BOOST_TEST(other.err.find(part) != std::string::npos, other.err);
  if (!ranks_can_start()) return;
  run_well(with_path(scratch.path("other") + ":" + std::getenv("PATH"), waiting(2, "ends")));  // the right one further on is found
}

BOOST_AUTO_TEST_CASE(a_launcher_under_mpirun_is_refused) {
  if (!mpi_is_built()) return;
  std::vector<std::string> args = waiting(2, "ends");
  args.insert(args.begin(), {"/usr/bin/env", "OMPI_COMM_WORLD_SIZE=3", "OMPI_COMM_WORLD_RANK=1"});
  const ProgramResult result = run_program(args);
  BOOST_TEST(result.status == 1);
  BOOST_TEST(result.err.starts_with("[launch] --ranks 2 starts ranks, but Open MPI has started this process as one of 3 already"), result.err);
}

BOOST_AUTO_TEST_CASE(train_refuses_a_layout_that_is_not_the_world_with_one_message) {
  const Workshop workshop;
  std::vector<std::string> args = workshop.training("never", {"distributed.pp=2", "--ranks", "3"});
  const ProgramResult launched = run_program(args);
  BOOST_TEST(launched.status == 1);
  BOOST_TEST(lines_of(launched.err) == 1, launched.err);
  BOOST_TEST(launched.err.find("pp 2 x dp 1") != std::string::npos, launched.err);
  BOOST_TEST(!std::filesystem::exists(workshop.path("never")));
  args.resize(args.size() - 2);
  const ProgramResult alone = run_program(args);
  BOOST_TEST(alone.status == 1);
  BOOST_TEST(alone.err.find("the world has 1") != std::string::npos, alone.err);
  if (!ranks_can_start()) return;
  args.insert(args.begin(), {"/usr/bin/env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1", "mpirun", "-n", "3"});
  const ProgramResult joined = run_program(args);
  BOOST_TEST(joined.status == 1);
  const std::string message = "the world has 3";
  const size_t said = joined.err.find(message);
  BOOST_TEST(said != std::string::npos, joined.err);
  BOOST_TEST(joined.err.find(message, said + 1) == std::string::npos, joined.err);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace quire::test
