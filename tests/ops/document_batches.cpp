// Documents in batches of about one length.
#include "ops/document_batches.h"

#include <bit>

#include "check.h"

namespace quire::test {

BOOST_AUTO_TEST_SUITE(document_batches)

BOOST_AUTO_TEST_CASE(every_document_has_one_place) {
  std::mt19937_64 random(3);
  for (int time = 0; time < 300; ++time) {
    std::vector<int64_t> lengths;
    for (int64_t count = 1 + static_cast<int64_t>(random() % (time % 3 == 0 ? 400 : 20)); count > 0; --count)
      lengths.push_back(1 + static_cast<int64_t>(random() % (uint64_t{1} << (random() % 15))));
    const std::vector<DocumentRun> runs = Documents::from_lengths(lengths).runs();
    const DocumentTables tables = document_tables(runs);
    BOOST_REQUIRE(tables.begins.size() == tables.lengths.size());
    std::vector<std::pair<int32_t, int32_t>> found;
    int64_t entries = 0;
    for (size_t i = 0; i < tables.batches.size(); ++i) {
      const DocumentBatch& batch = tables.batches[i];
      BOOST_REQUIRE(batch.first == entries);
      entries += (batch.places + 4) / 4 * 4;
      BOOST_REQUIRE((std::has_single_bit(static_cast<uint64_t>(batch.longest)) && batch.longest >= shortest_batch));
      BOOST_REQUIRE(batch.places == std::max<int64_t>(batch_tokens / batch.longest, 1));  // what is prepared depends on the longest length alone
      BOOST_REQUIRE((batch.documents >= 1 && batch.documents <= batch.places));
      if (i > 0) BOOST_REQUIRE((tables.batches[i - 1].longest < batch.longest || tables.batches[i - 1].documents == batch.places));  // only the last of a length has room
      for (int64_t place = 0; place <= batch.places; ++place) {
        const auto at = static_cast<size_t>(batch.first + place);
        if (place > 0) BOOST_REQUIRE(tables.begins[at] >= tables.begins[at - 1] + tables.lengths[at - 1]);
        BOOST_REQUIRE((place < batch.documents) == (tables.lengths[at] > 0));
        if (place >= batch.documents) continue;
        BOOST_REQUIRE((tables.lengths[at] <= batch.longest && (tables.lengths[at] > batch.longest / 2 || batch.longest == shortest_batch)));
        found.emplace_back(tables.begins[at], tables.lengths[at]);
      }
    }
    BOOST_REQUIRE(static_cast<int64_t>(tables.begins.size()) == entries);
    std::sort(found.begin(), found.end());
    BOOST_REQUIRE(found.size() == runs.size());
    for (size_t i = 0; i < runs.size(); ++i) BOOST_REQUIRE((found[i] == std::pair(runs[i].local, runs[i].length)));
  }
  BOOST_TEST(document_tables({}).batches.empty());
}

BOOST_AUTO_TEST_CASE(parts_of_documents_are_refused) {
  const std::vector<DocumentRun> part = {{0, 0, 5, 0}, {5, 9, 3, 5}};
  check_error<UnsupportedError>([&] { document_tables(part); }, {"[attention]", "4 tokens inside", "whole documents"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
