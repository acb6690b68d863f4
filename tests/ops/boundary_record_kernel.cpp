// Comparing boundary records, and digests of documents.
#include "ops/kernel_test.h"
#include "runtime/digest.h"
#include "runtime/documents_digest.h"

using namespace quire;
using namespace quire::test;

namespace {

double compare(Rank& rank, const std::vector<uint8_t>& found, const std::vector<uint8_t>& expected, double flag) {
  dispatch(rank, CompareRecordsArgs{static_cast<int64_t>(found.size()), found.data(), expected.data(), &flag, 7});
  return flag;
}

/// The digest as its header says it, from the bytes.
uint64_t literal_digest(const Documents& documents) {
  std::vector<int64_t> whole{documents.tokens()};
  for (int64_t begin = 0; begin < documents.tokens(); begin += digest_piece) {
    std::vector<int32_t> words;
    for (const auto& numbers : {documents.indices(), documents.starts()}) {
      const auto piece = numbers.subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(digest_piece, documents.tokens() - begin)));
      words.insert(words.end(), piece.begin(), piece.end());
    }
    whole.push_back(static_cast<int64_t>(digest_of(std::as_bytes(std::span(words)))));
  }
  return digest_of(std::as_bytes(std::span(whole)));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(boundary_record_kernel)

BOOST_AUTO_TEST_CASE(one_byte_anywhere_raises_a_flag_that_nothing_has_raised) {
  Rank rank;
  const std::vector<uint8_t> expected{1, 2, 3, 4, 5};
  BOOST_TEST(compare(rank, expected, expected, 0) == 0);
  BOOST_TEST(compare(rank, expected, expected, 5) == 5);
  BOOST_TEST(compare(rank, {}, {}, 0) == 0);
  for (size_t i = 0; i < expected.size(); ++i) {
    auto found = expected;
    ++found[i];
    BOOST_TEST(compare(rank, found, expected, 0) == 7);
    BOOST_TEST(compare(rank, found, expected, 5) == 5);
  }
}

BOOST_AUTO_TEST_CASE(digests_are_those_of_documents) {
  std::mt19937_64 random(1);
  Rank rank;
  for (const int64_t tokens : {0, 1, 5, 255, 256, 257, 1000}) {
    const Documents documents = Documents::from_lengths(random_lengths(random, tokens));
    uint64_t digest = 0;
    dispatch(rank, DocumentsDigestArgs{tokens, documents.indices().data(), documents.starts().data(), &digest});
    BOOST_TEST(digest == documents.digest());
    BOOST_TEST(digest == literal_digest(documents));
  }
}

BOOST_AUTO_TEST_SUITE_END()
