// Every layer's rotated queries, keys and values and their gradients, in one process and over context-parallel ranks.
#pragma once
#include "model/decoder_case.h"
#include "in_rank.h"
#include "parallel/context_attention.h"

namespace quire::test {

/// Of one layer: [tokens, heads * head_dim] or [tokens, kv_heads * head_dim].
struct LayerAttention {
  Doubles q, k, v, out, dq, dk, dv;
};
struct ContextLayers {
  double loss = 0;  ///< all ranks'
  std::vector<LayerAttention> layers;
};

/// Passes on to another executor and writes down what goes in and out, forward and backward.
class WatchedAttention final : public AttentionExecutor {
 public:
  WatchedAttention(AttentionExecutor& inner, std::span<const int32_t> indices, std::vector<LayerAttention>& layers)
      : inner_(inner), indices_(indices), layers_(layers) {}

  Value attend(Tape& tape, int64_t layer, const Value& q, const Value& k, const Value& v, const Microbatch& microbatch,
               const AttentionOptions& options) override {
    LayerAttention& all = layers_.at(static_cast<size_t>(layer));
    const Value watched[] = {watch(tape, q, all.q, all.dq), watch(tape, k, all.k, all.dk), watch(tape, v, all.v, all.dv)};
    Value out = inner_.attend(tape, layer, watched[0], watched[1], watched[2], microbatch, options);
    put(tape.rank(), out.tensor, all.out);
    return out;
  }

 private:
  class WatchNode final : public Node {
   public:
    WatchNode(WatchedAttention& owner, Doubles& gradients) : owner_(owner), gradients_(gradients) {}
    std::string_view name() const override { return "watch"; }
    void input_gradient(Tape& tape, const Tensor& grad) override {
      owner_.put(tape.rank(), grad, gradients_);
      tape.add_gradient(input(0), grad);
    }

   private:
    WatchedAttention& owner_;
    Doubles& gradients_;
  };

  Value watch(Tape& tape, const Value& value, Doubles& values, Doubles& gradients) {
    put(tape.rank(), value.tensor, values);
    return tape.record(std::make_unique<WatchNode>(*this, gradients), std::span(&value, 1), value.tensor);
  }
  /// Ranks write different rows of memory that was made before.
  void put(Rank& rank, const Tensor& rows, Doubles& into) const {
    const Doubles values = widened(rank, rows);
    const int64_t width = rows.size(1);
    for (size_t i = 0; i < indices_.size(); ++i) std::copy_n(values.begin() + static_cast<int64_t>(i) * width, width, into.begin() + indices_[i] * width);
  }

  AttentionExecutor& inner_;
  std::span<const int32_t> indices_;
  std::vector<LayerAttention>& layers_;
};

/// Three layers, the middle one with a sliding window.
inline ModelConfig context_config(int64_t heads = 4, int64_t kv_heads = 2) {
  ModelConfig config = small_config();
  config.n_layers = 3;
  config.n_heads = heads;
  config.n_kv_heads = kv_heads;
  config.head_dim = 4;
  config.sliding_window = {0, 6, 0};
  return config.resolved();
}

inline ContextOptions context_options(const ModelConfig& config, ContextLayout layout, ContextExchange exchange) {
  ContextOptions options{layout, exchange, {.windows = {}, .tile = 8}};
  for (const int64_t window : {0, 6})
    if (const auto layers = std::count(config.sliding_window.begin(), config.sliding_window.end(), window); layers > 0)
      options.costs.windows.push_back({window, layers});
  return options;
}

inline ContextLayers empty_layers(const ModelConfig& config, int64_t tokens) {
  const auto queries = static_cast<size_t>(tokens * config.n_heads * config.head_dim), keys = static_cast<size_t>(tokens * config.n_kv_heads * config.head_dim);
  const LayerAttention layer{Doubles(queries), Doubles(keys), Doubles(keys), Doubles(queries), Doubles(queries), Doubles(keys), Doubles(keys)};
  return {0, std::vector<LayerAttention>(static_cast<size_t>(config.n_layers), layer)};
}

/// The pass of one rank over the tokens `indices` of the batch.
inline double watched_pass(Rank& rank, const ModelConfig& config, DType dtype, const Batch& batch, const Documents& own, std::shared_ptr<MicrobatchWork> work,
                           AttentionExecutor& executor, std::vector<LayerAttention>& layers) {
  Model model(rank, config, dtype);
  model.initialize(rank, 3);
  std::vector<int32_t> tokens, targets;
  for (const int32_t index : own.indices()) {
    tokens.push_back(batch.tokens[static_cast<size_t>(index)]);
    targets.push_back(batch.targets[static_cast<size_t>(index)]);
  }
  Microbatch microbatch = Microbatch::make_stage(rank, tokens, targets, own);
  microbatch.work = std::move(work);
  WatchedAttention watched(executor, own.indices(), layers);
  Tape tape(rank);
  const Value loss = model.loss(tape, microbatch, {.attention = &watched});
  const Tensor gradient = Tensor::from<double>(rank, {1}, Doubles{1});
  tape.backward(std::span(&loss, 1), std::span(&gradient, 1));
  return loss.tensor.to_vector<double>()[0];
}

inline ContextLayers single_layers(const ModelConfig& config, DType dtype, const Batch& batch) {
  Rank rank(RankOptions{.poison = true});
  LocalAttention local;
  ContextLayers result = empty_layers(config, batch.size());
  result.loss = watched_pass(rank, config, dtype, batch, batch.documents(), nullptr, local, result.layers);
  return result;
}

inline ContextLayers context_layers(const ModelConfig& config, DType dtype, const Batch& batch, int ranks, ContextLayout layout, ContextExchange exchange,
                                    ContextTamper* tamper = nullptr) {
  ContextLayers result = empty_layers(config, batch.size());
  ContextPlanner planner(ranks, context_options(config, layout, exchange));
  std::vector<double> losses(static_cast<size_t>(ranks));
  run_local(ranks, {.watchdog_seconds = 60}, [&](Communicator& world) {
    Rank rank(RankOptions{.poison = true});
    ContextAttention executor(rank, world, planner);
    executor.set_tamper(tamper);
    const Documents whole = batch.documents(), own = executor.shard(whole);
    losses[static_cast<size_t>(world.rank())] = watched_pass(rank, config, dtype, batch, own, executor.begin(whole, own, 0, 0, 0), executor, result.layers);
    executor.finish();
    require_in_rank(!executor.take_mismatch().has_value(), "other boundaries than the plan has");
  });
  for (const double loss : losses) result.loss += loss;
  return result;
}

}  // namespace quire::test
