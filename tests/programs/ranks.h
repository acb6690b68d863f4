// Real ranks on this machine: whether they can be started, and which processes they are.
#pragma once
#include <filesystem>
#include <fstream>
#include <map>

#include "parallel/communicator.h"
#include "programs/fixture.h"

namespace quire::test {

inline std::string path_of_program(const std::string& name) {
  std::istringstream folders(std::getenv("PATH") == nullptr ? "" : std::getenv("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');)
    if (::access((folder + "/" + name).c_str(), X_OK) == 0) return folder + "/" + name;
  return {};
}

/// Whether ranks can be started on this machine.
inline bool ranks_can_start() { return mpi_is_built() && !path_of_program("mpirun").empty(); }

/// The same for Boost's `precondition`.
inline boost::test_tools::assertion_result can_start_ranks(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(ranks_can_start());
  result.message() << "MPI is not built in or there is no mpirun";
  return result;
}

/// Processes whose command line holds `mark` (a run folder, say), by rank; those that are no rank (launcher, mpirun) count from -1 down.
inline std::map<int, pid_t> processes_of(const std::string& mark) {
  std::map<int, pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos || std::stol(name) == ::getpid()) continue;
    if (contents(entry.path().string() + "/cmdline").find(mark) == std::string::npos) continue;
    const std::string environment = contents(entry.path().string() + "/environ"), key("\0OMPI_COMM_WORLD_RANK=", 22);
    const size_t at = environment.find(key);
    int number = -1;
    if (at != std::string::npos) number = std::atoi(environment.c_str() + at + key.size());
    else
      while (found.contains(number)) --number;
    found[number] = static_cast<pid_t>(std::stol(name));
  }
  return found;
}

/// Waits (at most `seconds`) until no process has the mark; those that are left then.
inline std::map<int, pid_t> processes_left(const std::string& mark, int seconds = 10) {
  for (int tenths = 0; tenths < 10 * seconds && !processes_of(mark).empty(); ++tenths) ::usleep(100000);
  return processes_of(mark);
}

}  // namespace quire::test
