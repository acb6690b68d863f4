// Element types of tensors.
#pragma once
#include <bit>
#include <cstdint>
#include <string_view>

namespace quire {

enum class DType : uint8_t { f64, f32, bf16, i32, i64 };

/// Bytes of one element.
constexpr int64_t size_of(DType t) {
  switch (t) {
    case DType::f64: case DType::i64: return 8;
    case DType::f32: case DType::i32: return 4;
    case DType::bf16: return 2;
  }
  return 0;
}

std::string_view name_of(DType t);
/// Inverse of `name_of`; throws ConfigError with the nearest name.
DType dtype_from(std::string_view name);

/// The type in which sums over values of type `t` are kept: f64 for f64, else f32. Throws DTypeError for integers.
DType accumulator_of(DType t);

/// bfloat16 storage: the upper half of an IEEE binary32. Arithmetic happens in float.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float f) {
    uint32_t u = std::bit_cast<uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) bits = static_cast<uint16_t>((u >> 16) | 0x40);  // stays a (quiet) NaN
    else bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1)) >> 16);             // round to nearest even
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

template <class T> struct dtype_of;
template <> struct dtype_of<double> { static constexpr DType value = DType::f64; };
template <> struct dtype_of<float> { static constexpr DType value = DType::f32; };
template <> struct dtype_of<bf16> { static constexpr DType value = DType::bf16; };
template <> struct dtype_of<int32_t> { static constexpr DType value = DType::i32; };
template <> struct dtype_of<int64_t> { static constexpr DType value = DType::i64; };

}  // namespace quire
