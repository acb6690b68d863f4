// FAULTS 46: building the mask must not cost more than attention. Tile ranges take O(T) reads of the starts, whatever the documents.
#include "check.h"
#include "ops/cpu/doc_ids.h"

using namespace quire;

namespace {

std::vector<int32_t> starts_of(const std::vector<int64_t>& lengths) {
  std::vector<int32_t> starts;
  for (const int64_t length : lengths) starts.insert(starts.end(), static_cast<size_t>(length), static_cast<int32_t>(starts.size()));
  return starts;
}

/// Reads of `starts` that the tile ranges take.
int64_t reads(const std::vector<int32_t>& starts, int64_t tile, int64_t window) {
  int64_t count = 0;
  std::vector<int32_t> first(starts.size()), last(starts.size());
  tile_ranges(static_cast<int64_t>(starts.size()), tile, window, [&](int64_t i) { ++count; return starts[static_cast<size_t>(i)]; }, first.data(), last.data());
  return count;
}

/// The same by looking at every row and every key of a tile: what the fault was.
int64_t reads_of_a_mask(const std::vector<int32_t>& starts) {
  int64_t count = 0;
  for (size_t i = 0; i < starts.size(); ++i)
    for (size_t j = 0; j <= i; ++j) ++count;
  return count;
}

}  // namespace

BOOST_AUTO_TEST_CASE(tile_ranges_take_linear_work_whatever_the_documents_46) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const int64_t tokens = 1 + static_cast<int64_t>(random() % 3000), tile = 1 + static_cast<int64_t>(random() % 100);
    const auto starts = starts_of(test::random_lengths(random, tokens, tile));
    BOOST_TEST(reads(starts, tile, round % 2 ? 37 : 0) <= tokens);
    BOOST_TEST(reads(starts, tile, 0) == reads(starts_of({tokens}), tile, 0));
  }
  const auto small = starts_of({1000}), large = starts_of({2000});
  BOOST_TEST(reads(large, 8, 0) == 2 * reads(small, 8, 0));
  BOOST_TEST(reads_of_a_mask(large) > 3 * reads_of_a_mask(small));  // control: a mask's work is not linear
}
