// FAULTS.md 28: every layer gets the boundaries. The probe looks at the hidden states behind each layer.
#include "model/decoder_case.h"

using namespace quire;
using namespace quire::test;

namespace {

/// For each decoder layer: hidden rows outside document 1 that changed when its first token did.
std::vector<int64_t> leaks_by_layer(Rank& rank, Model& model, const Batch& batch, const ForwardOptions& options) {
  const int64_t begin = batch.begin_of(1), end = begin + batch.lengths[1], dim = model.config().dim;
  Tape tape(rank, false);
  const Microbatch before = batch.on(rank), after = batch.with_token_changed(begin, model.config().vocab_size).on(rank);
  Value a, b;
  std::vector<int64_t> leaks;
  for (size_t i = 0; i + 2 < model.layers().size(); ++i) {
    a = model.forward(tape, std::move(a), before, options, i, i + 1);
    b = model.forward(tape, std::move(b), after, options, i, i + 1);
    const std::vector<bool> changed = changed_rows(widened(rank, a.tensor), widened(rank, b.tensor), dim);
    int64_t leaked = 0;
    for (int64_t t = 0; t < batch.size(); ++t) leaked += changed[static_cast<size_t>(t)] && (t < begin || t >= end);
    if (i > 0) leaks.push_back(leaked);
    else BOOST_TEST(leaked == 0);  // the embedding
  }
  return leaks;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_28)

BOOST_AUTO_TEST_CASE(every_layer_keeps_documents_apart_28) {
  std::mt19937_64 random(1);
  for (const char* backend : {"block", "dense"}) {
    ModelConfig config = small_config();
    config.n_layers = 5;
    config.attention_backend = backend;
    config.sliding_window = {0, 16, 0, 16, 4};  // layers of both kinds
    Rank rank(RankOptions{.threads = 2, .poison = true});
    Model model(rank, config, DType::f32);
    model.initialize(rank, 1);
    const Batch batch = random_batch(random, {20, 33, 50, 1}, config.vocab_size);
    BOOST_TEST((leaks_by_layer(rank, model, batch, {}) == std::vector<int64_t>(5, 0)));
    // The control: one layer without boundaries is found, and named by where the leak begins.
    for (int64_t broken = 0; broken < 5; ++broken) {
      BrokenAttention attention(Documents::from_lengths(std::vector<int64_t>{batch.size()}), broken);
      ForwardOptions options;
      options.attention = &attention;
      const std::vector<int64_t> leaks = leaks_by_layer(rank, model, batch, options);
      for (int64_t layer = 0; layer < 5; ++layer) BOOST_TEST((leaks[static_cast<size_t>(layer)] > 0) == (layer >= broken));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
