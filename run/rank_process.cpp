#include "run/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <thread>

#include "parallel/nccl.h"
#include "parallel/tcp.h"
#include "run/launch_link.h"
#include "runtime/error.h"

namespace quire {
namespace {

/// Long enough for another rank of this machine to print what it has begun to say.
constexpr std::chrono::seconds time_to_speak{1};

/// A rank without its launcher or mpirun has nobody to talk to and nobody who would end it.
void end_with_parent() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == 1) ::_exit(1);
}

/// Before anything is printed or started: output, signals and death become what they are in a process of one's own.
LaunchBoard meet_launcher(const std::string& folder, const AnnouncedRanks& announced) {
  sigset_t stops;
  ::sigemptyset(&stops);
  for (const int signal : {SIGTERM, SIGINT}) ::sigaddset(&stops, signal);
  ::pthread_sigmask(SIG_BLOCK, &stops, nullptr);  // they are kept for the StopSignals to come
  ::signal(SIGTTOU, SIG_IGN);  // the launcher's terminal may be written to from another process group
  if (announced.size == 0) fail<UnsupportedError>("launch", "mpirun has not told this process which rank it is: started by another MPI than built for ({})", mpi_version());
  LaunchBoard board = LaunchBoard::open(board_path(folder), announced.rank);
  end_with_parent();
  // What Open MPI says by itself (such as that a dead rank's memory can not be read) goes on to mpirun's output, which the launcher sifts.
  const int sifted = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  ::setenv("OPAL_OUTPUT_STDERR_FD", fmt::format("{}", sifted).c_str(), 0);
  connect_to_launcher(folder, announced.rank);  // open until the process ends
  board.set_pid(::getpid());
  board.set_state(RankState::joining);
  return board;
}

void print(const std::string& text) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", text.c_str());
}

/// The error being handled: its text, "" for one that another rank has told already.
std::string text_of_error(const char* program, Communicator& world, bool& of_all_ranks) {
  try {
    throw;
  } catch (const AbortedError&) {
    return {};
  } catch (const CommunicationError& error) {
    try {
      world.poll();  // which may know by now which rank is gone, or that another one has said why
    } catch (const AbortedError&) {
      return {};
    } catch (const CommunicationError& better) {
      return better.what();
    }
    return error.what();
  } catch (const ConfigError& error) {
    of_all_ranks = true;
    return error.what();
  } catch (const ScheduleError& error) {  // of a user's own
    of_all_ranks = true;
    return error.what();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return fmt::format("[{}] an unknown error", program);
  }
}

/// In a handler. Does not return where the job has several processes.
int end_all(const char* program, Communicator& world, LaunchBoard* board) {
  bool of_all_ranks = world.size() == 1;
  const std::string text = text_of_error(program, world, of_all_ranks);
  const bool said = !text.empty() && world.first_to_say(text);
  if (said) print(of_all_ranks ? text : fmt::format("{} (rank {})", text, world.world_rank()));
  if (board != nullptr) board->set_state(RankState::failed);
  if (!said && world.size() > 1) std::this_thread::sleep_for(time_to_speak);
  if (board != nullptr) ::dup2(::open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);  // some MPIs announce their abort here
  world.abort(text);
  return 1;
}

}  // namespace

int run_rank(const char* program, const RankProcessOptions& options, const std::function<void(Communicator& world, LaunchBoard* board)>& body) {
  prepare_cuda_connections();
  ::signal(SIGPIPE, SIG_IGN);  // nobody reads what is printed: no reason to end a training
  const AnnouncedRanks announced = announced_ranks();
  std::optional<LaunchBoard> board;
  std::unique_ptr<Communicator> world;
  try {
    if (!options.launch_folder.empty()) board.emplace(meet_launcher(options.launch_folder, announced));
    world = with_device_memory(join_announced(options.communicator));
  } catch (const std::exception& error) {
    if (announced.rank == 0) {
      print(error.what());
      if (board) board->set_state(RankState::failed);
    }
    return 1;
  }
  LaunchBoard* const own = board ? &*board : nullptr;
  if (own != nullptr) own->set_state(RankState::running);
  try {
    body(*world, own);
  } catch (...) {
    return end_all(program, *world, own);
  }
  if (own != nullptr) own->set_state(RankState::ended);
  world.reset();
  return 0;
}

}  // namespace quire
