// Trains a small decoder on documents made here, with the installed library:
//   g++ -std=c++20 -O2 train_small.cpp $(pkg-config --cflags --libs quire) -o train_small && ./train_small
#include <cstdio>

#include "data/loader.h"
#include "model/model.h"
#include "model/optimizer.h"
#include "ops/embedding.h"

using namespace quire;

int main() {
  Rank rank({.threads = 2});

  // Documents "0 1 2 ... n EOS" of different lengths, packed into rows.
  constexpr int32_t eos = 31;
  CorpusInfo info;
  info.vocabulary_size = 32;
  info.eos = eos;
  auto corpus = std::make_shared<MemoryCorpus>(info);
  for (int32_t length = 2; length < 30; ++length) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < length; ++i) tokens.push_back(i);
    tokens.push_back(eos);
    corpus->add(tokens);
  }
  LoaderSettings settings;
  settings.packing.seq_len = 128;
  settings.global_batch_size = 4;
  settings.microbatch_size = 2;
  Loader loader(corpus, settings);

  ModelConfig config;
  config.dim = 64;
  config.n_layers = 2;
  config.vocab_size = 32;
  Model model(rank, config, DType::f32);
  model.initialize(rank, 1);
  AdamW optimizer(rank, model.parameters(), {});

  double first = 0, loss = 0;
  for (int step = 1; step <= 100; ++step) {
    const LoadedStep batch = loader.next_step();
    const Tensor sum = Tensor::zeros(rank, {1}, DType::f64);
    const double share[] = {1.0 / static_cast<double>(batch.plan.valid)};  // the loss is a mean over the whole step's targets
    const Tensor gradient = Tensor::from<double>(rank, {1}, share);
    model.parameters().zero_gradients(rank);
    for (const HostBatch& host : batch.microbatches) {
      const Microbatch microbatch = Microbatch::make(rank, host.tokens, host.targets, host.documents);
      Tape tape(rank);
      const Value nats = model.loss(tape, microbatch);
      tape.backward({&nats, 1}, {&gradient, 1});
      accumulate(rank, nats.tensor, sum);
    }
    model.parameters().combine_uses(rank);
    optimizer.step(rank, sum, 3e-3);
    loss = sum.to_vector<double>()[0] * share[0];
    if (step == 1) first = loss;
    if (step % 20 == 0) std::printf("step %3d  loss %.4f\n", step, loss);
  }
  return loss < 0.3 * first ? 0 : 1;  // only a document's end can not be foreseen
}
