// The head: the last linear layer fused with cross-entropy, so that the logits of a whole microbatch never exist at once.
#pragma once
#include "runtime/documents.h"
#include "runtime/tape.h"

namespace quire {

/// Result [1] f64: sum over scored tokens of  -log softmax(x weight^T)[target] + z_weight * logsumexp^2  (z-loss: Chowdhery et al., 2022).
/// x [T, dim], weight [vocabulary, dim], targets [T] i32. Logits are computed `chunk` rows at a time, in the accumulator type. Its weight gradient does not
/// defer. Divide by the valid targets of the whole global batch through the gradient given to backward.
///
/// `announced` [1] f64: that gradient, where it is known before forward; else undefined. A recording forward then computes the gradients by x and by the
/// weight right after each chunk's loss, and adds the latter, so that backward need not compute the logits again; it throws StateError for another gradient.
/// The bits are the same either way. Announce only where backward follows.
Value linear_cross_entropy(Tape& tape, const Value& x, Parameter& weight, int use, const Tensor& targets, double z_weight = 0, const Tensor& announced = {});

/// Rows of logits held at once for this vocabulary.
int64_t cross_entropy_chunk(int64_t vocabulary);

/// Per-token values of the above without z-loss: nll [T] in the accumulator type, 0 where ignored. No tape.
Tensor token_losses(Rank& rank, const Tensor& x, const Tensor& weight, const Tensor& targets);

}  // namespace quire
