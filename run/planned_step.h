// A training step that is planned but not run: its microbatches' documents, and what its layout comes to.
#pragma once
#include <string>
#include <vector>

#include "data/loader.h"
#include "parallel/mesh.h"
#include "run/context_report.h"

namespace quire {

struct PlannedStep {
  MeshShape mesh;
  int64_t step = 1, rows = 0, tokens = 0, valid = 0, documents = 0;  ///< of the global batch
  int64_t row_length = 0;                                             ///< places of a row
  std::vector<Documents> microbatches;   ///< of the whole global batch
  std::vector<Documents> first_step;     ///< those of step 1: what a run chooses by

  std::string table() const;
  std::string to_json() const;  ///< one object
};

/// Reads the data's index, no token; `corpus`: instead of the config's data. Throws what open_data and Loader throw, and ConfigError where the data ends before that step.
PlannedStep plan_step(const Config& config, int64_t step, std::shared_ptr<const Corpus> corpus = nullptr);

/// Of a microbatch of it. What the config leaves to be chosen is what the config's run folder holds, if anything, else chosen by the first step with
/// speeds measured on this machine between two threads.
ContextReport report_planned(const Config& config, const PlannedStep& planned, int64_t microbatch);
/// The picture of that microbatch, of the first layer's window.
std::string picture_of(const Config& config, const PlannedStep& planned, const ContextReport& report);

}  // namespace quire
