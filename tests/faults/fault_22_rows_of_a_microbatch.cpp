// FAULTS.md 22: several rows in one microbatch, each with boundaries of its own.
#include "model/decoder_case.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(fault_22)

BOOST_AUTO_TEST_CASE(rows_with_different_boundaries_do_not_share_a_mask_22) {
  std::mt19937_64 random(1);
  // Three rows of 48 tokens, one after the other, as the loader flattens them.
  const std::vector<std::vector<int64_t>> rows = {{48}, {1, 30, 17}, {16, 16, 15, 1}};
  std::vector<int64_t> lengths, first_row_for_all;
  for (const auto& row : rows) {
    lengths.insert(lengths.end(), row.begin(), row.end());
    first_row_for_all.insert(first_row_for_all.end(), rows[1].begin(), rows[1].end());
  }
  for (const char* backend : {"block", "dense"}) {
    ModelConfig config = small_config();
    config.attention_backend = backend;
    Rank rank(RankOptions{.threads = 2, .poison = true});
    Model model(rank, config, DType::f32);
    model.initialize(rank, 1);
    const Batch batch = random_batch(random, lengths, config.vocab_size);
    for (size_t document = 0; document < lengths.size(); ++document) {  // within a row, and across rows
      const Leak leak = leak_probe(rank, model, batch, document, 0);
      BOOST_TEST(leak.leaked == 0);
      BOOST_TEST(leak.unchanged == 0);
    }
    // Each row has the bits that it has in a microbatch of its own.
    const Doubles together = logits_of(rank, model, batch.on(rank));
    int64_t begin = 0;
    for (const auto& row : rows) {
      const auto part = [&](const std::vector<int32_t>& v) { return std::vector<int32_t>(v.begin() + begin, v.begin() + begin + 48); };
      const Batch alone{row, part(batch.tokens), part(batch.targets)};
      BOOST_TEST((rows_of(together, config.vocab_size, begin, begin + 48) == logits_of(rank, model, alone.on(rank))));
      begin += 48;
    }
    // The control: one row's boundaries for all rows.
    BrokenAttention shared(Documents::from_lengths(first_row_for_all));
    ForwardOptions options;
    options.attention = &shared;
    int64_t leaked = 0, unchanged = 0;
    for (size_t document = 0; document < lengths.size(); ++document) {
      leaked += leak_probe(rank, model, batch, document, 0, options).leaked;
      unchanged += leak_probe(rank, model, batch, document, 0, options).unchanged;
    }
    BOOST_TEST(leaked > 0);
    BOOST_TEST(unchanged > 0);
  }
}

BOOST_AUTO_TEST_SUITE_END()
