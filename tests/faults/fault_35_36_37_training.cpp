// Faults of targets and loss, through the real loader, packer and optimizer.
#include <cmath>
#include <numbers>

#include "run/training_run.h"

using namespace quire;
using namespace quire::test;

namespace {

constexpr int32_t eos = 20;

std::shared_ptr<MemoryCorpus> corpus_of(const std::vector<std::vector<int32_t>>& documents, const std::vector<std::vector<uint8_t>>& masks = {}) {
  CorpusInfo info;
  info.vocabulary_size = 21;
  info.eos = eos;
  auto corpus = std::make_shared<MemoryCorpus>(info);
  for (size_t d = 0; d < documents.size(); ++d) corpus->add(documents[d], masks.empty() ? std::vector<uint8_t>{} : masks[d]);
  return corpus;
}

Config config_for(const std::string& overrides_text = {}) {
  Config config = parse_config("[model]\ndim = 32\nn_layers = 2\nn_heads = 2\nvocab_size = 21\nmax_seq_len = 64\n[train]\nseq_len = 32\nglobal_batch_size = 4\n"
                               "microbatch_size = 2\nmax_steps = 400\n[optimizer]\nlr = 1e-2\n[scheduler]\nname = \"constant\"\n[data]\ndataset_path = \"none.txt\"\n" + overrides_text,
                               "faults", "/");
  return config;
}

std::vector<std::vector<std::byte>> weights(Trainer& trainer) {
  std::vector<std::vector<std::byte>> all;
  for (const Parameter& p : trainer.model().parameters()) {
    const auto* bytes = static_cast<const std::byte*>(p.value.raw());
    all.emplace_back(bytes, bytes + p.value.bytes());
  }
  return all;
}

std::vector<std::vector<int32_t>> random_documents(int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<int32_t>> documents;
  for (int d = 0; d < count; ++d) {
    std::vector<int32_t> document(1 + random() % 14);
    for (int32_t& t : document) t = static_cast<int32_t>(random() % 20);
    document.push_back(eos);
    documents.push_back(document);
  }
  return documents;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_35_36_37)

BOOST_AUTO_TEST_CASE(entry_33_34_uniform_logits_read_ln_v_whatever_the_microbatches) {
  // Zero weights in the head give uniform logits: every mean must be ln V to rounding, however targets fall into microbatches.
  const auto corpus = corpus_of(random_documents(40, 1));
  for (int64_t rows : {1, 2, 4}) {
    Config config = config_for();
    config.train.microbatch_size = rows;
    config.model.tie_embeddings = false;
    config.train.mixed_precision = "f64";
    Rank rank;
    Trainer trainer(rank, config);
    fill_zero(rank, trainer.model().parameters().find("head.weight").value);
    Loader loader(corpus, loader_settings(config));
    const StepResult result = trainer.step(loader.next_step());
    BOOST_TEST(std::abs(result.loss - std::log(21.0)) < 1e-12);
    fill_zero(rank, trainer.model().parameters().find("head.weight").value);
    BOOST_TEST(std::abs(trainer.evaluate(corpus).loss - std::log(21.0)) < 1e-12);
  }
}

BOOST_AUTO_TEST_CASE(entry_35_a_batch_whose_targets_are_all_ignored_changes_nothing) {
  std::vector<std::vector<int32_t>> documents = random_documents(8, 2);
  std::vector<std::vector<uint8_t>> nothing, everything;
  for (const auto& document : documents) {
    nothing.emplace_back(document.size(), uint8_t{0});
    everything.emplace_back(document.size(), uint8_t{1});
  }
  const Config config = config_for();
  Rank rank;
  Trainer trainer(rank, config);
  const auto before = weights(trainer);
  Loader ignored(corpus_of(documents, nothing), loader_settings(config));
  for (int i = 0; i < 10; ++i) {  // more than max_non_finite_steps: an ignored batch is no error
    const StepResult result = trainer.step(ignored.next_step());
    BOOST_TEST(result.valid_tokens == 0);
    BOOST_TEST(result.loss == 0.0);
    BOOST_TEST(result.skipped);
  }
  BOOST_TEST((weights(trainer) == before));
  BOOST_TEST(trainer.optimizer().adam_step() == 0);
  // Control: with its targets the same batch changes the weights.
  Loader scored(corpus_of(documents, everything), loader_settings(config));
  trainer.step(scored.next_step());
  BOOST_TEST((weights(trainer) != before));
}

BOOST_AUTO_TEST_CASE(entry_35_one_ignored_microbatch_contributes_exact_zeros) {
  // Row by row microbatches of one document each; the masked document must not move loss or gradient norm.
  const std::vector<int32_t> scored{1, 2, 3, 4, eos}, masked{5, 6, 7, 8, 9, eos};
  Config config = config_for();
  config.train.microbatch_size = 1;
  config.train.global_batch_size = 2;
  config.data.pack_sequences = false;
  config.data.shuffle = false;
  Rank rank;
  Trainer both(rank, config), alone(rank, config);
  Loader two(corpus_of({scored, masked}, {{1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0}}), loader_settings(config));
  config.train.global_batch_size = 1;
  Loader one(corpus_of({scored}), loader_settings(config));
  const StepResult a = both.step(two.next_step()), b = alone.step(one.next_step());
  BOOST_TEST(a.valid_tokens == b.valid_tokens);
  BOOST_TEST(a.loss == b.loss);
  BOOST_TEST(a.gradient_norm == b.gradient_norm);
  BOOST_TEST((weights(both) == weights(alone)));
}

BOOST_AUTO_TEST_CASE(entry_36_evaluation_is_the_objective_of_training) {
  // The loss of a step over a whole corpus and the evaluation of the same weights on the same corpus are one number.
  const auto documents = random_documents(8, 3);
  Config config = config_for();
  config.train.mixed_precision = "f64";
  config.train.global_batch_size = 64;
  config.train.microbatch_size = 64;
  config.data.epochs = 1;
  config.data.shuffle = false;  // concat cuts documents where rows end: the same order gives the same pieces
  Rank rank;
  Trainer trainer(rank, config);
  const auto corpus = corpus_of(documents);
  const Evaluation evaluation = trainer.evaluate(corpus);
  Loader loader(corpus, loader_settings(config));
  const StepResult result = trainer.step(loader.next_step());
  BOOST_TEST(evaluation.valid_tokens == result.valid_tokens);
  BOOST_TEST(std::abs(evaluation.loss - result.loss) < 1e-12);
  // Control: without boundaries (one document of all tokens) it is another objective.
  std::vector<int32_t> joined;
  for (const auto& document : documents) joined.insert(joined.end(), document.begin(), document.end());
  Rank other_rank;
  Trainer other(other_rank, config);
  BOOST_TEST(std::abs(other.evaluate(corpus_of({joined})).loss - evaluation.loss) > 1e-4);
}

BOOST_AUTO_TEST_CASE(entry_37_one_shift_between_inputs_and_targets) {
  // Documents that repeat one token: with exactly one shift the next token is known from the input, and the loss goes to the entropy of where
  // documents end. With two shifts or none it would be as low too, so documents count upwards: next = input + 1.
  std::vector<std::vector<int32_t>> documents;
  for (int32_t first = 0; first < 12; ++first) {
    std::vector<int32_t> document;
    for (int32_t t = first; t < 20; ++t) document.push_back(t);
    document.push_back(eos);
    documents.push_back(document);
  }
  const Config config = config_for();
  Rank rank;
  Trainer trainer(rank, config);
  Loader loader(corpus_of(documents), loader_settings(config));
  StepResult result;
  for (int step = 0; step < 150; ++step) {
    const LoadedStep batch = loader.next_step();
    for (const HostBatch& host : batch.microbatches)
      for (size_t i = 0; i < host.tokens.size(); ++i)
        if (host.targets[i] != ignored_target) BOOST_REQUIRE_EQUAL(host.targets[i], host.tokens[i] + 1);
    result = trainer.step(batch);
  }
  BOOST_TEST(result.loss < 0.02);
}

BOOST_AUTO_TEST_SUITE_END()
