// Best-fit decreasing: bins of any capacity, filled from the largest item down.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace quire {

/// Bins of item numbers; in each the lengths sum to at most `capacity`. Items go in decreasing length (equal ones in order), each
/// into the fullest bin that still takes it (the earliest such bin). O(n log n). Uses at most 11/9 of the least possible number of
/// bins, plus 4 (D. S. Johnson, 1973). Throws DataError for a length below 1 or above the capacity.
std::vector<std::vector<int64_t>> best_fit_decreasing(std::span<const int64_t> lengths, int64_t capacity);

}  // namespace quire
