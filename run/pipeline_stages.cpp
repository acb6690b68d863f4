#include "run/pipeline_stages.h"

#include "parallel/schedule_csv.h"

namespace quire {

PipelineStages pipeline_stages(const Config& config) {
  const Config::Distributed& d = config.distributed;
  if (!config.has_schedule_file()) return cut_into_stages(config.model, d.pp_schedule, d.pp, d.pp_chunks, d.pp_layers);
  return cut_into_stages(config.model, std::make_shared<const PipelineSchedule>(read_schedule(d.pp_schedule)), d.pp_layers);
}

bool keeps_bits(const PipelineStages& stages) { return !stages.given || keeps_gradient_order(*stages.given); }

}  // namespace quire
