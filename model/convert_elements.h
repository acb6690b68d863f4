// Element types of weight files, converted into ours.
#pragma once
#include <bit>
#include <cstdint>
#include <string>

#include "runtime/dtype.h"

namespace quire {

/// `convert` reads `count` elements at `from` (unaligned) and writes them at `to`; false where an integer does not fit.
struct ElementConversion {
  bool (*convert)(const std::byte* from, int64_t count, std::byte* to) = nullptr;  ///< nullptr: not possible
  bool same = false;                                                               ///< the bytes are the same
};

/// From a safetensors type (F64, F32, F16, BF16, I64, I32) to `wanted`. Floating and integer types do not convert into each other.
ElementConversion find_conversion(const std::string& from, DType wanted);

/// IEEE binary16 to binary32, exact.
float float_from_half(uint16_t half);
/// Rounded once (to nearest even), not first to float.
bf16 bf16_from_double(double value);

}  // namespace quire
