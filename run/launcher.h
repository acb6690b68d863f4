// Starts ranks of this program on this machine through mpirun, and looks after them until the last one has ended.
#pragma once
#include <string>
#include <vector>

namespace quire {

struct LaunchOptions {
  std::string program = "train";           ///< what messages begin with
  int ranks = 1;
  std::string executable;                  ///< "" = this program's own
  std::vector<std::string> arguments;      ///< of every rank, after `--launched-from FOLDER`
  double watchdog_seconds = 600;           ///< longest time until all ranks have come together
  std::string resume_hint = "the same command goes on from the last checkpoint, if there is one";  ///< after a rank has died
};

/// Returns the exit status for the whole job once no process of it is left: 0 where all ranks ended well, 1 where one failed (it has said why) or died (one
/// line says so), 130 after a second SIGINT. SIGTERM, SIGHUP (as SIGTERM, unless ignored) and the first SIGINT go to rank 0, which is to agree with the others on a stop; SIGTSTP stops the ranks too. The ranks have this
/// process's standard output and error. These signals and SIGCHLD are blocked while it works; nothing else of the process should wait for children.
/// Throws UnsupportedError where MPI is not built in, mpirun is missing, or this process was itself started by one; FileError.
int launch_ranks(const LaunchOptions& options);

}  // namespace quire
