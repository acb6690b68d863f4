// Boundaries: everything derived from indices and starts, against literal loops.
#include "runtime/documents.h"

#include <algorithm>
#include <numeric>

#include "check.h"

using namespace quire;
using namespace quire::test;

namespace {

/// Pairs (i, j) by the definition: equal starts and global_j <= global_i, within the window.
int64_t pairs_literally(const Documents& d, int64_t window) {
  int64_t pairs = 0;
  for (int64_t i = 0; i < d.tokens(); ++i)
    for (int64_t j = 0; j < d.tokens(); ++j) {
      const size_t a = static_cast<size_t>(i), b = static_cast<size_t>(j);
      pairs += d.starts()[a] == d.starts()[b] && d.indices()[b] <= d.indices()[a] && (window == 0 || d.indices()[b] > d.indices()[a] - window);
    }
  return pairs;
}

/// Some ranges of a whole microbatch, in random order: what a rank may hold under context parallelism.
Documents random_shard(std::mt19937_64& random, const Documents& whole) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t at = 0; at < whole.tokens();) {
    const int64_t end = std::min<int64_t>(whole.tokens(), at + 1 + static_cast<int64_t>(random() % 60));
    if (random() % 2) ranges.emplace_back(at, end);
    at = end;
  }
  std::shuffle(ranges.begin(), ranges.end(), random);
  std::vector<int32_t> indices, starts;
  for (const auto& [begin, end] : ranges)
    for (int64_t i = begin; i < end; ++i) {
      indices.push_back(static_cast<int32_t>(i));
      starts.push_back(whole.starts()[static_cast<size_t>(i)]);
    }
  return Documents::shard(std::move(indices), std::move(starts));
}

void check_derived(const Documents& d) {
  const std::vector<DocumentRun> runs = d.runs();
  const std::vector<int32_t> offsets = d.offsets(), positions = d.positions();
  BOOST_REQUIRE_EQUAL(offsets.size(), runs.size() + 1);
  BOOST_REQUIRE_EQUAL(offsets.back(), d.tokens());
  int32_t local = 0;
  int64_t longest = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    const DocumentRun& run = runs[r];
    BOOST_REQUIRE_EQUAL(run.local, local);
    BOOST_REQUIRE_EQUAL(offsets[r], local);
    BOOST_REQUIRE_GE(run.length, 1);
    for (int32_t i = 0; i < run.length; ++i) {
      const auto at = static_cast<size_t>(local + i);
      BOOST_REQUIRE_EQUAL(d.indices()[at], run.global + i);
      BOOST_REQUIRE_EQUAL(d.starts()[at], run.start);
      BOOST_REQUIRE_EQUAL(positions[at], run.global + i - run.start);
    }
    if (r > 0) {  // maximal: the run before could not have gone on
      const DocumentRun& before = runs[r - 1];
      BOOST_REQUIRE(before.start != run.start || before.global + before.length != run.global);
    }
    local += run.length;
    longest = std::max<int64_t>(longest, run.length);
  }
  BOOST_REQUIRE_EQUAL(local, d.tokens());
  BOOST_REQUIRE_EQUAL(d.longest(), longest);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(documents)

BOOST_AUTO_TEST_CASE(whole_microbatches_of_random_lengths) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::vector<int64_t> lengths = random_lengths(random, 1 + static_cast<int64_t>(random() % 300));
    const Documents d = Documents::from_lengths(lengths);
    BOOST_REQUIRE_EQUAL(d.tokens(), std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
    size_t at = 0;
    for (const int64_t length : lengths) {
      const auto start = static_cast<int32_t>(at);
      for (int64_t i = 0; i < length; ++i, ++at) {
        BOOST_REQUIRE_EQUAL(d.indices()[at], static_cast<int32_t>(at));
        BOOST_REQUIRE_EQUAL(d.starts()[at], start);
      }
    }
    check_derived(d);
    BOOST_REQUIRE_EQUAL(d.runs().size(), lengths.size());  // neighbours never merge, one-token documents included
    BOOST_REQUIRE(Documents::from_starts(d.starts()) == d);
    for (const int64_t window : {0, 1, 2, 7, 64, 1000}) BOOST_REQUIRE_EQUAL(d.useful_pairs(window), pairs_literally(d, window));
  }
}

