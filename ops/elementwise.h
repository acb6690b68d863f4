// Operations on every row or element by itself: normalisation, rotary positions, SwiGLU, sums, casts.
#pragma once
#include "runtime/tape.h"

namespace quire {

/// Root-mean-square normalisation (Zhang and Sennrich, 2019): y = x / sqrt(mean(x^2) + eps) * gain over rows of gain's size.
/// x [..., w] with w a multiple of gain's size: with a smaller gain every head is normalised by itself. Its gradients do not defer.
/// Throws ShapeError.
Value rmsnorm(Tape& tape, const Value& x, Parameter& gain, double eps);

/// a + b and its normalisation, in one pass: the bits of `add` and `rmsnorm`. Works in b's memory when nobody else holds it.
struct SumAndNorm {
  Value sum, normed;
};
SumAndNorm add_rmsnorm(Tape& tape, const Value& a, Value b, Parameter& gain, double eps);

/// Cosines and sines of position * theta^(-2i/head_dim), i < head_dim/2, computed in f64. [positions, head_dim/2] in the accumulator of `dtype`.
struct RotaryTable {
  int64_t positions = 0, head_dim = 0;
  Tensor cosine, sine;
};
RotaryTable make_rotary_table(Rank& rank, int64_t positions, int64_t head_dim, double theta, DType dtype);

/// Rotates the heads of x [T, heads * head_dim] by each token's position (Su et al., 2021; halves as in the Hugging Face layout).
/// positions [T] i32, all below table.positions (checked by the caller, who knows the documents). Works in x's memory when nobody else holds it.
Value rotary(Tape& tape, Value x, const Tensor& positions, const RotaryTable& table);

/// silu(gate) * up (Shazeer, 2020), equal shapes.
Value swiglu(Tape& tape, const Value& gate, const Value& up);

/// a + b, equal shapes and dtypes. Works in b's memory when nobody else holds it.
Value add(Tape& tape, const Value& a, Value b);

/// Values in another floating dtype; the same tensor when it has that dtype already.
Tensor cast(Rank& rank, const Tensor& tensor, DType dtype);

/// Sum of the values (power 1) or of their squares (power 2), in f64, in an order that depends on the size alone. result [1] f64.
void reduce(Rank& rank, const Tensor& tensor, int power, const Tensor& result);

}  // namespace quire
