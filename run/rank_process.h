// A process as one rank of a job: joins the others, does its work, and makes the end of one the end of all.
#pragma once
#include <functional>
#include <string>

#include "parallel/communicator.h"
#include "run/launch_board.h"

namespace quire {

struct RankProcessOptions {
  std::string launch_folder;        ///< of the launcher that started this process; "" where somebody else or nobody did
  CommunicatorOptions communicator;
};

/// Joins the job that this process was started in (by the launcher, mpirun, srun or with the variables of torchrun; otherwise it is the only rank), runs `body` and returns the exit status.
/// `board` is the launcher's, null without one. An error that leaves `body` is printed once however many ranks meet it, with ` (rank N)` behind it where it
/// may be one rank's own, and ends every rank with status 1. Where joining fails, rank 0 alone prints why.
///
/// Under the launcher SIGTERM and SIGINT wait until a `StopSignals` takes them. `program` names the process in messages that have no place of their own.
int run_rank(const char* program, const RankProcessOptions& options, const std::function<void(Communicator& world, LaunchBoard* board)>& body);

}  // namespace quire
