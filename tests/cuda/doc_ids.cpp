// Document starts, ids, positions and tile ranges on the emulated device, against a literal counter loop.
#include "ops/doc_ids_case.h"

#include "cuda/kernel_case.h"

using namespace quire;
using namespace quire::test;
using namespace quire::test::doc_ids;

BOOST_AUTO_TEST_SUITE(cuda_doc_ids)

BOOST_AUTO_TEST_CASE(random_tokens_equal_the_counter_loop) {
  std::mt19937_64 random(1);
  DeviceRank rank;
  for (const int64_t count : {0, 1, 2, 31, 32, 33, 255, 256, 257, 1000})
    for (const uint64_t per_eos : {0, 1, 2, 40}) check(rank, random_tokens(random, count, per_eos));
}

BOOST_AUTO_TEST_CASE(chunk_edges_equal_the_counter_loop) {
  std::mt19937_64 random(2);
  DeviceRank rank;
  for (const int64_t count : {4095, 4096, 4097, 12289}) {
    for (const uint64_t per_eos : {0, 1, 300}) check(rank, random_tokens(random, count, per_eos));
    for (const size_t at : {size_t{0}, size_t{4094}, size_t{4095}, size_t{4096}, size_t{8191}}) {  // a single EOS beside an edge
      auto tokens = random_tokens(random, count, 0);
      if (at < tokens.size()) tokens[at] = eos;
      check(rank, tokens);
    }
  }
}

BOOST_AUTO_TEST_CASE(more_chunks_than_the_grid_has_blocks_and_than_one_block_scans_at_once) {
  DeviceRank rank;
  emulation::Settings small = emulation::settings();
  small.multiprocessors = 1;
  emulation::set(small);
  Rank one(RankOptions{.device = {DeviceKind::cuda, 1}, .poison = true});
  std::mt19937_64 random(3);
  const auto tokens = random_tokens(random, 4096 * 257 + 5, 3000);
  const DocumentNumbers expected = literal(tokens);
  BOOST_TEST((starts_from_eos(one, tokens) == expected.starts));
  BOOST_TEST((ids_from_starts(one, expected.starts) == expected.ids));
}

BOOST_AUTO_TEST_CASE(every_order_of_threads_gives_the_same) {
  std::mt19937_64 random(4);
  DeviceRank rank;
  const auto tokens = random_tokens(random, 300, 10), long_tokens = random_tokens(random, 8200, 500);
  in_eight_orders([&] {
    check(rank, tokens);
    BOOST_TEST((starts_from_eos(rank, long_tokens) == literal(long_tokens).starts));
  });
}

BOOST_AUTO_TEST_CASE(positions_use_the_indices_given) {
  // A shard: global indices with gaps, and a document that began on another rank.
  DeviceRank rank;
  BOOST_TEST((positions(rank, {100, 101, 102, 200, 201}, {40, 40, 102, 199, 199}) == Numbers{60, 61, 0, 1, 2}));
}

BOOST_AUTO_TEST_CASE(tile_ranges_equal_the_literal_minimum_and_maximum) {
  std::mt19937_64 random(5);
  DeviceRank rank;
  for (int round = 0; round < 40; ++round) {
    const int64_t tokens = round == 0 ? 0 : 1 + static_cast<int64_t>(random() % 500), tile = 1 + static_cast<int64_t>(random() % 70);
    const int64_t window = round % 3 == 0 ? 0 : 1 + static_cast<int64_t>(random() % 100);
    Numbers starts;
    for (const int64_t length : random_lengths(random, tokens, tile))
      starts.insert(starts.end(), static_cast<size_t>(length), static_cast<int32_t>(starts.size()));
    const int64_t tiles = (tokens + tile - 1) / tile;
    const Placed<int32_t> on_starts(rank, starts), first(rank, tiles), last(rank, tiles);
    dispatch(rank, TileRangesArgs{tokens, tile, window, on_starts.data(), first.data(), last.data()});
    const Numbers firsts = first.values(), lasts = last.values();
    for (int64_t t = 0; t < tiles; ++t) {
      int64_t least = tokens, most = 0;
      for (int64_t i = t * tile; i < std::min(tokens, (t + 1) * tile); ++i) {
        least = std::min(least, std::max<int64_t>(starts[static_cast<size_t>(i)], window == 0 ? 0 : i - window + 1));
        most = std::max(most, i + 1);
      }
      BOOST_TEST((firsts[static_cast<size_t>(t)] == least && lasts[static_cast<size_t>(t)] == most), "tile " << t << " of " << tokens << " tokens");
    }
  }
  check_error<UnsupportedError>([&] { dispatch(rank, TileRangesArgs{5, 0, 0, nullptr, nullptr, nullptr}); }, {"tile_ranges"});
}

BOOST_AUTO_TEST_CASE(control_a_lost_eos_is_seen) {
  std::mt19937_64 random(6);
  DeviceRank rank;
  auto tokens = random_tokens(random, 200, 20);
  tokens[100] = eos;
  const DocumentNumbers expected = literal(tokens);
  tokens[100] = 5;
  BOOST_TEST((starts_from_eos(rank, tokens) != expected.starts));
}

BOOST_AUTO_TEST_SUITE_END()
