// What attention's kernels promise about bits: documents do not see each other, nor their place, the threads, or memory beyond the tokens; and
// shards of queries and keys add up to the whole.
#include "ops/attention_isolation.h"

#include <numeric>

namespace quire::test {
BOOST_AUTO_TEST_SUITE(attention_isolation)

BOOST_AUTO_TEST_CASE(no_bit_of_another_document_changes) {
  std::mt19937_64 random(11);
  for (const RankOptions& options : poisoned_ranks(2)) {
    Rank rank(options);
    for (int64_t window : {0, 40}) {
      AttentionCase c = random_case(random, std::vector<int64_t>{20, 65, 1, 130, 34}, 2, 1, 12, window);
      for (bool dense : {false, true}) {
        c.dense = dense;
        check_leak<double>(rank, c, random);
        check_leak<float>(rank, c, random);
        check_leak<bf16>(rank, c, random);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_document_has_the_same_bits_wherever_it_lies) {
  std::mt19937_64 random(12);
  for (const RankOptions& options : poisoned_ranks()) {
    Rank rank(options);
    for (bool dense : {false, true}) {
      const int64_t length = dense ? 90 : 1300;
      AttentionCase alone = random_case(random, std::vector<int64_t>{length}, 2, 2, 12, 150);
      AttentionCase moved = random_case(random, std::vector<int64_t>{1, 43, length, 7}, 2, 2, 12, 150);
      copy_tokens(moved, 44, alone, 0, length);
      alone.dense = moved.dense = dense;
      BOOST_TEST(same_document(moved, both<double>(rank, moved), both<double>(rank, alone), 44, 44 + length, 0));
      BOOST_TEST(same_document(moved, both<float>(rank, moved), both<float>(rank, alone), 44, 44 + length, 0));
      BOOST_TEST(same_document(moved, both<bf16>(rank, moved), both<bf16>(rank, alone), 44, 44 + length, 0));
      moved.k[static_cast<size_t>(44 * moved.key_width())] += 1;  // control: its own token does matter
      BOOST_TEST(!same_document(moved, both<float>(rank, moved), both<float>(rank, alone), 44, 44 + length, 0));
    }
  }
}

BOOST_AUTO_TEST_CASE(threads_change_no_bit) {
  std::mt19937_64 random(13);
  std::vector<int64_t> lengths = random_lengths(random, 900);
  lengths.push_back(2100);
  const AttentionCase c = random_case(random, lengths, 4, 2, 8);
  Rank one(poisoned_ranks(1).front()), two(poisoned_ranks(2).front()), three(poisoned_ranks(3).front());
  const AttentionResult f64 = both<double>(one, c), f32 = both<float>(one, c);
  BOOST_TEST(same(c, f64, both<double>(two, c)));
  BOOST_TEST(same(c, f64, both<double>(three, c)));
  BOOST_TEST(same(c, f32, both<float>(two, c)));
  BOOST_TEST(same(c, f32, both<float>(three, c)));
  BOOST_TEST(!same(c, f64, f32));
}

BOOST_AUTO_TEST_CASE(shards_add_up_to_the_whole) {
  std::mt19937_64 random(14);
  for (const RankOptions& options : poisoned_ranks(2)) {
    Rank rank(options);
    for (int round = 0; round < 6; ++round) {
      AttentionCase c = random_case(random, random_lengths(random, 300), 2, 1, 9, round % 2 ? 70 : 0);
      c.dense = round == 5;
      check_shards<double>(rank, c, random, 1e-12);
      check_shards<float>(rank, c, random, 1e-5);
      check_shards<bf16>(rank, rounded_case<bf16>(c), random, 1e-2);
    }
  }
}

BOOST_AUTO_TEST_CASE(one_query_of_a_shard_has_the_bits_of_the_whole) {
  std::mt19937_64 random(15);
  Rank rank(poisoned_ranks().front());
  const AttentionCase c = random_case(random, std::vector<int64_t>{10, 700}, 2, 1, 64);
  const AttentionForward whole = forward<float>(rank, c);
  for (int32_t index : {3, 10, 11, 300, 709}) {  // decoding: one query, all keys of its document
    const int32_t start = index < 10 ? 0 : 10;
    std::vector<int32_t> keys(static_cast<size_t>(index + 1 - start));
    std::iota(keys.begin(), keys.end(), start);
    const std::vector<int32_t> starts(keys.size(), start);
    const AttentionForward row = forward<float>(rank, c, Documents::shard({index}, {start}), Documents::shard(keys, starts));
    BOOST_TEST(same_rows(row.out, whole.out, c.query_width(), 0, 1, index));
    BOOST_TEST(same_rows(row.lse, whole.lse, c.heads, 0, 1, index));
  }
}

BOOST_AUTO_TEST_CASE(merging_keeps_empty_rows_empty) {
  std::mt19937_64 random(16);
  Rank rank(poisoned_ranks().front());
  const AttentionCase c = random_case(random, std::vector<int64_t>{2}, 1, 1, 3);
  const double none = -std::numeric_limits<double>::infinity();
  AttentionForward a{{0, 0, 0, 1, 2, 3}, {none, 1}};
  merge<double>(rank, c, a, {{0, 0, 0, 0, 0, 0}, {none, none}});
  BOOST_TEST((a.lse == std::vector<double>{none, 1}));
  BOOST_TEST((a.out == std::vector<double>{0, 0, 0, 1, 2, 3}));
  merge<double>(rank, c, a, {{4, 5, 6, 3, 2, 1}, {7, 1}});
  BOOST_TEST(a.lse[0] == 7);
  BOOST_TEST(std::abs(a.lse[1] - (1 + std::log(2.0))) < 1e-15);
  BOOST_TEST((a.out == std::vector<double>{4, 5, 6, 2, 2, 2}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
