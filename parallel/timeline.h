// What the ranks of a pipeline did when: simulated or measured, in one form for pictures and traces.
#pragma once
#include <string>
#include <vector>

#include "parallel/schedule.h"

namespace quire {

/// One computation, in seconds from the timeline's begin.
struct TimelineSpan {
  Action action;
  double begin = 0, end = 0;
};

/// One message: the activations (where the consumer is a forward) or their gradients that `consumer` takes, in seconds from the timeline's begin.
struct TimelineTransfer {
  Action consumer;
  int64_t from = 0, to = 0;  ///< ranks
  int64_t bytes = 0;
  double begin = 0, end = 0;
};

/// One step of a pipeline.
struct Timeline {
  std::string name;                              ///< the schedule's
  std::vector<std::vector<TimelineSpan>> spans;  ///< [ranks], each in order of time
  std::vector<TimelineTransfer> transfers;

  int64_t ranks() const { return static_cast<int64_t>(spans.size()); }
  /// From the first computation's begin to the last one's end; 0 where there is none.
  double makespan() const;
  /// Sum of all spans.
  double work() const;
  /// 1 - work / (ranks x makespan); 0 where nothing is computed.
  double bubble() const;
};

/// Chrome's trace event format (JSON; chrome://tracing, Perfetto): a process per rank with a thread for computations and one for what it receives (more where
/// messages of several peers come at once); flows from the computation that sends to the one that takes.
std::string to_chrome_trace(const Timeline& timeline);
/// A picture: a line per rank, computations as boxes labelled with microbatches, forward, backward, input and weight gradients in a colour each (shades tell stages of a rank
/// apart). Readable in greyscale, too.
std::string to_svg(const Timeline& timeline);

}  // namespace quire
