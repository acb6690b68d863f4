// Document boundaries as devices look them up. Plain enough for device code.
#pragma once
#include <cstdint>

namespace quire {

constexpr int64_t boundary_tile = 64;  ///< tokens

/// Over the tokens of a tile that lie in runs: the least and the largest start and global index. A tile without such a token has last < first.
struct TileBoundaries {
  int32_t first_start, last_start, first_global, last_global;
};
/// What a device looks a token's boundaries up in. Tokens that no run covers have global and start -1.
struct BoundaryTable {
  const int32_t* global = nullptr;        ///< [tokens] index in the microbatch
  const int32_t* start = nullptr;         ///< [tokens] global index of its document's first token
  const TileBoundaries* tiles = nullptr;  ///< [ceil(tokens / boundary_tile)]
};

/// Where a tile of keys lies for a tile of queries, for all of its tokens together: no query reads a key after itself, before its document, or as far
/// back as the window (0 for none). A tile without tokens meets none. Along tiles of ascending tokens the answers ascend, `before` first.
enum class KeyTilePlace : uint8_t { before, meets, after };
constexpr KeyTilePlace key_tile_place(const TileBoundaries& queries, const TileBoundaries& keys, int32_t window) {
  if (keys.first_global > queries.last_global) return KeyTilePlace::after;
  if (keys.last_global < queries.first_start || (window > 0 && keys.last_global <= queries.first_global - window)) return KeyTilePlace::before;
  return KeyTilePlace::meets;
}

}  // namespace quire
