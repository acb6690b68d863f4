// Element types, and bfloat16's rounding against a literal one.
#include "runtime/dtype.h"

#include "check.h"

using namespace quire;
using namespace quire::test;

namespace {

/// Round to nearest even by looking at both neighbours in f64.
float rounded_literally(float f) {
  const uint32_t below = std::bit_cast<uint32_t>(f) & 0xffff0000u, above = below + 0x10000u;  // in magnitude
  // A neighbour past the largest finite value stands for 2^128, as IEEE rounding has it.
  const auto value = [](uint32_t u) {
    const float v = std::bit_cast<float>(u);
    return std::isinf(v) ? std::copysign(0x1p128, static_cast<double>(v)) : static_cast<double>(v);
  };
  const double x = f, down = std::abs(x - value(below)), up = std::abs(value(above) - x);
  const bool below_is_even = (below >> 16) % 2 == 0;
  return std::bit_cast<float>(down < up || (down == up && below_is_even) ? below : above);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(dtype)

BOOST_AUTO_TEST_CASE(sizes_names_and_accumulators) {
  BOOST_TEST(size_of(DType::f64) == 8);
  BOOST_TEST(size_of(DType::f32) == 4);
  BOOST_TEST(size_of(DType::bf16) == 2);
  BOOST_TEST(size_of(DType::i32) == 4);
  BOOST_TEST(size_of(DType::i64) == 8);
  BOOST_TEST((accumulator_of(DType::f64) == DType::f64));
  BOOST_TEST((accumulator_of(DType::f32) == DType::f32));
  BOOST_TEST((accumulator_of(DType::bf16) == DType::f32));
  check_error<DTypeError>([] { accumulator_of(DType::i32); }, {"[dtype]", "i32", "f64, f32, bf16"});
}

BOOST_AUTO_TEST_CASE(bf16_rounds_to_nearest_even) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; ++i) {
    uint32_t bits = static_cast<uint32_t>(random());
    if (i % 4 == 0) bits = (bits & 0xffff0000u) | 0x8000u;                                     // ties
    if (i % 4 == 1) bits = (bits & 0xffff0000u) | (0x8000u + static_cast<uint32_t>(i % 3) - 1);  // next to ties
    if (i % 64 == 2) bits = (bits & 0x80000000u) | (random() & 0x7fffffu);                      // denormal numbers
    if (i % 64 == 3) bits = (bits & 0x80000000u) | 0x7f7f0000u | (random() & 0xffffu);          // next to infinity
    const float f = std::bit_cast<float>(bits);
    if (!std::isfinite(f)) continue;
    BOOST_REQUIRE_EQUAL(std::bit_cast<uint32_t>(static_cast<float>(bf16(f))), std::bit_cast<uint32_t>(rounded_literally(f)));
  }
}

BOOST_AUTO_TEST_CASE(every_bf16_survives_and_nan_stays_nan) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    bf16 value;
    value.bits = static_cast<uint16_t>(bits);
    const float f = static_cast<float>(value);
    if (std::isnan(f)) BOOST_REQUIRE(std::isnan(static_cast<float>(bf16(f))));
    else BOOST_REQUIRE_EQUAL(bf16(f).bits, bits);
  }
  // A NaN whose payload lies in the dropped half would turn into infinity by rounding or truncating alone.
  for (const uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7f80ffffu})
    BOOST_TEST(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(nan)))));
  BOOST_TEST(static_cast<float>(bf16(std::numeric_limits<float>::infinity())) == std::numeric_limits<float>::infinity());
  BOOST_TEST(std::isinf(static_cast<float>(bf16(std::numeric_limits<float>::max()))));
}

BOOST_AUTO_TEST_SUITE_END()
