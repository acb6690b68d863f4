// The pipeline that a config asks for.
#pragma once
#include "parallel/stages.h"
#include "run/config.h"

namespace quire {

/// Its stages and where they lie. Requires a resolved config. Reads the schedule where it is a file; throws what `read_schedule` and `cut_into_stages` throw.
PipelineStages pipeline_stages(const Config& config);

/// Whether gradients have the bits of one process, as far as the pipeline goes: a user's own schedule may add microbatches in another order.
bool keeps_bits(const PipelineStages& stages);

}  // namespace quire
