// The head: the last linear layer fused with cross-entropy, so that the logits of a whole microbatch never exist at once.
#pragma once
#include "runtime/documents.h"
#include "runtime/tape.h"

namespace quire {

/// Result [1] f64: sum over scored tokens of  -log softmax(x weight^T)[target] + z_weight * logsumexp^2  (z-loss: Chowdhery et al., 2022).
/// x [T, dim], weight [vocabulary, dim], targets [T] i32. Logits are computed `chunk` rows at a time, in the accumulator type, in forward and again in
/// backward; its weight gradient does not defer. Divide by the valid targets of the whole global batch through the gradient given to backward.
Value linear_cross_entropy(Tape& tape, const Value& x, Parameter& weight, int use, const Tensor& targets, double z_weight = 0);

/// Rows of logits held at once for this vocabulary.
int64_t cross_entropy_chunk(int64_t vocabulary);

/// Per-token values of the above without z-loss: nll [T] in the accumulator type, 0 where ignored. No tape.
Tensor token_losses(Rank& rank, const Tensor& x, const Tensor& weight, const Tensor& targets);

}  // namespace quire
