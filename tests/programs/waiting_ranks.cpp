// A program for the tests of the launcher: `waiting_ranks RANKS WATCHDOG CASE` starts ranks of itself, which step together every 20 ms.
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "run/launcher.h"
#include "run/rank_options.h"
#include "run/rank_process.h"
#include "run/signals.h"
#include "runtime/error.h"

namespace quire {
namespace {

void print(const std::string& text) {
  if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) std::exit(5);
}

void pause(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

/// What is to happen in the given step.
void act(const std::string& name, Communicator& world, int64_t step) {
  if (step != 3) return;
  const bool second = world.rank() == world.size() - 1;
  if (name == "error" && second) fail<DataError>("shard 7", "is torn");
  if (name == "errors") fail<DataError>("shard 7", "is torn for everybody");
  if (name == "wrong_config") fail<ConfigError>("small.toml:3", "is wrong for everybody");
  if (name == "odd_error" && second) throw 17;
  if (name == "status" && second) ::_exit(3);
  if (name == "quits" && second) ::_exit(0);
}

void work(const std::string& name, const std::string& folder, Communicator& world, LaunchBoard* board) {
  std::string processes = "processes:";
  for (const std::string& pid : world.gather_texts(fmt::format(" {} {}", ::getpid(), ::getppid()))) processes += pid;
  if (world.rank() == 0) print(fmt::format("{}\nfolder: {}\n", processes, folder));
  if (name == "late") pause(500);
  StopSignals signals;
  if (name == "outputs") {
    if (world.rank() == 0) {
      struct winsize size {};
      ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
      print(fmt::format("terminals {} {} {}, columns {}, threads {}\n", ::isatty(STDIN_FILENO), ::isatty(STDOUT_FILENO), ::isatty(STDERR_FILENO), size.ws_col,
                        rank_options({}).threads));
      print("half a line");
    }
    world.barrier();
    std::fprintf(stderr, "rank %d on the error stream\n", world.rank());
    std::fflush(stderr);
  }
  int64_t stop = 0, step = 0;
  const int64_t steps = name == "ends" ? 5 : INT64_MAX;
  while (step < steps && (stop = world.agree_on_largest(name == "deaf" ? 0 : signals.signal(), {MessageKind::control, step + 1})) == 0) {
    if (board != nullptr) board->set_step(++step);
    act(name, world, step);
    if (world.rank() == 0) print(fmt::format("step {}\n", step));
    pause(20);
  }
  if (world.rank() == 0) print(fmt::format("ended after step {} by {}\n", step, stop));
}

int run(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  std::string folder;
  if (args.size() > 2 && args[0] == "--launched-from") {
    folder = args[1];
    args.erase(args.begin(), args.begin() + 2);
  }
  if (args.size() != 3) return 2;
  const double watchdog = std::stod(args[1]);
  const std::string name = args[2];
  if (folder.empty()) {
    try {
      return launch_ranks({.program = "waiting", .ranks = std::stoi(args[0]), .arguments = args, .watchdog_seconds = watchdog});
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
  }
  if (name == "stopped_at_start" && announced_ranks().rank == 1) ::raise(SIGSTOP);
  return run_rank("waiting", {.launch_folder = folder, .communicator = {.watchdog_seconds = watchdog}},
                  [&](Communicator& world, LaunchBoard* board) { work(name, folder, world, board); });
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) { return quire::run(argc, argv); }
