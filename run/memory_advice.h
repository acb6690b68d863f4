// What would fit where a model's training does not: the way out of a lack of memory.
#pragma once
#include <optional>
#include <string>

#include "run/config.h"
#include "runtime/rank.h"

namespace quire {

/// Whether a rank alone trains `config` within `limit` bytes, documents of at most `longest` tokens among its rows: rehearsed on the null device, which takes
/// memory as any device does but leaves out what kernels need for themselves.
bool fits_memory(const Config& config, int64_t longest, int64_t limit);

/// The first that fits of activation_checkpointing (attention, full), then of ever smaller microbatches (powers of two down to 1), as
/// settings for the command line; none where nothing does.
std::optional<std::string> what_would_fit(const Config& config, int64_t longest, int64_t limit);

/// What follows after the biggest users in the message of an error. Takes what `rank` may have and its kernels need from it.
std::string memory_advice(Rank& rank, const Config& config, int64_t longest);

}  // namespace quire
