// Comparing boundary records and digests of documents on the emulated device.
#include "parallel/boundary_record.h"

#include "cuda/kernel_case.h"
#include "runtime/documents_digest.h"

using namespace quire;
using namespace quire::test;

namespace {

double compare(Rank& rank, const std::vector<uint8_t>& found, const std::vector<uint8_t>& expected, double before, double code, int64_t shift = 0) {
  // Bytes travel as words of 4; `shift` words from where vectors begin.
  const auto words = [](const std::vector<uint8_t>& bytes) {
    std::vector<int32_t> all((bytes.size() + 3) / 4);
    if (!bytes.empty()) std::memcpy(all.data(), bytes.data(), bytes.size());
    return all;
  };
  const Placed<int32_t> on_found(rank, words(found), shift), on_expected(rank, words(expected));
  const Placed<double> flag(rank, std::vector{before});
  dispatch(rank, CompareRecordsArgs{static_cast<int64_t>(found.size()), on_found.data(), on_expected.data(), flag.data(), code});
  return flag.values()[0];
}

Documents random_documents(std::mt19937_64& random, int64_t tokens) { return Documents::from_lengths(random_lengths(random, tokens)); }

uint64_t digest(Rank& rank, const Documents& documents) {
  const Placed<int32_t> indices(rank, std::vector<int32_t>(documents.indices().begin(), documents.indices().end()));
  const Placed<int32_t> starts(rank, std::vector<int32_t>(documents.starts().begin(), documents.starts().end()));
  const Placed<int64_t> result(rank, 1);
  dispatch(rank, DocumentsDigestArgs{documents.tokens(), indices.data(), starts.data(), reinterpret_cast<uint64_t*>(result.data())});
  return static_cast<uint64_t>(result.values()[0]);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_boundary_record)

BOOST_AUTO_TEST_CASE(one_byte_anywhere_raises_the_flag) {
  std::mt19937_64 random(1);
  DeviceRank rank;
  Rank host;
  for (const int64_t bytes : {0, 1, 15, 16, 17, 64, 200, 5000})
    for (const int64_t shift : {0, 1}) {
      std::vector<uint8_t> expected(static_cast<size_t>(bytes));
      for (uint8_t& b : expected) b = static_cast<uint8_t>(random());
      BOOST_TEST(compare(rank, expected, expected, 0, 7, shift) == 0);
      for (int round = 0; round < 8 && bytes > 0; ++round) {
        auto found = expected;
        const size_t at = round == 0 ? 0 : round == 1 ? found.size() - 1 : random() % found.size();
        found[at] = static_cast<uint8_t>(found[at] ^ (1u << (random() % 8)));
        BOOST_TEST(compare(rank, found, expected, 0, 7, shift) == 7, "byte " << at << " of " << bytes);
        BOOST_TEST(compare(host, found, expected, 0, 7) == 7);
      }
    }
}

BOOST_AUTO_TEST_CASE(control_a_comparison_that_leaves_the_last_bytes_out_is_seen) {
  DeviceRank rank;
  std::vector<uint8_t> expected(70), found(70);
  found.back() = 1;
  BOOST_TEST(compare(rank, found, expected, 0, 7) == 7);
  const emulation::Planted bug("boundary_record.last_bytes_ignored");
  BOOST_TEST(compare(rank, found, expected, 0, 7) == 0);
}

BOOST_AUTO_TEST_CASE(the_first_comparison_that_failed_is_the_one_reported) {
  DeviceRank rank;
  Rank host;
  for (Rank* each : {&rank.rank, &host}) {
    BOOST_TEST(compare(*each, {1, 2}, {1, 3}, 5, 7) == 5);
    BOOST_TEST(compare(*each, {1, 2}, {1, 2}, 5, 7) == 5);
  }
}

BOOST_AUTO_TEST_CASE(records_of_other_documents_steps_stages_or_microbatches_differ) {
  std::mt19937_64 random(2);
  DeviceRank rank;
  const BoundaryHeader header{3, 1, 2, 0};
  const Documents documents = random_documents(random, 300);
  const Tensor expected = make_boundary_record(rank, header, documents);
  const auto flag_after = [&](const BoundaryHeader& other, const Documents& others) {
    const Tensor found = make_boundary_record(rank, other, others);
    const Placed<double> raised(rank, std::vector<double>{0});
    dispatch(rank, CompareRecordsArgs{expected.bytes(), found.raw(), expected.raw(), raised.data(), 9});
    return raised.values()[0];
  };
  BOOST_TEST(flag_after(header, documents) == 0);
  for (const BoundaryHeader& other : {BoundaryHeader{4, 1, 2, 0}, BoundaryHeader{3, 0, 2, 0}, BoundaryHeader{3, 1, 1, 0}, BoundaryHeader{3, 1, 2, 1}})
    BOOST_TEST(flag_after(other, documents) == 9);
  std::vector<int64_t> lengths{100, 200};
  BOOST_TEST(flag_after(header, Documents::from_lengths(lengths)) == 9);
}

BOOST_AUTO_TEST_CASE(every_order_of_threads_gives_the_same) {
  std::mt19937_64 random(3);
  DeviceRank rank;
  const Documents documents = random_documents(random, 600);
  std::vector<uint8_t> expected(3000, 1), found(3000, 2);  // all threads see a difference
  in_eight_orders([&] {
    BOOST_TEST(compare(rank, found, expected, 0, 3) == 3);
    BOOST_TEST(digest(rank, documents) == documents.digest());
  });
}

BOOST_AUTO_TEST_CASE(digests_are_those_of_the_host) {
  std::mt19937_64 random(4);
  DeviceRank rank;
  Rank host;
  for (const int64_t tokens : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 255, 256, 257, 511, 1000, 1025}) {
    const Documents documents = random_documents(random, tokens);
    BOOST_TEST(digest(rank, documents) == documents.digest(), tokens << " tokens");
    BOOST_TEST(digest(host, documents) == documents.digest());
  }
  const Documents shard = Documents::shard({7, 8, 100, 101, 102}, {7, 7, 99, 99, 102});
  BOOST_TEST(digest(rank, shard) == shard.digest());
}

BOOST_AUTO_TEST_CASE(control_another_start_or_order_gives_another_digest) {
  DeviceRank rank;
  std::vector<int64_t> a{300, 300}, b{301, 299}, c{600};
  const uint64_t of_a = digest(rank, Documents::from_lengths(a));
  BOOST_TEST(of_a != digest(rank, Documents::from_lengths(b)));
  BOOST_TEST(of_a != digest(rank, Documents::from_lengths(c)));
  BOOST_TEST(digest(rank, Documents::shard({0, 1}, {0, 0})) != digest(rank, Documents::shard({1, 0}, {0, 0})));
}

BOOST_AUTO_TEST_SUITE_END()
