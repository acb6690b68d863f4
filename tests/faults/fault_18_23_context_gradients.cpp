// FAULTS.md 18 and 23, layer by layer of a model whose microbatches are cut over context-parallel ranks.
#include "faults/context_layers.h"

#include "parallel/context_case.h"
#include "run/context_breaks.h"

namespace quire::test {
namespace {

/// The documents of a batch, each as it is alone in its own row.
std::vector<LayerAttention> solo_first_layers(const ModelConfig& config, DType dtype, const Batch& batch) {
  std::vector<LayerAttention> all;
  for (size_t d = 0; d < batch.lengths.size(); ++d) all.push_back(single_layers(config, dtype, batch.alone(d)).layers.front());
  return all;
}

double difference(const LayerAttention& a, const LayerAttention& b) {
  return std::max({relative_difference(a.dq, b.dq), relative_difference(a.dk, b.dk), relative_difference(a.dv, b.dv)});
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_18_23_context_gradients)

// Rotary positions of later documents were wrong under zigzag.
BOOST_AUTO_TEST_CASE(rotated_queries_and_keys_of_shards_are_those_of_the_document_alone_18) {
  std::mt19937_64 random(18);
  const ModelConfig config = context_config();
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const auto& [layout, exchange] : context_ways)
      for (const int ranks : {2, 3}) {
        if (exchange != ContextExchange::ring) continue;
        const Batch batch = random_batch(random, random_lengths(random, 61, 8), config.vocab_size);
        const std::vector<LayerAttention> alone = solo_first_layers(config, dtype, batch);
        const LayerAttention first = context_layers(config, dtype, batch, ranks, layout, exchange).layers.front();
        const int64_t queries = config.n_heads * config.head_dim, keys = config.n_kv_heads * config.head_dim;
        for (size_t d = 0; d < batch.lengths.size(); ++d) {
          const int64_t begin = batch.begin_of(d), end = begin + batch.lengths[d];
          BOOST_TEST((rows_of(first.q, queries, begin, end) == alone[d].q));
          BOOST_TEST((rows_of(first.k, keys, begin, end) == alone[d].k));
        }
      }
}

BOOST_AUTO_TEST_CASE(positions_that_count_through_a_shard_are_seen_control_of_18) {
  // Two documents in one row without their boundaries: the second one's queries are rotated on.
  std::mt19937_64 random(19);
  const ModelConfig config = context_config();
  Batch batch = random_batch(random, {9, 14}, config.vocab_size);
  const LayerAttention second = single_layers(config, DType::f64, batch.alone(1)).layers.front();
  batch.lengths = {23};
  const LayerAttention merged = single_layers(config, DType::f64, batch).layers.front();
  BOOST_TEST(relative_difference(rows_of(merged.q, config.n_heads * config.head_dim, 9, 23), second.q) > 1e-2);
}

// Gradients of keys and values went to the wrong rank; forward was right, gradients were wrong.
BOOST_AUTO_TEST_CASE(every_layers_gradients_of_queries_keys_and_values_are_right_23) {
  std::mt19937_64 random(23);
  for (const auto& [layout, exchange] : context_ways)
    for (const int ranks : {2, 4}) {
      const ModelConfig config = context_config(4, exchange == ContextExchange::heads && ranks == 4 ? 1 : 2);
      const Batch batch = random_batch(random, random_lengths(random, 77, 8), config.vocab_size);
      const ContextLayers single = single_layers(config, DType::f64, batch), many = context_layers(config, DType::f64, batch, ranks, layout, exchange);
      BOOST_TEST(std::abs(many.loss - single.loss) <= 1e-11 * std::abs(single.loss));
      for (size_t layer = 0; layer < single.layers.size(); ++layer)
        BOOST_TEST(difference(many.layers[layer], single.layers[layer]) <= 1e-11,
                   name_of(layout) << ", " << name_of(exchange) << ", " << ranks << " ranks, layer " << layer);
    }
}

BOOST_AUTO_TEST_CASE(gradients_given_to_a_wrong_owner_are_seen_while_the_loss_is_right_control_of_23) {
  std::mt19937_64 random(24);
  const std::unique_ptr<ContextTamper> tamper = make_context_tamper("dkv_owner");
  for (const auto& [layout, exchange] : context_ways) {
    if (layout == ContextLayout::balanced) continue;  // may hold each document whole
    const ModelConfig config = context_config();
    const Batch batch = random_batch(random, {5, 70, 2}, config.vocab_size);
    const ContextLayers single = single_layers(config, DType::f64, batch), many = context_layers(config, DType::f64, batch, 2, layout, exchange, tamper.get());
    BOOST_TEST(std::abs(many.loss - single.loss) <= 1e-11 * std::abs(single.loss));
    for (size_t layer = 0; layer < single.layers.size(); ++layer) BOOST_TEST(difference(many.layers[layer], single.layers[layer]) > 1e-4);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
