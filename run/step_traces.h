// Times of training steps in a run folder: what each rank computed and received when.
#pragma once
#include <memory>
#include <string>

#include "parallel/measured_times.h"
#include "parallel/pipeline.h"
#include "runtime/file.h"

namespace quire {

constexpr size_t most_traces = 20;  ///< the newest are kept

class StepTraces {
 public:
  /// Collective. From now on `pipeline` notes its times. `folder`: where rank 0 writes; all of these outlive this object.
  StepTraces(Rank& rank, Communicator& world, Pipeline& pipeline, std::string folder, FileSystem& fs);
  /// Collective, after a step: the timeline of the last training pass, all ranks of the world in one, goes to `step-NNNNNNNN.json` as Chrome's trace.
  void keep(int64_t step);
  /// Where they go and whose clocks they are in, for the log.
  std::string describe() const;

 private:
  Rank& rank_;
  std::unique_ptr<Rank> host_;  ///< where the rank's tensors lie on a device: times travel in host memory
  Rank& carrier_;               ///< the rank itself, or that
  Communicator& world_;
  Pipeline& pipeline_;
  std::string folder_;
  FileSystem& fs_;
  ClockOffsets clocks_;
};

}  // namespace quire
