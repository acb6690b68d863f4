// What a pipeline stage's passes keep in memory: counted by running them on the null device, so that it is what tapes do, not what one thinks they do.
#pragma once
#include <array>

#include "model/model.h"

namespace quire {

/// Activations of one microbatch on one stage, in bytes per token. The stage's input and output are in it.
struct PassBytes {
  double forward = 0;        ///< kept from the forward until B or I
  double input = 0;          ///< kept from I until W
  double forward_more = 0;   ///< besides `forward`, while it runs
  double backward_more = 0;  ///< B: besides `forward`, while it runs
  double input_more = 0;     ///< I: besides the larger of `forward` and `input`
  double weight_more = 0;    ///< W: besides `input`

  PassBytes operator+(const PassBytes& other) const;
  PassBytes operator*(double factor) const;
};

/// Of all stages of a model: the same for every layer, so known from stages of none, one and two.
class TapeMemory {
 public:
  TapeMemory(const ModelConfig& model, DType dtype, Recomputation recomputation);
  /// Of a stage with so many decoder layers; `first`: with the embedding, `last`: with norm and head.
  PassBytes of(int64_t decoder_layers, bool first, bool last) const;

 private:
  std::array<std::array<PassBytes, 3>, 4> measured_;  ///< [first + 2 * last][decoder layers]
};

}  // namespace quire
