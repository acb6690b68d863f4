// Ranks as processes that torchrun, or anybody who sets its variables, has started: over TCP, without MPI.
#pragma once
#include <memory>

#include "parallel/communicator.h"

namespace quire {

/// Joins the ranks that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name (see tcp_start.h), waiting `limit_seconds` for them. Throws ConfigError for variables that are wrong,
/// CommunicationError where the ranks do not come together. A message that is sent is done when the system has taken it. When the last of its groups is gone, the process
/// waits for the other ranks to be as far; after an error `abort` instead: the other ranks' operations then fail with AbortedError, as does what waits for a rank that is gone
/// with CommunicationError.
std::unique_ptr<Communicator> join_tcp(const CommunicatorOptions& options, double limit_seconds = 300);

/// Joins the job in which this process was started: over TCP where torchrun's variables announced it, else over MPI. A group of one rank where nobody started it as one of several.
std::unique_ptr<Communicator> join_announced(const CommunicatorOptions& options);

}  // namespace quire
