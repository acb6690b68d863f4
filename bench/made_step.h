// A training step's rows made of document lengths, without a corpus.
#pragma once
#include <cstdint>
#include <vector>

#include "data/loader.h"

namespace quire::bench {

/// One microbatch of rows of these documents, tokens drawn from the vocabulary; each token is its own target.
LoadedStep made_step(const std::vector<std::vector<int64_t>>& rows, int64_t vocabulary);

}  // namespace quire::bench
