// Which emulated thread runs next.
#pragma once
#include "machine.h"

namespace emulation {

/// Gives the processor to another runnable thread, by the block's order; returns when the current one is scheduled again.
void let_others_run(Block& block);

}  // namespace emulation
