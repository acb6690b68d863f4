#include "model/layers.h"

#include <cmath>

#include "ops/embedding.h"
#include "ops/linear_cross_entropy.h"
#include "ops/matmul.h"

namespace quire {

Value EmbeddingLayer::forward(Tape& tape, const Value&, const Microbatch& microbatch, const ForwardOptions&) {
  return embedding(tape, microbatch.tokens, table_, 0);
}

DecoderLayer::DecoderLayer(ParameterSet& parameters, const ModelConfig& config, int64_t index, const RotaryTable& rotary)
    : name_(fmt::format("layers.{}", index)), index_(index), eps_(config.norm_eps), rotary_(rotary) {
  options_.heads = config.n_heads;
  options_.kv_heads = config.n_kv_heads;
  options_.head_dim = config.head_dim;
  options_.window = config.window(index);
  options_.backend = attention_backend_from(config.attention_backend);
  const int64_t dim = config.dim, queries = config.n_heads * config.head_dim, keys = config.n_kv_heads * config.head_dim, ffn = config.ffn_hidden_dim;
  // Layers that write into the residual stream start smaller, so that its variance does not grow with depth (Radford et al., 2019).
  const double std = config.init_std, residual_std = std / std::sqrt(2.0 * static_cast<double>(config.n_layers));
  const auto declare = [&](const char* part, const Shape& shape, double init_std) { return &parameters.add(fmt::format("{}.{}.weight", name_, part), shape, init_std); };
  attention_norm_ = declare("attention_norm", {dim}, 0);
  q_ = declare("attention.q", {queries, dim}, std);
  k_ = declare("attention.k", {keys, dim}, std);
  v_ = declare("attention.v", {keys, dim}, std);
  o_ = declare("attention.o", {dim, queries}, residual_std);
  if (config.qk_norm) {
    q_norm_ = declare("attention.q_norm", {config.head_dim}, 0);
    k_norm_ = declare("attention.k_norm", {config.head_dim}, 0);
  }
  ffn_norm_ = declare("ffn_norm", {dim}, 0);
  gate_ = declare("ffn.gate", {ffn, dim}, std);
  up_ = declare("ffn.up", {ffn, dim}, std);
  down_ = declare("ffn.down", {dim, ffn}, residual_std);
}

std::vector<Parameter*> DecoderLayer::parameters() {
  std::vector<Parameter*> all{attention_norm_, q_, k_, v_, o_};
  if (q_norm_ != nullptr) all.insert(all.end(), {q_norm_, k_norm_});
  all.insert(all.end(), {ffn_norm_, gate_, up_, down_});
  return all;
}

Value DecoderLayer::attention_block(Tape& tape, const Value& x, const Microbatch& microbatch, AttentionExecutor& executor) {
  const Value normed = rmsnorm(tape, x, *attention_norm_, eps_);
  Value q = linear(tape, normed, *q_), k = linear(tape, normed, *k_);
  const Value v = linear(tape, normed, *v_);
  if (q_norm_ != nullptr) {
    q = rmsnorm(tape, q, *q_norm_, eps_);
    k = rmsnorm(tape, k, *k_norm_, eps_);
  }
  q = rotary(tape, std::move(q), microbatch.positions, rotary_);
  k = rotary(tape, std::move(k), microbatch.positions, rotary_);
  return linear(tape, executor.attend(tape, index_, q, k, v, microbatch, options_), *o_);
}

Value DecoderLayer::ffn_block(Tape& tape, const Value& normed) {
  return linear(tape, swiglu(tape, linear(tape, normed, *gate_), linear(tape, normed, *up_)), *down_);
}

Value DecoderLayer::forward(Tape& tape, const Value& x, const Microbatch& microbatch, const ForwardOptions& options) {
  // The microbatch outlives the tape; the executor lives as long as the pass.
  AttentionExecutor* executor = options.attention;
  const auto attend = [this, &microbatch, executor](Tape& t, const Value& in) { return attention_block(t, in, microbatch, *executor); };
  const auto whole = [this, attend](Tape& t, const Value& in, bool recompute_attention) {
    const SumAndNorm middle = add_rmsnorm(t, in, recompute_attention ? recompute(t, in, attend) : attend(t, in), *ffn_norm_, eps_);
    return add(t, middle.sum, ffn_block(t, middle.normed));
  };
  if (options.recomputation == Recomputation::full) return recompute(tape, x, [whole](Tape& t, const Value& in) { return whole(t, in, false); });
  return whole(tape, x, options.recomputation == Recomputation::attention);
}

Value NormLayer::forward(Tape& tape, const Value& x, const Microbatch&, const ForwardOptions&) { return rmsnorm(tape, x, gain_, eps_); }

Value HeadLayer::forward(Tape& tape, const Value& x, const Microbatch& microbatch, const ForwardOptions& options) {
  return linear_cross_entropy(tape, x, weight_, use_, microbatch.targets, options.z_weight, options.loss_gradient);
}

}  // namespace quire
