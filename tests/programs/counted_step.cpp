// One training step of a tiny model on one thread, for tools that count its instructions: `counted_step PRECISION INSTRUCTION_SET [OP=KERNEL]...`.
// What they are to count is the call of `counted_step`.
#include <cstdio>
#include <exception>

#include "bench/made_step.h"
#include "run/trainer.h"

using namespace quire;

extern "C" [[gnu::noinline]] void counted_step(Trainer& trainer, const LoadedStep& step) { trainer.step(step); }

namespace {

Config tiny_model(const std::string& precision) {
  Config config;
  config.model.dim = 64;
  config.model.n_layers = 2;
  config.model.n_heads = 2;
  config.model.n_kv_heads = 1;
  config.model.head_dim = 32;
  config.model.ffn_hidden_dim = 176;
  config.model.vocab_size = 256;
  config.model.tie_embeddings = true;
  config.train.seq_len = 96;
  config.train.global_batch_size = config.train.microbatch_size = 2;
  config.train.mixed_precision = precision;
  config.data.dataset_path = "none";  // rows are made here
  return resolved(config);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) return 2;
  RankOptions options;
  options.instruction_set = argv[2];
  for (int i = 3; i < argc; ++i) {
    const std::string choice = argv[i];
    const size_t equals = choice.find('=');
    options.kernels.emplace(choice.substr(0, equals), choice.substr(equals + 1));
  }
  Rank rank(options);
  Trainer trainer(rank, tiny_model(argv[1]));
  const LoadedStep step = bench::made_step({{50, 1, 25, 17, 3}, {70, 3, 20, 3}}, trainer.config().model.vocab_size);
  trainer.step(step);  // the first one allocates
  counted_step(trainer, step);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
