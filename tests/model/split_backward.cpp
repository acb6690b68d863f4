// What a deferred weight gradient costs: a layer is computed again once, with the input gradient, and nothing is kept afterwards but what matrix products need.
#include "model/decoder_case.h"
#include "model/model.h"

using namespace quire;
using namespace quire::test;

namespace {

/// Counts how often each layer attends.
class CountingAttention final : public AttentionExecutor {
 public:
  Value attend(Tape& tape, int64_t layer, const Value& q, const Value& k, const Value& v, const Microbatch& microbatch, const AttentionOptions& options) override {
    calls.resize(std::max(calls.size(), static_cast<size_t>(layer) + 1), 0);
    ++calls[static_cast<size_t>(layer)];
    return local_.attend(tape, layer, q, k, v, microbatch, options);
  }
  std::vector<int64_t> calls;

 private:
  LocalAttention local_;
};

/// Elements per token and layer: the inputs of the seven products and the gradients of their outputs. Queries, keys and values have one input, gate and up too.
int64_t elements_for_weights(const ModelConfig& config) {
  const int64_t queries = config.n_heads * config.head_dim, keys = config.n_kv_heads * config.head_dim;
  return (2 * config.dim + queries + config.ffn_hidden_dim) + (queries + 2 * keys + 2 * config.dim + 2 * config.ffn_hidden_dim);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(split_backward_of_models)

BOOST_AUTO_TEST_CASE(a_layer_is_computed_again_once_and_keeps_only_what_weight_gradients_need) {
  std::mt19937_64 random(1);
  for (const bool norms : {false, true})
    for (const Recomputation recomputation : {Recomputation::none, Recomputation::attention, Recomputation::full}) {
      ModelConfig config = small_config();
      config.n_layers = 3;
      config.qk_norm = norms;
      config = config.resolved();
      Rank rank(on_device({.poison = true}));
      Model model(rank, config, DType::f32);
      model.initialize(rank, 1);
      const Batch batch = random_batch(random, {1, 40, 3, 64}, config.vocab_size);
      CountingAttention attention;
      ForwardOptions options;
      options.recomputation = recomputation;
      options.attention = &attention;
      const Tensor one = Tensor::from<double>(rank, {1}, std::vector<double>{1.0});
      const int64_t bytes = 4 * batch.size() * config.n_layers * elements_for_weights(config);
      for (const BackwardMode mode : {BackwardMode::full, BackwardMode::input_only}) {
        attention.calls.clear();
        model.parameters().zero_gradients(rank);
        auto tape = std::make_unique<Tape>(rank);
        auto microbatch = std::make_unique<Microbatch>(batch.on(rank));
        Value loss = model.loss(*tape, *microbatch, options);
        BOOST_TEST((attention.calls == std::vector<int64_t>(3, 1)));
        const int64_t forward_bytes = tape->saved_bytes();
        tape->backward(std::span(&loss, 1), std::span(&one, 1), mode);
        const int64_t again = recomputation == Recomputation::none ? 1 : 2;
        BOOST_TEST((attention.calls == std::vector<int64_t>(3, again)));
        if (mode == BackwardMode::full) {
          BOOST_TEST(tape->saved_bytes() == 0);
          continue;
        }
        BOOST_TEST(tape->saved_bytes() == bytes);
        if (recomputation == Recomputation::none) BOOST_TEST(forward_bytes > bytes / 2);  // the control: there was more to let go of
        microbatch.reset();  // weight gradients need nothing of it
        loss = {};
        // What is in memory is what is counted, to the allocator's rounding of each of the products' eleven tensors.
        const int64_t held = rank.allocator().counters(Category::activations).current, before_weights = tape->saved_bytes();
        tape->backward_weights();
        BOOST_TEST((attention.calls == std::vector<int64_t>(3, again)));  // W computes nothing again
        BOOST_TEST(tape->saved_bytes() == 0);
        const int64_t freed = held - rank.allocator().counters(Category::activations).current;
        BOOST_TEST(freed >= before_weights);
        BOOST_TEST(freed <= before_weights + 3 * 11 * 4096, freed << " for " << before_weights);
      }
    }
}

BOOST_AUTO_TEST_SUITE_END()
