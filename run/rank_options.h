// What a config says about the rank that carries it out.
#pragma once
#include "run/config.h"
#include "runtime/rank.h"

namespace quire {

/// Threads (0 in the config: every processor this process may use), memory limit, instruction set and kernels of a resolved config.
RankOptions rank_options(const Config& config);

}  // namespace quire
