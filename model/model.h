// The decoder as in Llama and Qwen3: a list of named layers over one stream of hidden states [T, dim].
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/microbatch.h"
#include "model/parameters.h"
#include "ops/attention.h"
#include "ops/elementwise.h"

namespace quire {

/// What is computed again in backward instead of being kept.
enum class Recomputation : uint8_t {
  none,
  attention,  ///< each layer's attention block (norm to output projection)
  full,       ///< each layer
};
Recomputation recomputation_from(std::string_view name);  ///< throws ConfigError with the allowed names

/// How attention is carried out: locally, over ranks, or with a key/value cache. The model knows no more of it.
class AttentionExecutor {
 public:
  virtual ~AttentionExecutor() = default;
  /// q [T, heads * head_dim], k and v [T, kv_heads * head_dim], already rotated; returns [T, heads * head_dim]. Called again, with equal bits
  /// expected, when a layer is recomputed.
  virtual Value attend(Tape& tape, int64_t layer, const Value& q, const Value& k, const Value& v, const Microbatch& microbatch, const AttentionOptions& options) = 0;
};

/// One process: a single call.
class LocalAttention final : public AttentionExecutor {
 public:
  Value attend(Tape& tape, int64_t layer, const Value& q, const Value& k, const Value& v, const Microbatch& microbatch, const AttentionOptions& options) override;
};

struct ForwardOptions {
  Recomputation recomputation = Recomputation::none;
  AttentionExecutor* attention = nullptr;  ///< nullptr: LocalAttention
  double z_weight = 0;                     ///< z-loss
  /// The gradient of the loss [1] f64 that backward will be given, where it is known before: the head then computes its gradients in forward.
  /// Only where backward follows; see `linear_cross_entropy`.
  Tensor loss_gradient;
};

/// A named layer. The first takes tokens (its input value is empty), the last gives the summed loss [1] f64, all others map [T, dim] to [T, dim].
class Layer {
 public:
  virtual ~Layer() = default;
  virtual const std::string& name() const = 0;
  virtual Value forward(Tape& tape, const Value& x, const Microbatch& microbatch, const ForwardOptions& options) = 0;
  virtual std::vector<Parameter*> parameters() = 0;
};

/// Consecutive layers [first, last).
struct LayerRange {
  size_t first = 0, last = 0;
  bool operator==(const LayerRange&) const = default;
};

class Model {
 public:
  /// Declares all parameters and allocates those of the layers `held` (none given: all) on `rank`. dtype f64, f32 or bf16. Throws ConfigError.
  Model(Rank& rank, const ModelConfig& config, DType dtype, bool gradients = true, const std::vector<LayerRange>& held = {});
  Model(const Model&) = delete;  // layers refer into it
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return config_; }
  DType dtype() const { return parameters_.dtype(); }
  ParameterSet& parameters() { return parameters_; }
  const ParameterSet& parameters() const { return parameters_; }
  void initialize(Rank& rank, uint64_t seed) { parameters_.initialize(rank, seed); }

  /// Whether this rank has the parameters of a layer.
  bool holds(size_t layer) const { return held_.at(layer); }
  /// The table that embedding and head share, where they do and it is held here; else nullptr.
  Parameter* tied_table() { return config_.tie_embeddings && (holds(0) || holds(layers_.size() - 1)) ? head_weight_ : nullptr; }

  /// `embedding`, `layers.0` ... `layers.N-1`, `norm`, `head`.
  const std::vector<std::unique_ptr<Layer>>& layers() const { return layers_; }

  /// Layers [first, last) on `x` (empty when first is 0). Throws ConfigError where a document is longer than max_seq_len, StateError for a layer not held.
  Value forward(Tape& tape, Value x, const Microbatch& microbatch, const ForwardOptions& options, size_t first, size_t last);
  /// All layers: the summed loss [1] f64.
  Value loss(Tape& tape, const Microbatch& microbatch, const ForwardOptions& options = {});
  /// Hidden states after the final norm [T, dim].
  Value hidden(Tape& tape, const Microbatch& microbatch, const ForwardOptions& options = {});
  /// Logits [T, vocabulary] in the accumulator type (generation, probes). Allocates all of them.
  Tensor logits(Rank& rank, const Tensor& hidden);
  /// Loss of every target [T], 0 where ignored (evaluation, probes).
  Tensor losses(Rank& rank, const Tensor& hidden, const Microbatch& microbatch);

 private:
  ModelConfig config_;
  ParameterSet parameters_;
  RotaryTable rotary_;
  LocalAttention local_attention_;
  Parameter* head_weight_ = nullptr;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<char> held_;  ///< by layer
};

}  // namespace quire
