// The connection between a launcher and each rank that it started: the rank gets the launcher's own standard output and error, the launcher
// sees the rank's process number and its end. Through mpirun output would arrive late, in whole lines and mixed with mpirun's own.
#pragma once
#include <sys/types.h>

#include <string>

namespace quire {

/// Names inside a launch folder.
std::string board_path(const std::string& launch_folder);
std::string link_path(const std::string& launch_folder);

/// The launcher's end: a socket in the launch folder. Throws FileError.
int listen_for_ranks(const std::string& launch_folder, int ranks);

/// A rank that has connected.
struct RankLink {
  int rank = -1;
  int descriptor = -1;  ///< at its end once the process is gone
  pid_t pid = 0;        ///< as the system says
};
/// Takes one waiting connection and hands out descriptors 1 and 2 of this process. Rank -1 where nobody fit came.
RankLink accept_rank(int listener, int ranks);

/// The rank's end: makes the launcher's standard output and error this process's own and returns the connection, which is to stay open as long as
/// the process lives. Throws FileError where the launcher is gone.
int connect_to_launcher(const std::string& launch_folder, int rank);

}  // namespace quire
