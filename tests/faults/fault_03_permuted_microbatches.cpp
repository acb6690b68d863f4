// FAULTS.md 3 and 7, in one process: every microbatch is masked by its own boundaries, also with many in flight.
#include <algorithm>

#include "model/decoder_case.h"

using namespace quire;
using namespace quire::test;

namespace {

struct Step {
  std::vector<double> losses;
  std::vector<Doubles> embedding;  ///< gradients at the embedding's output
  bool operator==(const Step&) const = default;
};

/// All forward passes first, then all backward passes, as a pipeline keeps them in flight; `broken` masks every one by the first's boundaries.
Step run(Rank& rank, Model& model, const std::vector<Batch>& batches, bool broken = false) {
  BrokenAttention first(batches.front().documents());
  ForwardOptions options;
  options.recomputation = Recomputation::full;  // boundaries are needed again in backward
  if (broken) options.attention = &first;
  std::vector<std::unique_ptr<Tape>> tapes;
  std::vector<Microbatch> microbatches;
  std::vector<Value> inputs, losses;
  for (const Batch& batch : batches) microbatches.push_back(batch.on(rank));
  for (const Microbatch& microbatch : microbatches) {
    Tape silent(rank, false);
    tapes.push_back(std::make_unique<Tape>(rank));
    inputs.push_back(tapes.back()->leaf(model.forward(silent, {}, microbatch, options, 0, 1).tensor));
    losses.push_back(model.forward(*tapes.back(), inputs.back(), microbatch, options, 1, model.layers().size()));
  }
  Step step;
  const Tensor one = Tensor::from<double>(rank, {1}, Doubles{1});
  for (size_t i = 0; i < batches.size(); ++i) {
    tapes[i]->backward(std::span(&losses[i], 1), std::span(&one, 1));
    step.losses.push_back(losses[i].tensor.to_vector<double>()[0]);
    step.embedding.push_back(widened(rank, tapes[i]->take_gradient(inputs[i])));
  }
  return step;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_03)

BOOST_AUTO_TEST_CASE(permuting_microbatches_permutes_losses_and_gradients_3) {
  std::mt19937_64 random(1);
  const ModelConfig config = small_config();
  Rank rank(RankOptions{.threads = 2, .poison = true});
  Model model(rank, config, DType::f32);
  model.initialize(rank, 1);
  // One size, other boundaries each, so that exchanged boundaries would fit.
  std::vector<Batch> batches;
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{60}, {20, 40}, {1, 1, 57, 1}, {30, 30}, {59, 1}})
    batches.push_back(random_batch(random, lengths, config.vocab_size));
  const Step in_order = run(rank, model, batches);
  std::vector<size_t> order = {3, 0, 4, 2, 1};
  const auto permuted = [&](const auto& all) {
    std::decay_t<decltype(all)> result;
    for (const size_t i : order) result.push_back(all[i]);
    return result;
  };
  const Step found = run(rank, model, permuted(batches));
  BOOST_TEST((found.losses == permuted(in_order.losses)));
  BOOST_TEST((found.embedding == permuted(in_order.embedding)));
  // The control: all masked by the first one's boundaries.
  BOOST_TEST((run(rank, model, permuted(batches), true).losses != permuted(run(rank, model, batches, true).losses)));
}

BOOST_AUTO_TEST_SUITE_END()
