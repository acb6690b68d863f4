#include "ops/cuda/attention_work.h"

#include <algorithm>
#include <limits>

#include "runtime/thread_pool.h"

namespace quire {

std::vector<TileBoundaries> tile_boundaries(std::span<const DocumentRun> runs, int64_t tokens) {
  constexpr TileBoundaries none{std::numeric_limits<int32_t>::max(), -1, std::numeric_limits<int32_t>::max(), -1};
  std::vector<TileBoundaries> tiles(static_cast<size_t>(chunks_of(tokens, boundary_tile)), none);
  for (const DocumentRun& run : runs)
    for (int64_t begin = run.local, end = begin + run.length; begin < end;) {
      const int64_t tile = begin / boundary_tile, next = std::min(end, (tile + 1) * boundary_tile);
      const auto first = static_cast<int32_t>(run.global + begin - run.local), last = static_cast<int32_t>(run.global + next - 1 - run.local);
      TileBoundaries& t = tiles[static_cast<size_t>(tile)];
      t = {std::min(t.first_start, run.start), std::max(t.last_start, run.start), std::min(t.first_global, first), std::max(t.last_global, last)};
      begin = next;
    }
  return tiles;
}

bool tiles_ascend(std::span<const TileBoundaries> tiles) {
  for (size_t i = 0; i < tiles.size(); ++i) {
    if (tiles[i].last_global < tiles[i].first_global) return false;
    if (i > 0 && (tiles[i].first_global < tiles[i - 1].first_global || tiles[i].last_global < tiles[i - 1].last_global || tiles[i].first_start < tiles[i - 1].first_start))
      return false;
  }
  return true;
}

int32_t kernel_window(int64_t window) { return window >= std::numeric_limits<int32_t>::max() ? 0 : static_cast<int32_t>(window); }

namespace {

std::vector<int32_t> sorted_ends(std::span<const TileBoundaries> tiles, int32_t TileBoundaries::* end) {
  std::vector<int32_t> ends;
  ends.reserve(tiles.size());
  for (const TileBoundaries& tile : tiles)
    if (tile.first_global <= tile.last_global) ends.push_back(tile.*end);
  if (!std::is_sorted(ends.begin(), ends.end())) std::sort(ends.begin(), ends.end());
  return ends;
}

/// Key tiles are after a query tile or before it, never both: so those that meet it are counted by two thresholds.
int64_t meeting_tiles(std::span<const TileBoundaries> queries, std::span<const TileBoundaries> keys, int32_t window) {
  const std::vector<int32_t> firsts = sorted_ends(keys, &TileBoundaries::first_global), lasts = sorted_ends(keys, &TileBoundaries::last_global);
  int64_t count = 0;
  for (const TileBoundaries& q : queries) {
    if (q.last_global < q.first_global) continue;
    const int32_t least = window > 0 ? std::max(q.first_start, q.first_global - window + 1) : q.first_start;
    const auto not_after = std::upper_bound(firsts.begin(), firsts.end(), q.last_global) - firsts.begin();
    const auto before = std::lower_bound(lasts.begin(), lasts.end(), least) - lasts.begin();
    count += not_after - before;
  }
  return count;
}

/// Keys at hand by their place in the microbatch.
class KeyCounts {
 public:
  explicit KeyCounts(std::span<const DocumentRun> runs) : runs_(runs.begin(), runs.end()) {
    const auto by_global = [](const DocumentRun& a, const DocumentRun& b) { return a.global < b.global; };
    if (!std::is_sorted(runs_.begin(), runs_.end(), by_global)) std::sort(runs_.begin(), runs_.end(), by_global);
    int64_t keys = 0, sum = 0, end = 0;
    for (const DocumentRun& run : runs_) {
      sum += keys * (run.global - end) + keys * run.length + int64_t{run.length} * (run.length - 1) / 2;
      keys += run.length;
      end = int64_t{run.global} + run.length;
      after_.push_back({keys, sum});
    }
  }
  /// Keys whose index is below `global`.
  int64_t before(int64_t global) const {
    const size_t next = first_from(global);
    if (next == 0) return 0;
    const DocumentRun& run = runs_[next - 1];
    return after_[next - 1].keys - std::max<int64_t>(0, int64_t{run.global} + run.length - global);
  }
  /// Sum of before(x) over x in [0, global).
  int64_t sum_before(int64_t global) const {
    const size_t next = first_from(global);
    if (next == 0) return 0;
    const DocumentRun& run = runs_[next - 1];
    const int64_t end = int64_t{run.global} + run.length, over = end - global;
    if (over <= 0) return after_[next - 1].sum - after_[next - 1].keys * over;
    // Of the run's last `over` tokens the counts before each are keys - over, ..., keys - 1.
    return after_[next - 1].sum - after_[next - 1].keys * over + over * (over + 1) / 2;
  }

 private:
  struct After { int64_t keys, sum; };  ///< before(x) and sum_before(x) at the end of a run
  size_t first_from(int64_t global) const {
    return static_cast<size_t>(std::partition_point(runs_.begin(), runs_.end(), [&](const DocumentRun& run) { return run.global < global; }) - runs_.begin());
  }
  std::vector<DocumentRun> runs_;
  std::vector<After> after_;
};

int64_t meeting_pairs(std::span<const DocumentRun> query_runs, std::span<const DocumentRun> key_runs, int32_t window) {
  const KeyCounts keys(key_runs);
  int64_t pairs = 0;
  for (const DocumentRun& run : query_runs) {
    const int64_t begin = run.global, end = begin + run.length;
    pairs += keys.sum_before(end + 1) - keys.sum_before(begin + 1);
    // Of these, the keys before the document's start or the window.
    const int64_t whole = window > 0 ? std::clamp<int64_t>(int64_t{run.start} + window, begin, end) : end;  // queries before it reach their document's start
    pairs -= (whole - begin) * keys.before(run.start);
    if (whole < end) pairs -= keys.sum_before(end - window + 1) - keys.sum_before(whole - window + 1);
  }
  return pairs;
}

}  // namespace

AttentionWork attention_work(std::span<const DocumentRun> query_runs, std::span<const DocumentRun> key_runs, int64_t query_tokens, int64_t key_tokens, int64_t window) {
  const std::vector<TileBoundaries> queries = tile_boundaries(query_runs, query_tokens), keys = tile_boundaries(key_runs, key_tokens);
  const int32_t reach = kernel_window(window);
  return {meeting_tiles(queries, keys, reach) * boundary_tile * boundary_tile, meeting_pairs(query_runs, key_runs, reach), tiles_ascend(queries), tiles_ascend(keys)};
}

}  // namespace quire
