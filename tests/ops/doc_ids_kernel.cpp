// Document starts, ids, positions and tile ranges against a literal counter loop.
#include "ops/doc_ids_case.h"

using namespace quire;
using namespace quire::test;
using namespace quire::test::doc_ids;

namespace {

void check_all(const ThreadRanks& ranks, const Numbers& tokens) {
  for (const auto& rank : ranks.by_threads)
    BOOST_TEST_CONTEXT(ranks.instruction_set << ", " << rank->pool().threads() << " threads") { check(*rank, tokens); }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(doc_ids_kernel)

BOOST_AUTO_TEST_CASE(random_tokens_of_every_length_equal_the_counter_loop) {
  std::mt19937_64 random(1);
  for (const ThreadRanks& ranks : every_rank())
    for (int64_t count = 0; count <= 70; ++count)
      for (const uint64_t per_eos : {0, 1, 2, 5, 40}) check_all(ranks, random_tokens(random, count, per_eos));
}

BOOST_AUTO_TEST_CASE(chunk_edges_equal_the_counter_loop) {
  std::mt19937_64 random(2);
  for (const ThreadRanks& ranks : every_rank())
    for (const int64_t count : {16383, 16384, 16385, 32768, 32769, 60001}) {
      for (const uint64_t per_eos : {0, 1, 3, 300, 20000}) check_all(ranks, random_tokens(random, count, per_eos));
      for (const int64_t at : {0, 16382, 16383, 16384, 32767, 32768}) {  // a single EOS beside an edge
        auto tokens = random_tokens(random, count, 0);
        if (at < count) tokens[static_cast<size_t>(at)] = eos;
        check_all(ranks, tokens);
      }
    }
}

BOOST_AUTO_TEST_CASE(eos_first_last_in_runs_or_alone) {
  for (const ThreadRanks& ranks : every_rank()) {
    check_all(ranks, {eos});
    check_all(ranks, {5});
    check_all(ranks, {eos, 5, 6});
    check_all(ranks, {5, 6, eos});
    check_all(ranks, {eos, eos, eos, 5, eos, eos, 6, 7, 8, 9, 10, eos, eos});
    std::vector<int32_t> runs(100, 7);
    for (size_t i = 30; i < 60; ++i) runs[i] = eos;
    check_all(ranks, runs);
  }
}

BOOST_AUTO_TEST_CASE(positions_use_the_indices_given) {
  // A shard: global indices with gaps, and a document that began on another rank.
  const std::vector<int32_t> indices{100, 101, 102, 200, 201}, starts{40, 40, 102, 199, 199}, expected{60, 61, 0, 1, 2};
  for (const ThreadRanks& ranks : every_rank()) {
    BOOST_TEST(positions(ranks.one(), indices, starts) == expected);
  }
}

BOOST_AUTO_TEST_CASE(tile_ranges_equal_the_literal_minimum_and_maximum) {
  std::mt19937_64 random(3);
  for (const ThreadRanks& ranks : every_rank())
    for (int round = 0; round < 60; ++round) {
      const int64_t tokens = 1 + static_cast<int64_t>(random() % 500), tile = 1 + static_cast<int64_t>(random() % 70);
      const int64_t window = round % 3 == 0 ? 0 : 1 + static_cast<int64_t>(random() % 100);
      std::vector<int32_t> starts;
      for (const int64_t length : random_lengths(random, tokens, tile)) starts.insert(starts.end(), static_cast<size_t>(length), static_cast<int32_t>(starts.size()));
      const int64_t tiles = (tokens + tile - 1) / tile;
      std::vector<int32_t> first = unwritten<int32_t>(tiles), last = unwritten<int32_t>(tiles);
      run_kernel(ranks.one(), TileRangesArgs{tokens, tile, window, starts.data(), first.data(), last.data()});
      close_output(first);
      close_output(last);
      for (int64_t t = 0; t < tiles; ++t) {
        int64_t least = tokens, most = 0;
        for (int64_t i = t * tile; i < std::min(tokens, (t + 1) * tile); ++i)
          for (int64_t j = 0; j <= i; ++j)
            if (starts[static_cast<size_t>(i)] <= j && (window == 0 || j > i - window)) {
              least = std::min(least, j);
              most = std::max(most, j + 1);
            }
        BOOST_TEST((first[static_cast<size_t>(t)] == least && last[static_cast<size_t>(t)] == most), "tile " << t << " of " << tokens << " tokens");
      }
    }
}

BOOST_AUTO_TEST_CASE(control_a_lost_eos_is_seen) {
  std::mt19937_64 random(4);
  Rank rank;
  auto tokens = random_tokens(random, 200, 20);
  tokens[100] = eos;
  const DocumentNumbers expected = literal(tokens);
  tokens[100] = 5;
  BOOST_TEST((starts_from_eos(rank, tokens) != expected.starts));
}

BOOST_AUTO_TEST_SUITE_END()
