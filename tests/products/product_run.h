// One combination of a product as a real training run: corpus, packer, loader, model, optimizer.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <random>
#include <sstream>

#include "check.h"
#include "data/loader.h"
#include "run/rank_options.h"
#include "run/trainer.h"
#include "tier.h"

namespace quire::test {

constexpr int32_t product_eos = 22;
constexpr int64_t product_row = 29;  ///< tokens of a row: divides nothing

/// Documents of one token (EOS alone), of a row's length and one beside it, of more than two rows, and of all lengths between.
inline std::shared_ptr<MemoryCorpus> product_corpus(bool masked) {
  CorpusInfo info;
  info.vocabulary_size = product_eos + 1;
  info.eos = product_eos;
  auto corpus = std::make_shared<MemoryCorpus>(info);
  std::mt19937_64 random(11);
  std::vector<int64_t> lengths{1, 1, 2, product_row - 1, product_row, product_row + 1, 2 * product_row + 7, 1, 17};
  for (int i = 0; i < 24; ++i) lengths.push_back(1 + static_cast<int64_t>(random() % 12));
  for (const int64_t length : lengths) {
    std::vector<int32_t> tokens(static_cast<size_t>(length), product_eos);
    for (size_t i = 0; i + 1 < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(random() % product_eos);
    std::vector<uint8_t> mask(tokens.size());
    for (uint8_t& scored : mask) scored = random() % 3 != 0;
    corpus->add(tokens, masked ? mask : std::vector<uint8_t>{});
  }
  return corpus;
}

/// A tiny model far from uniform, so that whom a token attends to shows. Adam's eps is as large as the gradients: an update is then a smooth
/// function of the gradient, and errors of gradients bound those of weights. (With 1e-8 a weight whose gradient is mere rounding moves by the whole
/// learning rate, and nothing could be said of it.)
inline Config product_config() {
  Config config;
  config.model.dim = 16;
  config.model.n_layers = 2;
  config.model.n_heads = 4;
  config.model.vocab_size = product_eos + 1;
  config.model.ffn_hidden_dim = 24;
  config.model.max_seq_len = 4 * product_row;
  config.model.init_std = 0.3;
  config.train.seq_len = product_row;
  config.train.global_batch_size = 4;
  config.train.max_steps = 3;
  config.optimizer.lr = 1e-2;
  config.optimizer.eps = 1e-2;
  config.scheduler.name = "constant";
  config.data.dataset_path = "in memory";
  config.run.threads = 1;
  return config;
}

/// `3,0` -> {3, 0}
inline std::vector<int64_t> integers(const std::string& list) {
  std::vector<int64_t> result;
  std::istringstream stream(list);
  for (std::string number; std::getline(stream, number, ',');) result.push_back(std::stoll(number));
  return result;
}

/// Sets one parameter of a product. Every value is in force through the key that a user would set.
inline void set_parameter(Config& config, const std::string& name, const std::string& value) {
  if (name == "packing") {  // STRATEGY or STRATEGY/OVERFLOW
    const std::string strategy = value.substr(0, value.find('/'));
    config.data.pack_sequences = strategy != "single";
    config.data.strategy = strategy == "single" ? "concat" : strategy;
    config.data.overflow = value.find('/') == std::string::npos ? "split" : value.substr(value.find('/') + 1);
  } else if (name == "backend") config.model.attention_backend = value;
  else if (name == "recomputation") config.train.activation_checkpointing = value;
  else if (name == "precision") config.train.mixed_precision = value;
  else if (name == "tied") config.model.tie_embeddings = value == "yes";
  else if (name == "qk_norm") config.model.qk_norm = value == "yes";
  else if (name == "kv_heads") config.model.n_kv_heads = std::stoll(value);
  else if (name == "window") config.model.sliding_window = value == "none" ? std::vector<int64_t>{} : integers(value);
  else if (name == "rows") config.train.microbatch_size = std::stoll(value);
  else if (name == "threads") config.run.threads = std::stoll(value);
  else if (name == "z_loss") config.train.z_loss_weight = std::stod(value);
  else if (name == "instruction_set") config.run.instruction_set = value;
  else if (name != "mask") throw std::out_of_range("no parameter " + name);
}

/// Largest differences from the reference, each of the tensor's largest magnitude; what is not a number counts as infinity.
struct Errors {
  double gradients = 0, weights = 0, scalars = 0;
  bool within(const Errors& allowed) const { return gradients <= allowed.gradients && weights <= allowed.weights && scalars <= allowed.scalars; }
  void widen(const Errors& other) {
    gradients = std::max(gradients, other.gradients);
    weights = std::max(weights, other.weights);
    scalars = std::max(scalars, other.scalars);
  }
  std::string text() const { return fmt::format("gradients {:.2e}, weights {:.2e}, losses and norms {:.2e}", gradients, weights, scalars); }
};

/// Largest difference of two tensors, of the largest magnitude of the second.
inline double error_of(const std::vector<double>& values, const std::vector<double>& reference) {
  if (values.size() != reference.size()) return HUGE_VAL;
  double off = 0, largest = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double d = std::abs(values[i] - reference[i]);
    off = std::isnan(d) ? HUGE_VAL : std::max(off, d);
    largest = std::max(largest, std::abs(reference[i]));
  }
  return off == 0 ? 0 : off / largest;
}

/// Rank, trainer and loader of a combination; memory is poisoned with NaN.
class ProductRun {
 public:
  ProductRun(const Config& config, const std::shared_ptr<const Corpus>& corpus)
      : rank_(poisoned(config)), trainer_(rank_, config), loader_(corpus, settings(config)), corpus_(corpus) {}
  Rank& rank() { return rank_; }
  Trainer& trainer() { return trainer_; }
  Loader& loader() { return loader_; }
  const std::shared_ptr<const Corpus>& corpus() const { return corpus_; }

 private:
  static RankOptions poisoned(const Config& config) {
    RankOptions options = rank_options(config);
    options.poison = true;
    return options;
  }
  static LoaderSettings settings(const Config& config) {
    LoaderSettings result = loader_settings(config);
    result.prefetch = 0;
    return result;
  }
  Rank rank_;
  Trainer trainer_;
  Loader loader_;
  std::shared_ptr<const Corpus> corpus_;
};

}  // namespace quire::test
