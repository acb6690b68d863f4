// Schedules as text: PyTorch's compute-only CSV (torch.distributed.pipelining.schedules, _dump_csv(format="compute_only")).
#pragma once
#include <string>
#include <string_view>

#include "parallel/schedule.h"

namespace quire {

/// One line per rank, its actions divided by commas: `2F0` stage 2, forward, microbatch 0; `0B3` backward; `1I2` input gradients; `1W2` weight
/// gradients. Blanks around actions, empty fields (PyTorch writes them for idle time), Windows line ends and empty lines at the end are read; nothing
/// else is. Ranks, stages, placement and microbatches follow from the text; each rank holds a stage, and each stage has backward passes. The schedule
/// is checked as by `check_schedule`. Throws ScheduleError that names `file`, the line (that of rank r is r + 1) and the action. Time and memory are
/// in proportion to the text, whatever numbers it holds. `describe` writes what this reads.
PipelineSchedule parse_schedule(std::string_view text, const std::string& file);
/// The same of a file's content, 64 MiB at most. Throws what reading a file throws, too.
PipelineSchedule read_schedule(const std::string& file);

}  // namespace quire
