// A small decoder, packed microbatches for it, and everything that one pass gives: shared by the tests of the model and of the faults.
#pragma once
#include <cstring>
#include <numeric>

#include "check.h"
#include "device.h"
#include "model/model.h"
#include "ops/elementwise.h"

namespace quire::test {

using Doubles = std::vector<double>;

/// Documents with next-token targets; the last token of each predicts nothing.
struct Batch {
  std::vector<int64_t> lengths;
  std::vector<int32_t> tokens, targets;

  Documents documents() const { return Documents::from_lengths(lengths); }
  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int64_t begin_of(size_t document) const { return std::accumulate(lengths.begin(), lengths.begin() + static_cast<int64_t>(document), int64_t{0}); }
  Microbatch on(Rank& rank) const { return Microbatch::make(rank, tokens, targets, documents()); }
  /// Document `d` alone.
  Batch alone(size_t d) const {
    const auto begin = begin_of(d), end = begin + lengths[d];
    return {{lengths[d]}, {tokens.begin() + begin, tokens.begin() + end}, {targets.begin() + begin, targets.begin() + end}};
  }
  /// Targets of document `d` only.
  Batch scoring(size_t d) const {
    Batch result = *this;
    for (int64_t i = 0; i < size(); ++i)
      if (i < begin_of(d) || i >= begin_of(d) + lengths[d]) result.targets[static_cast<size_t>(i)] = ignored_target;
    return result;
  }
  /// Another token at place `i`, lengths and targets kept.
  Batch with_token_changed(int64_t i, int64_t vocabulary) const {
    Batch result = *this;
    int32_t& token = result.tokens[static_cast<size_t>(i)];
    token = static_cast<int32_t>((token + 1) % vocabulary);
    return result;
  }
};

inline Batch random_batch(std::mt19937_64& random, std::vector<int64_t> lengths, int64_t vocabulary) {
  Batch batch{std::move(lengths), {}, {}};
  for (const int64_t length : batch.lengths)
    for (int64_t i = 0; i < length; ++i) {
      batch.tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)));
      if (i > 0) batch.targets.push_back(batch.tokens.back());
      if (i + 1 == length) batch.targets.push_back(ignored_target);
    }
  return batch;
}

inline ModelConfig small_config() {
  ModelConfig config;
  config.dim = 16;
  config.n_layers = 2;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.vocab_size = 23;
  config.ffn_hidden_dim = 32;
  config.max_seq_len = 512;
  config.init_std = 0.3;  // large, so that every part matters
  return config;
}

/// What one pass gives, in f64 whatever the model's dtype (a widening that keeps bits apart).
struct Outcome {
  double loss = 0;
  Doubles logits;                      ///< [T, vocabulary]
  Doubles embedding_gradient;          ///< [T, dim]: at the embedding's output
  std::vector<Doubles> gradients;      ///< of every parameter, uses combined
  bool operator==(const Outcome&) const = default;
};

inline Doubles widened(Rank&, const Tensor& tensor) {
  const auto from = []<class T>(const std::vector<T>& values) {
    Doubles wide;
    for (const T value : values) wide.push_back(static_cast<double>(static_cast<float>(value)));
    return wide;
  };
  if (tensor.dtype() == DType::f64) return tensor.to_vector<double>();
  return tensor.dtype() == DType::f32 ? from(tensor.to_vector<float>()) : from(tensor.to_vector<bf16>());
}

inline Doubles logits_of(Rank& rank, Model& model, const Microbatch& microbatch, const ForwardOptions& options = {}) {
  Tape tape(rank, false);
  return widened(rank, model.logits(rank, model.hidden(tape, microbatch, options).tensor));
}

/// What backward is given: another tensor than the one that was announced, but on a device, where it must be the same.
inline Tensor loss_gradient(Rank& rank, const ForwardOptions& options, double scale) {
  if (options.loss_gradient.defined() && !options.loss_gradient.on_host()) return options.loss_gradient;
  return Tensor::from<double>(rank, {1}, Doubles{scale});
}

