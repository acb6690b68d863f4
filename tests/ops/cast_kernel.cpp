// Conversions: every bf16 value, hard cases of rounding, NaN and infinities.
#include <bit>

#include "ops/kernel_test.h"

using namespace quire;
using namespace quire::test;

namespace {

template <class From, class To>
std::vector<To> cast(Rank& rank, const std::vector<From>& from) {
  const int64_t count = static_cast<int64_t>(from.size());
  std::vector<To> to = unwritten<To>(count);
  run_kernel(rank, CastArgs{dtype_of<From>::value, dtype_of<To>::value, count, from.data(), to.data()});
  close_output(to);
  return to;
}

std::vector<bf16> every_bf16() {
  std::vector<bf16> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<uint16_t>(i);
  return all;
}

/// The bf16 value nearest to x (ties to even), found among all finite ones of x's sign by distance.
uint16_t nearest_bf16(double x) {
  const auto value = [](uint16_t bits) { bf16 b; b.bits = bits; return to_double(b); };
  const double magnitude = std::abs(x);
  uint16_t low = 0, high = 0x7f80;  // value(low) <= magnitude; infinity stands for 2^128
  while (high - low > 1) {
    const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
    (value(middle) <= magnitude ? low : high) = middle;
  }
  const Exact below = magnitude - static_cast<Exact>(value(low));
  const Exact above = (high == 0x7f80 ? std::ldexp(1.0L, 128) : static_cast<Exact>(value(high))) - magnitude;
  const uint16_t nearest = below < above || (below == above && low % 2 == 0) ? low : high;
  return static_cast<uint16_t>(nearest | (std::signbit(x) ? 0x8000 : 0));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cast_kernel)

BOOST_AUTO_TEST_CASE(every_bf16_survives_the_way_through_f32_and_f64) {
  const std::vector<bf16> all = every_bf16();
  std::vector<bf16> quiet = all;  // signalling NaNs become quiet, all others keep their bits
  for (bf16& b : quiet)
    if (std::isnan(to_double(b))) b.bits |= 0x40;
  for (const ThreadRanks& ranks : every_rank())
    for (const auto& rank : ranks.by_threads) {
      BOOST_TEST(same_bits(cast<float, bf16>(*rank, cast<bf16, float>(*rank, all)), quiet));
      BOOST_TEST(same_bits(cast<double, bf16>(*rank, cast<bf16, double>(*rank, all)), quiet));
      BOOST_TEST(same_bits(cast<bf16, bf16>(*rank, all), all));
      BOOST_TEST(same_bits(cast<double, float>(*rank, cast<bf16, double>(*rank, part(all, 0, 0x7f81))), cast<bf16, float>(*rank, part(all, 0, 0x7f81))));
    }
}

BOOST_AUTO_TEST_CASE(f32_to_bf16_rounds_as_the_scalar_type_does) {
  std::mt19937_64 random(1);
  std::vector<float> values;
  std::vector<bf16> expected;
  for (int i = 0; i < 100000; ++i) values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  for (uint32_t upper = 0; upper < 65536; upper += 7)  // ties and their neighbours
    for (const uint32_t lower : {0x7fffu, 0x8000u, 0x8001u, 0xffffu}) values.push_back(std::bit_cast<float>(upper << 16 | lower));
  for (const float v : values) expected.push_back(bf16(v));
  for (const ThreadRanks& ranks : every_rank()) {
    BOOST_TEST(same_bits(cast<float, bf16>(ranks.one(), values), expected));
    for (size_t i = 0; i < values.size(); i += 97)
      if (std::isfinite(values[i])) BOOST_TEST(expected[i].bits == nearest_bf16(values[i]));
  }
}

BOOST_AUTO_TEST_CASE(f64_to_bf16_rounds_once) {
  std::vector<double> values{1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-8 - 0x1p-40, 1 + 0x1p-8, -(1 + 0x1p-8 + 0x1p-40), 3.4e38, 3.39e38, 1e300, -1e300, 1e-42, 1e-300, 0.0, -0.0};
  std::mt19937_64 random(2);
  for (int i = 0; i < 20000; ++i) {
    bf16 near;
    near.bits = static_cast<uint16_t>(random() & 0xff7f);
    const double tie = to_double(near) * (1 + 0x1p-8);  // half way to the next value for some, and a hair beside it
    if (std::isfinite(tie)) values.push_back(tie * (1 + (static_cast<double>(random() % 3) - 1) * 0x1p-45));
  }
  std::vector<bf16> expected(values.size());
  for (size_t i = 0; i < values.size(); ++i) expected[i].bits = nearest_bf16(values[i]);
  BOOST_TEST(expected[0].bits != bf16(static_cast<float>(values[0])).bits);  // control: by way of f32 the first rounds twice
  for (const ThreadRanks& ranks : every_rank()) BOOST_TEST(same_bits(cast<double, bf16>(ranks.one(), values), expected));
}

BOOST_AUTO_TEST_CASE(f64_and_f32_convert_as_the_language_does) {
  std::mt19937_64 random(3);
  for (const int64_t count : {0, 1, 5, 33, 20000}) {
    const auto wide = random_values<double>(random, count, 1e3);
    std::vector<float> narrow;
    for (const double v : wide) narrow.push_back(static_cast<float>(v));
    std::vector<double> back(narrow.begin(), narrow.end());
    for (const ThreadRanks& ranks : every_rank())
      for (const auto& rank : ranks.by_threads) {
        BOOST_TEST(same_bits(cast<double, float>(*rank, wide), narrow));
        BOOST_TEST(same_bits(cast<float, double>(*rank, narrow), back));
        BOOST_TEST(same_bits(cast<double, double>(*rank, wide), wide));
      }
  }
}

BOOST_AUTO_TEST_CASE(integers_are_refused) {
  for (const auto& kernel : cpu_kernels<CastArgs>()) {
    BOOST_TEST(!kernel.can_run({DType::i32, DType::f32, 0, nullptr, nullptr}));
    BOOST_TEST(!kernel.can_run({DType::f32, DType::i64, 0, nullptr, nullptr}));
  }
}

BOOST_AUTO_TEST_SUITE_END()
