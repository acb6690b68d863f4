// What a config says about the rank that carries it out.
#pragma once
#include "run/config.h"
#include "runtime/rank.h"

namespace quire {

/// Threads (0 in the config: the processors this process may use, shared by the ranks that were started on the machine; at least 1), memory limit, instruction set and kernels of a resolved config.
RankOptions rank_options(const Config& config);

}  // namespace quire
