// Memory that cuDNN's attention takes while it runs: no tensor of the tape's, and much where documents are long.
#pragma once
#include <span>
#include <string>

#include "run/config.h"
#include "runtime/documents.h"
#include "runtime/rank.h"

namespace quire {

/// Bytes at their most on a rank with a device that trains the model, with documents of at most `longest` tokens. Asks the library; 0 for other backends. Throws UnsupportedError where it can not
/// be asked.
int64_t attention_workspace(Rank& rank, const Config& config, int64_t longest);

struct PlannedWorkspace {
  bool known = true;
  int64_t bytes = 0;  ///< of each rank that holds a layer which attends by cuDNN
  std::string note;   ///< a line for people; "" for another backend
};
/// The same for a plan, by this machine's first device; where there is none it is not known, and the note says so and why.
PlannedWorkspace planned_workspace(const Config& config, std::span<const Documents> microbatches);
/// Whether a layer's attention is cuDNN's: it has no window.
bool attends_by_cudnn(const Config& config, int64_t layer);

}  // namespace quire
