// Token embeddings.
#pragma once
#include "runtime/tape.h"

namespace quire {

/// y [T, dim] = table[tokens]; tokens [T] i32, each in [0, vocabulary): ids are checked where they enter, by `check_tokens`.
Value embedding(Tape& tape, const Tensor& tokens, Parameter& table, int use = 0);

/// Throws DataError naming the first id outside [0, vocabulary). Host values.
void check_tokens(std::span<const int32_t> tokens, int64_t vocabulary);

}  // namespace quire
