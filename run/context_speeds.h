// How fast the ranks of a context group compute and exchange: measured once, for the choice of layout and exchange.
#pragma once
#include "parallel/communicator.h"
#include "parallel/context_choice.h"
#include "run/config.h"

namespace quire {

/// What of a resolved config's model the choice and the counts of bytes need.
ContextModel context_model(const Config& config);

/// Times attention and a matrix product of the config's shapes on `rank`, and messages between neighbours of `group`, all ranks at once as in
/// training: every rank of the group calls it, and each gets what it measured itself. Best of a few tries, some tens of milliseconds. A group of one
/// gets a link that costs nothing. Leaves the rank's counters as they were.
ContextSpeeds measure_context_speeds(Rank& rank, Communicator& group, const Config& config);

}  // namespace quire
