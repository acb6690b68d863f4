// Text from a trained model: many sequences decoded side by side, each a document of one microbatch, over a key/value cache.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/model.h"

namespace quire {

struct GenerationOptions {
  int64_t tokens = 256;             ///< most new tokens of a sequence
  double temperature = 1;           ///< of the softmax; 0 takes the most likely token (of equal ones the lowest id)
  int64_t top_k = 0;                ///< only the k most likely tokens; 0 = all
  double top_p = 1;                 ///< only the most likely tokens that together have this probability, in (0, 1]
  uint64_t seed = 1;
  int64_t first_sequence = 0;       ///< number of the first prompt, where a larger set is generated in parts
  std::vector<int32_t> end_tokens;  ///< a sequence ends with any of these; empty: only by length
};

enum class GenerationEnd : uint8_t {
  end_token,  ///< the last token is one of end_tokens
  tokens,     ///< as many new tokens as were asked for
  context,    ///< model.max_seq_len tokens were read, and the last one was predicted from them
};
std::string_view name_of(GenerationEnd end);

struct Generated {
  std::vector<int32_t> tokens;  ///< the new ones, the end token included
  GenerationEnd end = GenerationEnd::tokens;
};

/// Called with each new token of sequence `sequence` (its place among the prompts), in order of position, sequences ascending.
using TokenCallback = std::function<void(size_t sequence, int32_t token)>;

/// Continues every prompt. What a sequence says depends on its prompt, its number and the options alone, to the bit: not on the other prompts.
/// Throws ConfigError for options out of range, an empty prompt, or one longer than model.max_seq_len; DataError for ids outside the vocabulary;
/// NonFiniteError where the model gives logits that are not finite.
std::vector<Generated> generate(Rank& rank, Model& model, const std::vector<std::vector<int32_t>>& prompts, const GenerationOptions& options,
                                const TokenCallback& on_token = {});

/// The token that the options choose for `logits`, as token number `position` (the first of the prompt is 0) of sequence `sequence`.
int32_t sample_token(std::span<const double> logits, const GenerationOptions& options, uint64_t sequence, uint64_t position);

/// Attention over keys and values of earlier calls. Sequence s of the microbatch's documents keeps the token at position p in row s * capacity + p of
/// the cache, which is also its global index; s * capacity is its document's start (Documents::shard).
class CachedAttention final : public AttentionExecutor {
 public:
  /// Room for `sequences` of `capacity` tokens each. Keys and values [sequences * capacity, kv_heads * head_dim] per layer.
  /// Throws UnsupportedError for 2^31 rows or more.
  CachedAttention(Rank& rank, const ModelConfig& config, DType dtype, int64_t sequences, int64_t capacity);

  /// Adds k and v of the microbatch's tokens to the cache, then attends. Throws StateError on a recording tape: a cache has no gradient.
  Value attend(Tape& tape, int64_t layer, const Value& q, const Value& k, const Value& v, const Microbatch& microbatch, const AttentionOptions& options) override;

  int64_t capacity() const { return capacity_; }
  /// Moves to a cache of another capacity that holds the sequences `kept` (ascending), numbered anew from 0; lengths[i] tokens of each.
  void resize(Rank& rank, std::span<const int64_t> kept, std::span<const int64_t> lengths, int64_t capacity);

 private:
  struct Layer { Tensor keys, values; };
  Layer make_layer(Rank& rank) const;
  int64_t sequences_, capacity_, width_;
  DType dtype_;
  std::vector<Layer> layers_;
  DocumentRuns queries_, keys_;  ///< of the last microbatch: every layer reads the same keys
};

}  // namespace quire
