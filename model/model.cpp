#include "model/model.h"

#include <algorithm>
#include <cmath>

#include "model/layers.h"
#include "ops/linear_cross_entropy.h"
#include "ops/matmul.h"

namespace quire {

Recomputation recomputation_from(std::string_view name) {
  if (name == "none") return Recomputation::none;
  if (name == "attention") return Recomputation::attention;
  if (name == "full") return Recomputation::full;
  const std::string near = nearest(name, {"none", "attention", "full"});
  fail<ConfigError>("recomputation", "unknown mode '{}'; allowed: none, attention, full{}", name, near.empty() ? "" : "; nearest: " + near);
}

Value LocalAttention::attend(Tape& tape, int64_t, const Value& q, const Value& k, const Value& v, const Microbatch& microbatch, const AttentionOptions& options) {
  return attention(tape, q, k, v, microbatch.runs, options);
}

Microbatch Microbatch::make(Rank& rank, std::span<const int32_t> tokens, std::span<const int32_t> targets, Documents documents) {
  if (tokens.size() != targets.size() || static_cast<int64_t>(tokens.size()) != documents.tokens())
    fail<ShapeError>("microbatch", "{} tokens, {} targets, boundaries for {}", tokens.size(), targets.size(), documents.tokens());
  return make_stage(rank, tokens, targets, std::move(documents));
}

Microbatch Microbatch::make_stage(Rank& rank, std::span<const int32_t> tokens, std::span<const int32_t> targets, Documents documents, Tensor given_positions) {
  const Shape shape{documents.tokens()};
  Microbatch result;
  const auto values = [&](const char* what, std::span<const int32_t> from) {
    if (from.empty() && documents.tokens() > 0) return Tensor();
    if (static_cast<int64_t>(from.size()) != documents.tokens()) fail<ShapeError>("microbatch", "{} {}, boundaries for {}", from.size(), what, documents.tokens());
    return Tensor::from<int32_t>(rank, shape, from, Category::data);
  };
  result.tokens = values("tokens", tokens);
  result.targets = values("targets", targets);
  const std::vector<int32_t> positions = documents.positions();
  for (const int32_t position : positions) result.longest = std::max<int64_t>(result.longest, int64_t{position} + 1);
  result.positions = given_positions.defined() ? std::move(given_positions) : Tensor::from<int32_t>(rank, shape, positions, Category::data);
  result.runs = shared_runs(documents);
  result.documents = std::move(documents);
  for (int32_t target : targets) result.valid += target != ignored_target;
  return result;
}

Model::Model(Rank& rank, const ModelConfig& config, DType dtype, bool gradients, const std::vector<LayerRange>& held) : config_(config.resolved()) {
  rotary_ = make_rotary_table(rank, config_.max_seq_len, config_.head_dim, config_.rope_theta, dtype);
  const auto count = static_cast<size_t>(config_.n_layers) + 3;
  held_.assign(count, held.empty());
  for (const LayerRange& range : held) std::fill(held_.begin() + static_cast<int64_t>(range.first), held_.begin() + static_cast<int64_t>(range.last), true);
  const bool first = held_.front(), last = held_.back(), tied = config_.tie_embeddings;
  parameters_.hold(first || (tied && last));
  Parameter& table = parameters_.add("embedding.weight", {config_.vocab_size, config_.dim}, config_.init_std);
  // A tied table has two uses: the embedding is number 0, the head number 1. The embedding's rank speaks for it.
  if (tied) table.uses = 2;
  table.counted = first || !tied;
  layers_.push_back(std::make_unique<EmbeddingLayer>(table));
  for (int64_t i = 0; i < config_.n_layers; ++i) {
    parameters_.hold(held_[static_cast<size_t>(i) + 1]);
    layers_.push_back(std::make_unique<DecoderLayer>(parameters_, config_, i, rotary_));
  }
  parameters_.hold(held_[count - 2]);
  layers_.push_back(std::make_unique<NormLayer>(parameters_.add("norm.weight", {config_.dim}, 0), config_.norm_eps));
  parameters_.hold(last);
  head_weight_ = tied ? &table : &parameters_.add("head.weight", {config_.vocab_size, config_.dim}, config_.init_std);
  layers_.push_back(std::make_unique<HeadLayer>(*head_weight_, tied ? 1 : 0));
  parameters_.allocate(rank, dtype, gradients);
}

Value Model::forward(Tape& tape, Value x, const Microbatch& microbatch, const ForwardOptions& options, size_t first, size_t last) {
  if (microbatch.longest > config_.max_seq_len)
    for (int64_t i = 0; const DocumentRun& run : *microbatch.runs) {
      const int64_t end = int64_t{run.global} - run.start + run.length;
      if (end > config_.max_seq_len)
        fail<ConfigError>("model", "document {} of the microbatch has {} tokens; model.max_seq_len allows {}", i, end, config_.max_seq_len);
      ++i;
    }
  ForwardOptions with_executor = options;
  if (with_executor.attention == nullptr) with_executor.attention = &local_attention_;
  for (size_t i = first; i < last; ++i) {
    if (!held_.at(i)) fail<StateError>("model", "layer '{}' is not held by this rank", layers_[i]->name());
    x = layers_[i]->forward(tape, std::move(x), microbatch, with_executor);
  }
  return x;
}

Value Model::loss(Tape& tape, const Microbatch& microbatch, const ForwardOptions& options) { return forward(tape, {}, microbatch, options, 0, layers_.size()); }

Value Model::hidden(Tape& tape, const Microbatch& microbatch, const ForwardOptions& options) {
  return forward(tape, {}, microbatch, options, 0, layers_.size() - 1);
}

Tensor Model::logits(Rank& rank, const Tensor& hidden) {
  const Tensor result = Tensor::empty(rank, {hidden.size(0), config_.vocab_size}, accumulator_of(hidden.dtype()));
  matmul(rank, hidden, Transpose::no, head_weight_->value, Transpose::yes, result);
  return result;
}

Tensor Model::losses(Rank& rank, const Tensor& hidden, const Microbatch& microbatch) {
  return token_losses(rank, hidden, head_weight_->value, microbatch.targets);
}

}  // namespace quire
