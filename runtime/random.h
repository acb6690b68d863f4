// Counter-based random numbers: every value is a pure function of (seed, stream, step, index); no state is kept or saved.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace quire {

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// A stream id from a name, such as a parameter's global name (64-bit FNV-1a).
uint64_t stream_of(std::string_view name);

/// 64 random bits for (seed, stream, step, index).
uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t step, uint64_t index);
/// Uniform in [0, 1) with 53 bits.
double random_uniform(uint64_t seed, uint64_t stream, uint64_t step, uint64_t index);
/// Standard normal (Box and Muller).
double random_normal(uint64_t seed, uint64_t stream, uint64_t step, uint64_t index);

/// A keyed permutation of [0, size): a Feistel network with cycle walking, O(1) memory, no state per element.
class Permutation {
 public:
  /// size 0 is allowed (and has no element).
  Permutation(uint64_t size, uint64_t seed, uint64_t stream);
  /// The image of `i`. Throws Error unless i < size.
  uint64_t operator()(uint64_t i) const;
  uint64_t size() const { return size_; }

 private:
  uint64_t size_, seed_, stream_;
  int half_bits_;
};

}  // namespace quire
