// The two halves of `bench pipeline`.
#pragma once
#include "bench/pipeline.h"

namespace quire::bench {

void simulate_pipelines(const PipelineBenchOptions& options, PipelineBenchResult& result);
void measure_pipelines(const PipelineBenchOptions& options, PipelineBenchResult& result);

}  // namespace quire::bench
