#include "model/config.h"

#include <cmath>

#include "runtime/error.h"

namespace quire {
namespace {

constexpr int64_t largest_size = int64_t{1} << 22, largest_layers = int64_t{1} << 14, largest_count = (int64_t{1} << 31) - 1;

void check_range(const char* key, int64_t found, int64_t least, int64_t most) {
  if (found < least || found > most) fail<ConfigError>("config", "model.{} is {}; allowed: {} to {}", key, found, least, most);
}

void check_positive(const char* key, double found, bool zero_allowed) {
  if (!std::isfinite(found) || found < 0 || (found == 0 && !zero_allowed))
    fail<ConfigError>("config", "model.{} is {}; allowed: a finite number {} 0", key, found, zero_allowed ? ">=" : ">");
}

}  // namespace

void ModelConfig::validate() const {
  check_range("dim", dim, 1, largest_size);
  check_range("n_layers", n_layers, 1, largest_layers);
  check_range("n_heads", n_heads, 1, largest_size);
  check_range("n_kv_heads", n_kv_heads, 0, n_heads);
  if (n_kv_heads > 0 && n_heads % n_kv_heads != 0)
    fail<ConfigError>("config", "model.n_kv_heads is {}; allowed: a divisor of model.n_heads = {}, or 0 for as many", n_kv_heads,
                      n_heads);
  check_range("head_dim", head_dim, 0, largest_size);
  if (head_dim == 0 && dim % n_heads != 0)
    fail<ConfigError>("config", "model.n_heads is {}; allowed: a divisor of model.dim = {}, or any number with model.head_dim given",
                      n_heads, dim);
  const int64_t head = head_dim > 0 ? head_dim : dim / n_heads;
  if (head % 2 != 0)
    fail<ConfigError>("config", "model.head_dim is {}{}; allowed: even numbers, because rotary positions turn pairs", head,
                      head_dim > 0 ? "" : " (model.dim / model.n_heads)");
  check_range("n_heads * head_dim", n_heads * head, 1, largest_size);
  check_range("vocab_size", vocab_size, 1, largest_count);
  check_range("ffn_hidden_dim", ffn_hidden_dim, 0, largest_size);
  check_range("max_seq_len", max_seq_len, 1, largest_count);
  check_positive("norm_eps", norm_eps, true);
  check_positive("rope_theta", rope_theta, false);
  check_positive("init_std", init_std, true);
  const int64_t windows = static_cast<int64_t>(sliding_window.size());
  if (windows > 1 && windows != n_layers)
    fail<ConfigError>("config",
                      "model.sliding_window has {} entries; allowed: none, one for all layers, or one for each of the {} layers",
                      windows, n_layers);
  for (const int64_t window : sliding_window) check_range("sliding_window", window, 0, largest_count);
  const std::vector<std::string> backends = {"block", "dense", "cudnn"};
  bool known = false;
  for (const std::string& backend : backends) known = known || backend == attention_backend;
  if (!known) {
    const std::string near = nearest(attention_backend, backends);
    fail<ConfigError>("config", "model.attention_backend is '{}'; allowed: block, dense, cudnn{}", attention_backend,
                      near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near));
  }
}

ModelConfig ModelConfig::resolved() const {
  validate();
  ModelConfig filled = *this;
  if (filled.n_kv_heads == 0) filled.n_kv_heads = n_heads;
  if (filled.head_dim == 0) filled.head_dim = dim / n_heads;
  if (filled.ffn_hidden_dim == 0) filled.ffn_hidden_dim = ((8 * dim + 2) / 3 + 15) / 16 * 16;
  if (sliding_window.size() != static_cast<size_t>(n_layers))
    filled.sliding_window.assign(static_cast<size_t>(n_layers), sliding_window.empty() ? 0 : sliding_window.front());
  return filled;
}

int64_t ModelConfig::parameter_count() const {
  const ModelConfig full = resolved();
  const int64_t queries = full.n_heads * full.head_dim, keys = full.n_kv_heads * full.head_dim;
  const int64_t attention = full.dim * (queries + 2 * keys) + queries * full.dim + (qk_norm ? 2 * full.head_dim : 0);
  const int64_t layer = 2 * full.dim + attention + 3 * full.dim * full.ffn_hidden_dim;
  return vocab_size * dim * (tie_embeddings ? 1 : 2) + n_layers * layer + dim;
}

}  // namespace quire
