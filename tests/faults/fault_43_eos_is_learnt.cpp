// FAULTS 43: EOS is a real target. A model that knows its documents by heart ends each of them where it ends.
#include "model/generation.h"
#include "run/training_run.h"

using namespace quire;
using namespace quire::test;

namespace {

constexpr int32_t end_id = 0;  // the id that padding would have, where anything were masked by id

/// Documents of different lengths, told apart by their first two tokens; any of their tokens may follow any other.
std::vector<std::vector<int32_t>> documents_of_different_lengths() {
  std::mt19937_64 random(5);
  std::vector<std::vector<int32_t>> documents;
  for (const int length : {3, 5, 8, 13, 21, 4}) {
    std::vector<int32_t> document{static_cast<int32_t>(1 + documents.size()), 10};
    while (static_cast<int>(document.size()) < length) document.push_back(static_cast<int32_t>(1 + random() % 19));
    document.push_back(end_id);
    documents.push_back(document);
  }
  return documents;
}

std::vector<Generated> learn_and_continue(bool eos_counts) {
  const auto documents = documents_of_different_lengths();
  CorpusInfo info;
  info.vocabulary_size = 20;
  info.eos = end_id;
  info.has_mask = !eos_counts;
  auto corpus = std::make_shared<MemoryCorpus>(info);
  for (const auto& document : documents) {
    std::vector<uint8_t> mask(document.size(), 1);
    mask.back() = 0;
    corpus->add(document, eos_counts ? std::vector<uint8_t>{} : mask);
  }
  const Config config = parse_config(
      "[model]\ndim = 32\nn_layers = 2\nn_heads = 2\nvocab_size = 20\n[train]\nseq_len = 64\nglobal_batch_size = 2\n[optimizer]\nlr = 1e-2\n[scheduler]\n"
      "name = \"constant\"\n[data]\ndataset_path = \"none\"\nstrategy = \"bfd\"\n", "fault_43", "/");
  Rank rank;
  Trainer trainer(rank, config);
  Loader loader(corpus, loader_settings(config));
  StepResult result;
  for (int step = 0; step < 150; ++step) result = trainer.step(loader.next_step());
  BOOST_TEST(result.loss < 0.05);
  std::vector<std::vector<int32_t>> prompts;
  for (const auto& document : documents) prompts.push_back({document[0], document[1]});
  GenerationOptions options;
  options.temperature = 0;
  options.tokens = 40;
  options.end_tokens = {end_id};
  return generate(rank, trainer.model(), prompts, options);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_43)

BOOST_AUTO_TEST_CASE(entry_43_documents_known_by_heart_end_where_they_end) {
  const auto documents = documents_of_different_lengths();
  const std::vector<Generated> texts = learn_and_continue(true);
  for (size_t d = 0; d < documents.size(); ++d) {
    BOOST_TEST((texts[d].tokens == std::vector<int32_t>(documents[d].begin() + 2, documents[d].end())), "document " << d);
    BOOST_TEST((texts[d].end == GenerationEnd::end_token));
  }
}

BOOST_AUTO_TEST_CASE(entry_43_control_with_eos_masked_no_document_ends) {
  const auto documents = documents_of_different_lengths();
  const std::vector<Generated> texts = learn_and_continue(false);
  for (size_t d = 0; d < documents.size(); ++d) {
    BOOST_TEST((texts[d].end == GenerationEnd::tokens), "document " << d << " ends although its end was never a target");
    // What counts as a target is learnt all the same.
    const std::vector<int32_t> inside(documents[d].begin() + 2, documents[d].end() - 1);
    BOOST_TEST(std::equal(inside.begin(), inside.end(), texts[d].tokens.begin()), "document " << d);
  }
}

BOOST_AUTO_TEST_SUITE_END()
