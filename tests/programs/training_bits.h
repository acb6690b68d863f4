// What a few steps of training leave, as text that processes can compare.
#pragma once
#include <set>

#include "products/layout_product.h"
#include "runtime/digest.h"

namespace quire::test {

/// `pp=2`, `schedule=1f1b split`, `precision=bf16` ...: parameters of `set_layout_parameter`, on twelve layers and six microbatches of a row.
inline Config config_from_words(const std::vector<std::string>& words) {
  Config config = product_config();
  config.model.n_layers = 12;
  config.train.global_batch_size = 6;
  config.train.microbatch_size = 1;
  for (const std::string& word : words) set_layout_parameter(config, word.substr(0, word.find('=')), word.substr(word.find('=') + 1));
  return resolved(config);
}

/// Losses, norms and digests of every gradient of each step and of every weight at the end, a line each, in order. The whole text on rank 0; a tensor that two ranks
/// hold has two lines where they differ. Collective.
inline std::string training_bits(const Config& config, Communicator* world, bool split, int steps) {
  Rank rank(rank_options(config));
  Trainer trainer(rank, config, world);
  Loader loader(layout_corpus(), trainer.loader_settings(), trainer.share());
  if (split) split_backward_of(trainer);
  std::string lines;
  const auto add = [&](const std::string& what, const Tensor& tensor) {
    const auto* bytes = static_cast<const std::byte*>(tensor.raw());
    lines += fmt::format("{}: {}\n", what, to_hex(digest_of(std::span(bytes, static_cast<size_t>(tensor.bytes())))));
  };
  for (int step = 1; step <= steps; ++step) {
    const StepResult result = trainer.step(loader.next_step());
    lines += fmt::format("step {}: loss {:.17g}, norm {:.17g}, {} tokens, {} pairs\n", step, result.loss, result.gradient_norm, result.tokens, result.computed_pairs);
    for (const Parameter& p : trainer.model().parameters()) add(fmt::format("step {}: gradient of {}", step, p.name), p.gradients.at(0));
  }
  for (const Parameter& p : trainer.model().parameters()) add("weight " + p.name, p.master);
  lines += fmt::format("evaluation {:.17g}\n", trainer.evaluate(layout_corpus()).loss);

  std::set<std::string> all;
  for (const std::string& text : world == nullptr ? std::vector<std::string>{lines} : world->gather_texts(lines)) {
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) all.insert(line);
  }
  std::string result;
  for (const std::string& line : all) result += line + "\n";
  return result;
}

}  // namespace quire::test
