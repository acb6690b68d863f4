// The orders of zero-bubble schedules that do not follow from another schedule's.
#pragma once
#include <cstdint>
#include <vector>

#include "parallel/schedule.h"

namespace quire {

/// zb_v's actions [ranks]: two stages per rank, s and 2 * ranks - 1 - s, all backwards split.
std::vector<std::vector<Action>> zero_bubble_v(int64_t ranks, int64_t microbatches);

}  // namespace quire