BOOST_AUTO_TEST_CASE(shards_of_random_ranges) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 200; ++round) {
    const Documents whole = Documents::from_lengths(random_lengths(random, 1 + static_cast<int64_t>(random() % 300)));
    const Documents d = random_shard(random, whole);
    check_derived(d);
    for (const int64_t window : {0, 1, 5, 64}) BOOST_REQUIRE_EQUAL(d.useful_pairs(window), pairs_literally(d, window));
  }
}

BOOST_AUTO_TEST_CASE(no_tokens_and_zero_lengths) {
  const Documents none = Documents::from_lengths({});
  BOOST_TEST(none.tokens() == 0);
  BOOST_TEST(none.longest() == 0);
  BOOST_TEST(none.useful_pairs() == 0);
  check_derived(none);
  const std::vector<int64_t> with_zeros = {0, 3, 0, 0, 1, 0}, without = {3, 1};
  BOOST_TEST((Documents::from_lengths(with_zeros) == Documents::from_lengths(without)));
}

BOOST_AUTO_TEST_CASE(digest_follows_the_value) {
  const std::vector<int64_t> a = {3, 2}, b = {2, 3}, c = {5};
  BOOST_TEST(Documents::from_lengths(a).digest() == Documents::from_lengths(a).digest());
  BOOST_TEST(Documents::from_lengths(a).digest() != Documents::from_lengths(b).digest());
  BOOST_TEST(Documents::from_lengths(a).digest() != Documents::from_lengths(c).digest());
  BOOST_TEST(Documents::shard({0, 1}, {0, 0}).digest() != Documents::shard({1, 0}, {0, 0}).digest());
  BOOST_TEST(Documents().digest() != Documents::from_lengths(std::vector<int64_t>{1}).digest());
}

BOOST_AUTO_TEST_CASE(contradictions_are_refused) {
  check_error<DataError>([] { Documents::from_lengths(std::vector<int64_t>{3, -1}); }, {"[documents]", "-1", "negative"});
  check_error<DataError>([] { Documents::from_lengths(std::vector<int64_t>{int64_t{1} << 62, int64_t{1} << 62, int64_t{1} << 62}); }, {"below 2^31"});
  const auto starts = [](std::vector<int32_t> values) { return [values] { Documents::from_starts(values); }; };
  check_error<DataError>(starts({0, 0, 3}), {"token 2", "starts at 3"});      // after the token itself
  check_error<DataError>(starts({0, 1, 0}), {"token 2", "starts at 0"});      // decreasing
  check_error<DataError>(starts({0, 0, 1}), {"token 2", "starts at 1"});      // token 1 is not a first token
  check_error<DataError>(starts({-1}), {"token 0"});
  check_error<DataError>(starts({1, 1}), {"token 0"});
  const auto shard = [](std::vector<int32_t> indices, std::vector<int32_t> of) { return [=] { Documents::shard(indices, of); }; };
  check_error<DataError>(shard({0, 1}, {0}), {"2 indices", "1 starts"});
  check_error<DataError>(shard({4}, {5}), {"index 4", "start 5"});
  check_error<DataError>(shard({4, 4}, {2, 2}), {"contradict"});              // one token twice
  check_error<DataError>(shard({4, 5}, {2, 3}), {"contradict"});              // 5 follows 4 but begins a document at 3
  check_error<DataError>(shard({9, 4}, {3, 2}), {"contradict"});              // 9's document holds 4
  Documents::shard({4, 5}, {2, 5});
  Documents::shard({9, 4}, {5, 2});
}

BOOST_AUTO_TEST_SUITE_END()
