#include "data/best_fit.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/error.h"

namespace quire {

std::vector<std::vector<int64_t>> best_fit_decreasing(std::span<const int64_t> lengths, int64_t capacity) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto length = [&](int64_t item) { return lengths[static_cast<size_t>(item)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return length(a) > length(b); });

  std::vector<std::vector<int64_t>> bins;
  std::set<std::pair<int64_t, size_t>> by_room;  // (room left, bin): the least room that is enough is the best fit
  for (const int64_t item : order) {
    const int64_t n = length(item);
    if (n < 1 || n > capacity) fail<DataError>("packing", "an item of {} tokens for rows of {}", n, capacity);
    const auto best = by_room.lower_bound({n, 0});
    const int64_t room = (best == by_room.end() ? capacity : best->first) - n;
    const size_t bin = best == by_room.end() ? bins.size() : best->second;
    if (best == by_room.end()) bins.emplace_back();
    else by_room.erase(best);
    bins[bin].push_back(item);
    if (room > 0) by_room.emplace(room, bin);
  }
  return bins;
}

}  // namespace quire
