// Schedules as text: PyTorch's compute-only CSV (torch.distributed.pipelining.schedules, _dump_csv(format="compute_only")).
#pragma once
#include <string>
#include <string_view>

#include "parallel/schedule.h"

namespace quire {

/// One line per rank, its actions divided by commas: `2F0` stage 2, forward, microbatch 0; `0B3` backward; `1I2` input gradients; `1W2` weight gradients. Blanks around actions,
/// empty fields (PyTorch writes them for idle time), Windows line ends and an empty last line are read; nothing else is. Ranks, stages, placement and microbatches follow from the text.
/// The schedule is checked as by `check_schedule`. Throws ScheduleError that names `file`, the line, and the action with its place in it, once.
PipelineSchedule parse_schedule(std::string_view text, const std::string& file);
/// The same of a file's content. Throws what reading a file throws, too.
PipelineSchedule read_schedule(const std::string& file);

}  // namespace quire
