// The steps of XXH64 (public algorithm by Y. Collet), for the digest of the host and for those of devices.
#pragma once
#include <bit>
#include <cstdint>

namespace quire::digest_steps {

constexpr uint64_t prime1 = 0x9E3779B185EBCA87u, prime2 = 0xC2B2AE3D27D4EB4Fu, prime3 = 0x165667B19E3779F9u, prime4 = 0x85EBCA77C2B2AE63u,
                   prime5 = 0x27D4EB2F165667C5u;

constexpr uint64_t mix(uint64_t accumulator, uint64_t lane) { return std::rotl(accumulator + lane * prime2, 31) * prime1; }
constexpr uint64_t merge(uint64_t hash, uint64_t accumulator) { return (hash ^ mix(0, accumulator)) * prime1 + prime4; }
/// Of the four accumulators, where there were 32 bytes or more.
constexpr uint64_t merged(const uint64_t (&a)[4]) {
  uint64_t hash = std::rotl(a[0], 1) + std::rotl(a[1], 7) + std::rotl(a[2], 12) + std::rotl(a[3], 18);
  for (int i = 0; i < 4; ++i) hash = merge(hash, a[i]);
  return hash;
}
/// Takes 8 bytes that fill no 32.
constexpr uint64_t with_lane(uint64_t hash, uint64_t lane) { return std::rotl(hash ^ mix(0, lane), 27) * prime1 + prime4; }
constexpr uint64_t avalanche(uint64_t hash) {
  hash = (hash ^ hash >> 33) * prime2;
  hash = (hash ^ hash >> 29) * prime3;
  return hash ^ hash >> 32;
}

}  // namespace quire::digest_steps
