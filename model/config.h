// What a decoder looks like: sizes and switches, as in the [model] section of a run's TOML file.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace quire {

/// A decoder as in Llama and Qwen3. Zeros that mean "default" are filled by `resolved()`.
struct ModelConfig {
  int64_t dim = 256;             ///< width of the residual stream
  int64_t n_layers = 4;
  int64_t n_heads = 4;           ///< query heads
  int64_t n_kv_heads = 0;        ///< key/value heads, a divisor of n_heads; 0 = n_heads
  int64_t head_dim = 0;          ///< even; 0 = dim / n_heads
  int64_t vocab_size = 257;
  int64_t ffn_hidden_dim = 0;    ///< 0 = 8/3 dim, rounded up to a multiple of 16
  int64_t max_seq_len = 2048;    ///< longest document the model is meant for, tokens
  double norm_eps = 1e-5;
  double rope_theta = 1e4;
  double init_std = 0.02;
  bool qk_norm = false;          ///< rmsnorm of every query and key head, as in Qwen3
  bool tie_embeddings = true;    ///< the head uses embedding.weight
  /// Tokens a query sees, itself included: empty = no window; one entry = every layer; else one per layer. 0 = the whole document.
  std::vector<int64_t> sliding_window;
  std::string attention_backend = "block";

  /// Throws ConfigError naming the key, what was found and what is allowed.
  void validate() const;
  /// Validates and fills the defaults; sliding_window gets one entry per layer.
  ModelConfig resolved() const;
  /// `sliding_window` of a layer.
  int64_t window(int64_t layer) const { return sliding_window.empty() ? 0 : sliding_window.at(sliding_window.size() == 1 ? 0 : static_cast<size_t>(layer)); }
  /// Numbers to be learnt.
  int64_t parameter_count() const;

  bool operator==(const ModelConfig&) const = default;
};

}  // namespace quire
