// Matrix products, and the linear layer built of them.
#pragma once
#include "runtime/tape.h"

namespace quire {

enum class Transpose : bool { no, yes };

/// c [m,n] (+)= op(a) [m,k] op(b) [k,n]. a and b are matrices of one dtype with contiguous rows; c has their dtype or its accumulator.
/// A row of c depends on that row of op(a) and on b alone, to the bit. Throws ShapeError, DTypeError.
void matmul(Rank& rank, const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b, const Tensor& c, bool accumulate = false);

/// y [T, out] = x [T, in] weight^T, weight [out, in]. `use` says which of the parameter's accumulators takes the gradient.
/// The weight gradient defers. Throws ShapeError, DTypeError.
Value linear(Tape& tape, const Value& x, Parameter& weight, int use = 0);

}  // namespace quire
