// When the ranks of a pipeline did what in a real step.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/timeline.h"

namespace quire {

/// One rank's part of a pass, in nanoseconds of its machine's steady clock.
struct PassTimes {
  struct Span { Action action; int64_t begin = 0, end = 0; };
  /// `consumer` takes it; `peer`: world rank on the other side.
  struct Message { Action consumer; int64_t peer = 0, bytes = 0, time = 0; };
  std::string schedule;
  std::vector<Span> spans;
  std::vector<Message> sent;      ///< when they were handed to the communicator
  std::vector<Message> received;  ///< when they were seen to be there: between two chunks of a computation, or when waited for
};

/// Now, as in `PassTimes`.
int64_t steady_nanoseconds();

/// What to add to each rank's clock to get that of rank 0.
struct ClockOffsets {
  std::vector<int64_t> nanoseconds;  ///< [ranks]
  bool one_clock = true;             ///< ranks of one machine: nothing was measured and nothing is added
  int64_t uncertainty = 0;           ///< half of the longest round trip that an offset was taken from
};

/// Collective. Ranks of one machine (one boot of one kernel) share a clock. Others exchange `rounds` pings with rank 0: half of a round trip is taken for the way back, of the shortest
/// one. `now` is the rank's clock. Every rank gets the same.
ClockOffsets measure_clocks(Rank& rank, Communicator& group, int rounds = 10);
/// The pings alone.
ClockOffsets ping_clocks(Rank& rank, Communicator& group, int rounds, int64_t (*now)(int rank));

/// Collective: on rank 0 of `group` a timeline of all its ranks, in their order there, begin at the first computation; elsewhere an empty one. A message begins when it is sent and ends
/// when its receiver sees it. `group` may hold several pipelines: replicas' and context ranks' computations then stand beside each other.
Timeline gather_timeline(Rank& rank, Communicator& group, const PassTimes& own, const ClockOffsets& clocks);

}  // namespace quire
