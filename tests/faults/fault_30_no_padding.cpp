// FAULTS 30: attention computed on padding, a segment for every pad token, pads counted as tokens. Here no compute tensor holds padding, however
// empty the rows are.
#include "run/training_run.h"

using namespace quire;
using namespace quire::test;

namespace {

/// One step over `documents`, one document per row, so that rows of 48 are mostly empty.
StepResult one_step(const Scratch& scratch, const std::vector<int64_t>& lengths, int64_t seq_len) {
  Config config = small_config(scratch, "unused", {"data.pack_sequences=false", "data.shuffle=false", fmt::format("train.seq_len={}", seq_len),
                                                   fmt::format("train.global_batch_size={}", lengths.size()), "train.microbatch_size=0"});
  CorpusInfo info;
  info.vocabulary_size = 257;
  info.eos = 256;
  const auto corpus = std::make_shared<MemoryCorpus>(info);
  for (int64_t length : lengths) {
    std::vector<int32_t> tokens(static_cast<size_t>(length - 1), 7);
    tokens.push_back(256);
    corpus->add(tokens);
  }
  Rank rank;
  Trainer trainer(rank, config);
  Loader loader(corpus, loader_settings(config));
  const LoadedStep batch = loader.next_step();
  int64_t tokens = 0;
  for (const HostBatch& host : batch.microbatches) {
    tokens += static_cast<int64_t>(host.tokens.size());
    BOOST_TEST(host.documents.tokens() == static_cast<int64_t>(host.tokens.size()));
    BOOST_TEST(host.documents.runs().size() == lengths.size());  // no segment besides the documents
  }
  int64_t real = 0;
  for (int64_t length : lengths) real += length;
  BOOST_TEST(tokens == real);
  const StepResult result = trainer.step(batch);
  BOOST_TEST(result.tokens == real);
  BOOST_TEST(result.padding == static_cast<int64_t>(lengths.size()) * seq_len - real);
  return result;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_30)

BOOST_AUTO_TEST_CASE(empty_places_of_rows_cost_nothing_and_change_nothing) {
  Scratch scratch;
  const std::vector<int64_t> lengths{5, 1, 17, 2};
  const StepResult tight = one_step(scratch, lengths, 17), loose = one_step(scratch, lengths, 48);
  BOOST_TEST(tight.padding < loose.padding);
  BOOST_TEST(tight.loss == loose.loss);
  BOOST_TEST(tight.gradient_norm == loose.gradient_norm);
  BOOST_TEST(tight.useful_pairs == loose.useful_pairs);
  BOOST_TEST(tight.computed_pairs == loose.computed_pairs);
}

BOOST_AUTO_TEST_SUITE_END()
