// Layout of the files of token shards, shared by writer and reader. Not installed.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace quire::shard_format {

static_assert(std::endian::native == std::endian::little, "token shards are little-endian");

constexpr int64_t version = 1, header_bytes = 64;
constexpr const char* json_magic = "quire-tokens";
constexpr const char *index_magic = "QUIREIDX", *tokens_magic = "QUIRETOK", *mask_magic = "QUIREMSK";

struct Entry {
  int64_t first, length, valid, text_bytes, unscored_bytes;
};
static_assert(sizeof(Entry) == 40);

/// magic, version, bytes of one element, zeros.
inline std::array<std::byte, header_bytes> header(const char* magic, int64_t unit) {
  std::array<std::byte, header_bytes> bytes{};
  std::memcpy(bytes.data(), magic, 8);
  std::memcpy(bytes.data() + 8, &version, 8);
  std::memcpy(bytes.data() + 16, &unit, 8);
  return bytes;
}

}  // namespace quire::shard_format
