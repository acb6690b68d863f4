// A fast 64-bit digest for data identity and checksums (XXH64, public algorithm by Y. Collet); not cryptographic.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// Streaming: the digest depends on the bytes only, not on how they were divided into updates.
class Digest {
 public:
  explicit Digest(uint64_t seed = 0);
  void update(std::span<const std::byte> bytes);
  template <class T> void update_value(const T& value) { update(std::as_bytes(std::span<const T, 1>(&value, 1))); }
  uint64_t value() const;

 private:
  uint64_t accumulator_[4], seed_, total_ = 0;
  std::byte buffer_[32];
  size_t buffered_ = 0;
};

uint64_t digest_of(std::span<const std::byte> bytes);
/// 16 lower-case hexadecimal digits, and back (DataError).
std::string to_hex(uint64_t digest);
uint64_t from_hex(std::string_view hex);

}  // namespace quire
