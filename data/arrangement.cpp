#include "data/arrangement.h"

#include <algorithm>
#include <numeric>

namespace quire {

namespace {

struct Part {
  std::vector<size_t> rows;
  size_t room = 0;
  int64_t cost = 0;
};

std::vector<Part> empty_parts(size_t rows, size_t size) {
  std::vector<Part> parts((rows + size - 1) / size);
  for (size_t m = 0; m < parts.size(); ++m) parts[m].room = std::min(size, rows - m * size);
  return parts;
}

/// Dearest rows first, each to the cheapest part with room.
void deal(std::span<const int64_t> costs, std::vector<Part>& parts) {
  std::vector<size_t> dearest(costs.size());
  std::iota(dearest.begin(), dearest.end(), size_t{0});
  std::ranges::stable_sort(dearest, std::greater{}, [&](size_t row) { return costs[row]; });
  const auto dearer = [&](size_t a, size_t b) { return std::pair(parts[a].cost, a) > std::pair(parts[b].cost, b); };
  std::vector<size_t> heap(parts.size());  // cheapest on top
  std::iota(heap.begin(), heap.end(), size_t{0});
  for (const size_t row : dearest) {
    std::ranges::pop_heap(heap, dearer);
    Part& part = parts[heap.back()];
    part.rows.push_back(row);
    part.cost += costs[row];
    if (--part.room == 0) heap.pop_back();
    else std::ranges::push_heap(heap, dearer);
  }
}

/// Changes the pair of rows that brings the dearer of the two parts lowest. False where none lowers it.
bool change_places(std::span<const int64_t> costs, Part& dear, Part& cheap) {
  int64_t best = dear.cost;
  size_t *from = nullptr, *to = nullptr;
  for (size_t& a : dear.rows)
    for (size_t& b : cheap.rows) {
      const int64_t moved = costs[a] - costs[b], after = std::max(dear.cost - moved, cheap.cost + moved);
      if (after >= best) continue;
      best = after;
      from = &a;
      to = &b;
    }
  if (from == nullptr) return false;
  const int64_t moved = costs[*from] - costs[*to];
  std::swap(*from, *to);
  dear.cost -= moved;
  cheap.cost += moved;
  return true;
}

void improve(std::span<const int64_t> costs, std::vector<Part>& parts) {
  for (size_t changes = 0; changes < 4 * parts.size(); ++changes) {
    Part& dear = *std::ranges::max_element(parts, {}, &Part::cost);
    std::vector<Part*> others;
    for (Part& part : parts)
      if (&part != &dear) others.push_back(&part);
    std::ranges::stable_sort(others, {}, [](const Part* part) { return part->cost; });
    if (others.size() > 8) others.resize(8);
    if (std::ranges::none_of(others, [&](Part* other) { return change_places(costs, dear, *other); })) return;
  }
}

/// Up to the dearest and down again. The last part stays where it is where it has fewer rows than the others: microbatches are cut by number.
void rise_and_fall(std::vector<Part>& parts) {
  const size_t whole = parts.size() > 1 && parts.back().rows.size() < parts.front().rows.size() ? parts.size() - 1 : parts.size();
  std::ranges::stable_sort(parts.begin(), parts.begin() + static_cast<ptrdiff_t>(whole), {}, &Part::cost);
  std::vector<Part> up, down;
  for (size_t m = 0; m < whole; ++m) (m % 2 == 0 ? up : down).push_back(std::move(parts[m]));
  std::ranges::move(up, parts.begin());
  std::ranges::move(down.rbegin(), down.rend(), parts.begin() + static_cast<ptrdiff_t>(up.size()));
}

std::vector<size_t> joined(const std::vector<Part>& parts) {
  std::vector<size_t> order;
  for (const Part& part : parts) order.insert(order.end(), part.rows.begin(), part.rows.end());
  return order;
}

int64_t dearest(const std::vector<Part>& parts) { return std::ranges::max(parts, {}, &Part::cost).cost; }

}  // namespace

std::vector<size_t> arrange_rows(std::span<const int64_t> costs, int64_t microbatch_size) {
  if (costs.empty()) return {};
  const auto size = static_cast<size_t>(std::max<int64_t>(microbatch_size, 1));
  std::vector<Part> parts = empty_parts(costs.size(), size);
  deal(costs, parts);
  improve(costs, parts);
  std::vector<Part> given = empty_parts(costs.size(), size);
  for (size_t row = 0; row < costs.size(); ++row) {
    given[row / size].rows.push_back(row);
    given[row / size].cost += costs[row];
  }
  if (dearest(given) <= dearest(parts)) parts = std::move(given);
  for (Part& part : parts) std::ranges::sort(part.rows);
  rise_and_fall(parts);
  return joined(parts);
}

std::vector<int64_t> microbatch_costs(std::span<const int64_t> costs, std::span<const size_t> order, int64_t microbatch_size) {
  std::vector<int64_t> sums((order.size() + static_cast<size_t>(microbatch_size) - 1) / static_cast<size_t>(microbatch_size), 0);
  for (size_t i = 0; i < order.size(); ++i) sums[i / static_cast<size_t>(microbatch_size)] += costs[order[i]];
  return sums;
}

}  // namespace quire
