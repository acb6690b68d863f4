#include "data/best_fit.h"

#include <algorithm>
#include <numeric>

#include "check.h"

using namespace quire;

BOOST_AUTO_TEST_SUITE(best_fit)

BOOST_AUTO_TEST_CASE(each_item_goes_into_the_fullest_bin_that_takes_it) {
  // Sorted 7 6 5 3 2 1 1: the 3 fills up the 7, the 2 and both 1s the 6.
  const std::vector<int64_t> lengths{3, 7, 1, 5, 6, 2, 1};
  const auto bins = best_fit_decreasing(lengths, 10);
  const std::vector<std::vector<int64_t>> expected{{1, 0}, {4, 5, 2, 6}, {3}};
  BOOST_TEST((bins == expected));
}

/// The definition, in O(n * bins).
static std::vector<std::vector<int64_t>> literal(const std::vector<int64_t>& lengths, int64_t capacity) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return lengths[size_t(a)] > lengths[size_t(b)]; });
  std::vector<std::vector<int64_t>> bins;
  std::vector<int64_t> room;
  for (const int64_t item : order) {
    size_t best = bins.size();
    for (size_t b = 0; b < bins.size(); ++b)
      if (room[b] >= lengths[size_t(item)] && (best == bins.size() || room[b] < room[best])) best = b;
    if (best == bins.size()) {
      bins.emplace_back();
      room.push_back(capacity);
    }
    bins[best].push_back(item);
    room[best] -= lengths[size_t(item)];
  }
  return bins;
}

BOOST_AUTO_TEST_CASE(equals_the_literal_definition) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 300; ++round) {
    const int64_t capacity = 1 + static_cast<int64_t>(random() % 200);
    std::vector<int64_t> lengths(random() % 120);
    for (int64_t& n : lengths) n = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(capacity));
    BOOST_REQUIRE((best_fit_decreasing(lengths, capacity) == literal(lengths, capacity)));
  }
}

BOOST_AUTO_TEST_CASE(items_that_fit_no_bin_are_refused) {
  test::check_error<DataError>([] { best_fit_decreasing(std::vector<int64_t>{3, 11}, 10); }, {"11", "10"});
  test::check_error<DataError>([] { best_fit_decreasing(std::vector<int64_t>{0}, 10); }, {"0 tokens"});
  BOOST_TEST(best_fit_decreasing({}, 10).empty());
}

BOOST_AUTO_TEST_SUITE_END()
