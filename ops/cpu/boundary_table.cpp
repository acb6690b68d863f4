// The table of boundaries that devices look tokens up in. Attention on the CPU works on the runs themselves: this is what other devices are tested against.
#include <algorithm>
#include <limits>

#include "ops/kernels.h"
#include "runtime/rank.h"

namespace quire {
namespace {

bool can_run(const BoundaryTableArgs&) { return true; }

void boundary_table(Rank&, const BoundaryTableArgs& args) {
  std::fill_n(args.global, args.tokens_count, -1);
  std::fill_n(args.start, args.tokens_count, -1);
  constexpr TileBoundaries none{std::numeric_limits<int32_t>::max(), -1, std::numeric_limits<int32_t>::max(), -1};
  std::fill_n(args.tiles, chunks_of(args.tokens_count, boundary_tile), none);
  for (int64_t r = 0; r < args.runs_count; ++r) {
    const DocumentRun& run = args.runs[r];
    for (int32_t i = 0; i < run.length; ++i) {
      const int32_t token = run.local + i, global = run.global + i;
      args.global[token] = global;
      args.start[token] = run.start;
      TileBoundaries& tile = args.tiles[token / boundary_tile];
      tile = {std::min(tile.first_start, run.start), std::max(tile.last_start, run.start), std::min(tile.first_global, global), std::max(tile.last_global, global)};
    }
  }
}

}  // namespace

template <>
KernelList<BoundaryTableArgs> cpu_kernels<BoundaryTableArgs>() {
  static constexpr Kernel<BoundaryTableArgs> list[] = {{"plain", can_run, boundary_table}};
  return list;
}

}  // namespace quire