/// Gradient of scale * loss at the embedding's output.
inline Doubles embedding_gradient(Rank& rank, Model& model, const Microbatch& microbatch, const ForwardOptions& options = {}, double scale = 1) {
  Tape silent(rank, false), tape(rank);
  const Value x = tape.leaf(model.forward(silent, {}, microbatch, options, 0, 1).tensor);
  const Value loss = model.forward(tape, x, microbatch, options, 1, model.layers().size());
  const Tensor gradient = loss_gradient(rank, options, scale);
  tape.backward(std::span(&loss, 1), std::span(&gradient, 1));
  return widened(rank, tape.take_gradient(x));
}

inline Outcome outcome(Rank& rank, Model& model, const Microbatch& microbatch, const ForwardOptions& options = {}, BackwardMode mode = BackwardMode::full,
                       double scale = 1) {
  Outcome result;
  result.logits = logits_of(rank, model, microbatch, options);
  model.parameters().zero_gradients(rank);
  result.embedding_gradient = embedding_gradient(rank, model, microbatch, options, scale);
  model.parameters().zero_gradients(rank);
  Tape tape(rank);
  const Value loss = model.loss(tape, microbatch, options);
  result.loss = loss.tensor.to_vector<double>()[0];
  const Tensor gradient = loss_gradient(rank, options, scale);
  tape.backward(std::span(&loss, 1), std::span(&gradient, 1), mode);
  if (mode == BackwardMode::input_only) tape.backward_weights();
  model.parameters().combine_uses(rank);
  for (const Parameter& p : model.parameters()) result.gradients.push_back(widened(rank, p.gradients[0]));
  return result;
}

/// Rows of `width` whose bits differ.
inline std::vector<bool> changed_rows(const Doubles& a, const Doubles& b, int64_t width) {
  BOOST_REQUIRE_EQUAL(a.size(), b.size());
  std::vector<bool> changed;
  for (size_t at = 0; at < a.size(); at += static_cast<size_t>(width))
    changed.push_back(std::memcmp(a.data() + at, b.data() + at, static_cast<size_t>(width) * sizeof(double)) != 0);
  return changed;
}

inline Doubles rows_of(const Doubles& all, int64_t width, int64_t begin, int64_t end) { return {all.begin() + begin * width, all.begin() + end * width}; }

/// Attention that uses other boundaries than the microbatch's in some layers: the faults that the probes must catch.
class BrokenAttention final : public AttentionExecutor {
 public:
  /// layer -1: all layers.
  BrokenAttention(const Documents& wrong, int64_t layer = -1) : runs_(shared_runs(wrong)), layer_(layer) {}
  Value attend(Tape& tape, int64_t layer, const Value& q, const Value& k, const Value& v, const Microbatch& microbatch, const AttentionOptions& options) override {
    return attention(tape, q, k, v, layer_ < 0 || layer == layer_ ? runs_ : microbatch.runs, options);
  }

 private:
  DocumentRuns runs_;
  int64_t layer_;
};

/// The leak probe: how many logit rows of other documents, or of the own one before the change, have changed; and how many after it have not.
struct Leak {
  int64_t leaked = 0, unchanged = 0, changed = 0;
};
inline Leak leak_probe(Rank& rank, Model& model, const Batch& batch, size_t document, int64_t offset, const ForwardOptions& options = {}) {
  const int64_t begin = batch.begin_of(document), end = begin + batch.lengths[document], at = begin + offset;
  const int64_t vocabulary = model.config().vocab_size;
  const std::vector<bool> changed = changed_rows(logits_of(rank, model, batch.on(rank), options),
                                                 logits_of(rank, model, batch.with_token_changed(at, vocabulary).on(rank), options), vocabulary);
  Leak leak;
  for (int64_t i = 0; i < batch.size(); ++i) {
    const bool may_change = i >= at && i < end;
    leak.changed += changed[static_cast<size_t>(i)];
    leak.leaked += changed[static_cast<size_t>(i)] && !may_change;
    leak.unchanged += !changed[static_cast<size_t>(i)] && may_change;
  }
  return leak;
}

}  // namespace quire::test
