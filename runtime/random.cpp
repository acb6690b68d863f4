#include "runtime/random.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "runtime/error.h"

namespace quire {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t multiplier0 = 0xD2511F53u, multiplier1 = 0xCD9E8D57u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = multiplier0 * counter[0], product1 = multiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001b3u;
  return hash;
}

namespace {

std::array<uint32_t, 4> block(uint64_t seed, uint64_t stream, uint64_t step, uint64_t index) {
  // The stream is mixed into the key, so that (step, index) keep the whole counter.
  const uint64_t key = seed * 0x9E3779B97F4A7C15u ^ stream;
  return philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)},
                {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
}

uint64_t join(uint32_t low, uint32_t high) { return static_cast<uint64_t>(high) << 32 | low; }
double unit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

}  // namespace

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t step, uint64_t index) {
  const auto b = block(seed, stream, step, index);
  return join(b[0], b[1]);
}

double random_uniform(uint64_t seed, uint64_t stream, uint64_t step, uint64_t index) { return unit(random_bits(seed, stream, step, index)); }

double random_normal(uint64_t seed, uint64_t stream, uint64_t step, uint64_t index) {
  const auto b = block(seed, stream, step, index);
  const double u = 1.0 - unit(join(b[0], b[1]));  // in (0, 1]
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * unit(join(b[2], b[3])));
}

Permutation::Permutation(uint64_t size, uint64_t seed, uint64_t stream)
    : size_(size), seed_(seed), stream_(stream), half_bits_((std::bit_width(size > 1 ? size - 1 : 1) + 1) / 2) {}

uint64_t Permutation::operator()(uint64_t i) const {
  if (i >= size_) fail("permutation", "index {} is not below the size {}", i, size_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {  // the network permutes [0, 2^(2 half_bits)), at most 4 times the size: walk until inside
    uint64_t left = i >> half_bits_, right = i & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t mixed = left ^ (random_bits(seed_, stream_, round, right) & mask);
      left = right;
      right = mixed;
    }
    i = left << half_bits_ | right;
  } while (i >= size_);
  return i;
}

}  // namespace quire
