#include "runtime/digest.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/digest_steps.h"
#include "runtime/error.h"

namespace quire {

namespace {

using namespace digest_steps;

uint64_t load64(const std::byte* p) { uint64_t v; std::memcpy(&v, p, 8); return v; }
uint64_t load32(const std::byte* p) { uint32_t v; std::memcpy(&v, p, 4); return v; }

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
  uint64_t hash = total_ >= sizeof buffer_ ? merged(accumulator_) : seed_ + prime5;
  hash += total_;
  const std::byte* p = buffer_;
  size_t left = buffered_;
  for (; left >= 8; p += 8, left -= 8) hash = with_lane(hash, load64(p));
  if (left >= 4) {
    hash = std::rotl(hash ^ load32(p) * prime1, 23) * prime2 + prime3;
    p += 4;
    left -= 4;
  }
  for (; left > 0; ++p, --left) hash = std::rotl(hash ^ static_cast<uint64_t>(*p) * prime5, 11) * prime1;
  return avalanche(hash);
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
