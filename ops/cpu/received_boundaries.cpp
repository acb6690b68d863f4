// Boundaries that were received, as they are computed with. The CPU's executors read records themselves: this is what devices are tested against.
#include <algorithm>
#include <limits>

#include "ops/cpu/elementwise.h"
#include "ops/kernels.h"

namespace quire {
namespace {

void received_boundaries(Rank&, const ReceivedBoundariesArgs& args) {
  for (int64_t i = 0; i < args.tokens_count; ++i) {
    const auto place = static_cast<int32_t>(i);
    int32_t index = args.indices != nullptr ? args.indices[i] : place, start = args.starts[i];
    const bool can_be = start >= 0 && start <= index && index < args.microbatch_tokens && index - start < args.most_positions;
    if (!can_be) {
      index = args.expected_indices != nullptr ? args.expected_indices[i] : place;
      start = args.expected_starts[i];
    }
    args.global[i] = index;
    args.start[i] = start;
    if (args.positions != nullptr) args.positions[i] = index - start;
  }
}

void boundary_tiles(Rank&, const BoundaryTilesArgs& args) {
  constexpr int32_t most = std::numeric_limits<int32_t>::max();
  for (int64_t begin = 0; begin < args.tokens_count; begin += boundary_tile) {
    TileBoundaries tile{most, -1, most, -1};
    for (int64_t i = begin; i < std::min(args.tokens_count, begin + boundary_tile); ++i) {
      if (args.start[i] < 0) continue;
      tile = {std::min(tile.first_start, args.start[i]), std::max(tile.last_start, args.start[i]), std::min(tile.first_global, args.global[i]),
              std::max(tile.last_global, args.global[i])};
    }
    args.tiles[begin / boundary_tile] = tile;
  }
}

}  // namespace

template <>
KernelList<ReceivedBoundariesArgs> cpu_kernels<ReceivedBoundariesArgs>() {
  static constexpr Kernel<ReceivedBoundariesArgs> list[] = {{"reference", always<ReceivedBoundariesArgs>, received_boundaries}};
  return list;
}

template <>
KernelList<BoundaryTilesArgs> cpu_kernels<BoundaryTilesArgs>() {
  static constexpr Kernel<BoundaryTilesArgs> list[] = {{"reference", always<BoundaryTilesArgs>, boundary_tiles}};
  return list;
}

}  // namespace quire
