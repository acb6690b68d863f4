// Which tiles attention computes on a CUDA device, known from the runs alone: kernels skip by it, and the host counts by it.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ops/kernels.h"

namespace quire {

/// The summaries that `boundary_table` makes of these runs. O(runs + tiles).
std::vector<TileBoundaries> tile_boundaries(std::span<const DocumentRun> runs, int64_t tokens);

/// Whether all tiles have tokens and their indices ascend from tile to tile: then those that meet another tile follow one another.
bool tiles_ascend(std::span<const TileBoundaries> tiles);

/// As kernels take it: 0 where it is none, or longer than any document.
int32_t kernel_window(int64_t window);

/// A call's work for one head.
struct AttentionWork {
  int64_t computed_pairs;  ///< of all tiles that meet, masked pairs and places past the last token included
  int64_t attended_pairs;
  bool queries_ascend, keys_ascend;
};
/// O(runs + tiles) where runs ascend in the microbatch, and a sort of them where they do not.
AttentionWork attention_work(std::span<const DocumentRun> query_runs, std::span<const DocumentRun> key_runs, int64_t query_tokens, int64_t key_tokens, int64_t window);

}  // namespace quire
