#include "model/convert_elements.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace quire {
namespace {

struct Half {
  uint16_t bits;
};

template <class T> T load(const std::byte* from) {
  T value;
  std::memcpy(static_cast<void*>(&value), from, sizeof value);
  return value;
}

template <class From, class To>
bool convert(const std::byte* from, int64_t count, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) {
    const From value = load<From>(from + i * static_cast<int64_t>(sizeof(From)));
    To result;
    if constexpr (std::is_integral_v<From>) {
      if (value < std::numeric_limits<To>::min() || value > std::numeric_limits<To>::max()) return false;
      result = static_cast<To>(value);
    } else if constexpr (std::is_same_v<From, To>) {
      result = value;
    } else if constexpr (std::is_same_v<From, double> && std::is_same_v<To, bf16>) {
      result = bf16_from_double(value);
    } else if constexpr (std::is_same_v<From, Half>) {
      result = static_cast<To>(float_from_half(value.bits));
    } else if constexpr (std::is_same_v<From, bf16>) {
      result = static_cast<To>(static_cast<float>(value));
    } else {
      result = static_cast<To>(value);
    }
    std::memcpy(to + i * static_cast<int64_t>(sizeof(To)), static_cast<const void*>(&result), sizeof result);
  }
  return true;
}

template <class From>
ElementConversion float_conversion(DType wanted) {
  switch (wanted) {
    case DType::f64: return {convert<From, double>, std::is_same_v<From, double>};
    case DType::f32: return {convert<From, float>, std::is_same_v<From, float>};
    case DType::bf16: return {convert<From, bf16>, std::is_same_v<From, bf16>};
    default: return {};
  }
}

template <class From>
ElementConversion integer_conversion(DType wanted) {
  switch (wanted) {
    case DType::i32: return {convert<From, int32_t>, std::is_same_v<From, int32_t>};
    case DType::i64: return {convert<From, int64_t>, std::is_same_v<From, int64_t>};
    default: return {};
  }
}

}  // namespace

float float_from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, exponent = (half >> 10) & 31u, fraction = half & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in float
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

bf16 bf16_from_double(double value) {
  float near = static_cast<float>(value);
  if (static_cast<double>(near) != value && !std::isnan(value)) {
    // Round to odd: the float between says that something lies below it, so that the second rounding decides as one would.
    uint32_t bits = std::bit_cast<uint32_t>(near);
    if (std::abs(static_cast<double>(near)) > std::abs(value)) --bits;
    near = std::bit_cast<float>(bits | 1u);
  }
  return bf16(near);
}

ElementConversion find_conversion(const std::string& from, DType wanted) {
  if (from == "F64") return float_conversion<double>(wanted);
  if (from == "F32") return float_conversion<float>(wanted);
  if (from == "F16") return float_conversion<Half>(wanted);
  if (from == "BF16") return float_conversion<bf16>(wanted);
  if (from == "I64") return integer_conversion<int64_t>(wanted);
  if (from == "I32") return integer_conversion<int32_t>(wanted);
  return {};
}

}  // namespace quire
