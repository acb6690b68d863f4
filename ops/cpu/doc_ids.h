// Tile ranges of attention from document starts.
#pragma once
#include <algorithm>
#include <cstdint>

namespace quire {

/// For each tile of `tile` consecutive queries: first[t] and last[t], first and one past the last key that any of its rows reads.
/// start_of(i) gives the first token of token i's document. One start is read per tile: starts never decrease and every query
/// reads itself, so the tile's first row reads the earliest key and its last row the latest.
template <class StartOf>
void tile_ranges(int64_t tokens, int64_t tile, int64_t window, const StartOf& start_of, int32_t* first, int32_t* last) {
  for (int64_t begin = 0, t = 0; begin < tokens; begin += tile, ++t) {
    const int64_t start = start_of(begin);
    first[t] = static_cast<int32_t>(window > 0 ? std::max(start, begin - window + 1) : start);
    last[t] = static_cast<int32_t>(std::min(tokens, begin + tile));
  }
}

}  // namespace quire
