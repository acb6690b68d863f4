// How ranks that no MPI has started find each other: at an address, or through a file.
//
// Rank 0 listens at the master's address. Each other rank connects, says which it is and of how many, and hears of all ranks' addresses when all have come; then
// every two ranks have a connection. What says something else at the port is not listened to. Ranks that do not fit together (another number of ranks, a number that two
// have) are told so, all of them. Whoever has not come when the time is over is named. Nothing waits longer.
#pragma once
#include <string>
#include <vector>

#include "parallel/tcp_sockets.h"

namespace quire {

struct Meeting {
  int rank = 0, size = 1;
  Address master;            ///< of rank 0
  std::string file;          ///< instead of `master`: where rank 0 writes its address, which all can read
  double limit_seconds = 300;
};
/// Of the variables that torchrun sets: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (the port after it where torchrun's own agent listens there), or QUIRE_MASTER_FILE in place
/// of the latter two. Throws ConfigError naming the variable that is wrong or missing.
Meeting meeting_of_environment();

/// Connections to all ranks, by rank; none to this one. Throws CommunicationError.
std::vector<Socket> meet(const Meeting& meeting);

}  // namespace quire
