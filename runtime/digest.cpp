#include "runtime/digest.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/error.h"

namespace quire {

namespace {

constexpr uint64_t prime1 = 0x9E3779B185EBCA87u, prime2 = 0xC2B2AE3D27D4EB4Fu, prime3 = 0x165667B19E3779F9u, prime4 = 0x85EBCA77C2B2AE63u,
                   prime5 = 0x27D4EB2F165667C5u;

uint64_t load64(const std::byte* p) { uint64_t v; std::memcpy(&v, p, 8); return v; }
uint64_t load32(const std::byte* p) { uint32_t v; std::memcpy(&v, p, 4); return v; }
uint64_t mix(uint64_t accumulator, uint64_t lane) { return std::rotl(accumulator + lane * prime2, 31) * prime1; }
uint64_t merge(uint64_t hash, uint64_t accumulator) { return (hash ^ mix(0, accumulator)) * prime1 + prime4; }

}  // namespace

Digest::Digest(uint64_t seed) : accumulator_{seed + prime1 + prime2, seed + prime2, seed, seed - prime1}, seed_(seed) {}

void Digest::update(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  total_ += bytes.size();
  const auto consume = [this](const std::byte* p) {
    for (int lane = 0; lane < 4; ++lane) accumulator_[lane] = mix(accumulator_[lane], load64(p + 8 * lane));
  };
  if (buffered_ > 0) {
    const size_t taken = std::min(bytes.size(), sizeof buffer_ - buffered_);
    std::memcpy(buffer_ + buffered_, bytes.data(), taken);
    buffered_ += taken;
    bytes = bytes.subspan(taken);
    if (buffered_ < sizeof buffer_) return;
    consume(buffer_);
    buffered_ = 0;
  }
  for (; bytes.size() >= sizeof buffer_; bytes = bytes.subspan(sizeof buffer_)) consume(bytes.data());
  if (!bytes.empty()) std::memcpy(buffer_, bytes.data(), bytes.size());
  buffered_ = bytes.size();
}

uint64_t Digest::value() const {
  uint64_t hash = seed_ + prime5;
  if (total_ >= sizeof buffer_) {
    hash = std::rotl(accumulator_[0], 1) + std::rotl(accumulator_[1], 7) + std::rotl(accumulator_[2], 12) + std::rotl(accumulator_[3], 18);
    for (uint64_t accumulator : accumulator_) hash = merge(hash, accumulator);
  }
  hash += total_;
  const std::byte* p = buffer_;
  size_t left = buffered_;
  for (; left >= 8; p += 8, left -= 8) hash = std::rotl(hash ^ mix(0, load64(p)), 27) * prime1 + prime4;
  if (left >= 4) {
    hash = std::rotl(hash ^ load32(p) * prime1, 23) * prime2 + prime3;
    p += 4;
    left -= 4;
  }
  for (; left > 0; ++p, --left) hash = std::rotl(hash ^ static_cast<uint64_t>(*p) * prime5, 11) * prime1;
  hash = (hash ^ hash >> 33) * prime2;
  hash = (hash ^ hash >> 29) * prime3;
  return hash ^ hash >> 32;
}

uint64_t digest_of(std::span<const std::byte> bytes) {
  Digest digest;
  digest.update(bytes);
  return digest.value();
}

std::string to_hex(uint64_t digest) { return fmt::format("{:016x}", digest); }

uint64_t from_hex(std::string_view hex) {
  uint64_t value = 0;
  if (hex.size() != 16) fail<DataError>("digest", "'{}' is not 16 hexadecimal digits", hex);
  for (char c : hex) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) fail<DataError>("digest", "'{}' is not 16 hexadecimal digits", hex);
    value = value << 4 | static_cast<uint64_t>(digit);
  }
  return value;
}

}  // namespace quire
