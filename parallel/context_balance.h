// Layout `balanced`: tokens and cost shared evenly over the ranks first, then as few keys sent as possible.
#pragma once
#include "parallel/context_pieces.h"

namespace quire {

ShardList balanced_shards(const DocumentTable& documents, int64_t ranks, const ContextCosts& costs);

}  // namespace quire
