// The instruction sets of this build that this machine can run, and which one a rank uses.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/rank.h"

namespace quire {

/// Names of the instruction sets that were compiled and that this machine can run, best first: of "avx512", "avx2", "sse", "neon", "portable".
/// Never empty. Each is a value of RankOptions::instruction_set.
const std::vector<std::string>& instruction_sets();

/// The one whose kernels this rank runs. Throws ConfigError where RankOptions::instruction_set names none of `instruction_sets()`.
std::string_view instruction_set(const Rank& rank);

/// The same as Highway's target bit, for `QUIRE_PICK` of ops/cpu/targets.h.
int64_t highway_target(const Rank& rank);

}  // namespace quire
