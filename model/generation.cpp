#include "model/generation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "runtime/random.h"

namespace quire {

std::string_view name_of(GenerationEnd end) {
  switch (end) {
    case GenerationEnd::end_token: return "end_token";
    case GenerationEnd::tokens: return "tokens";
    case GenerationEnd::context: return "context";
  }
  return "";
}

// The cache.

CachedAttention::CachedAttention(Rank& rank, const ModelConfig& config, DType dtype, int64_t sequences, int64_t capacity)
    : sequences_(sequences), capacity_(capacity), width_(config.n_kv_heads * config.head_dim), dtype_(dtype) {
  for (int64_t layer = 0; layer < config.n_layers; ++layer) layers_.push_back(make_layer(rank));
}

CachedAttention::Layer CachedAttention::make_layer(Rank& rank) const {
  const int64_t most = std::numeric_limits<int32_t>::max();
  if (sequences_ > most / std::max<int64_t>(capacity_, 1))
    fail<UnsupportedError>("generate", "a cache of {} sequences of {} tokens each; allowed: below 2^31 in all; generate fewer at a time", sequences_, capacity_);
  // Zeros, not what was there: the dense backend computes with every row before it masks.
  return {Tensor::zeros(rank, {sequences_ * capacity_, width_}, dtype_), Tensor::zeros(rank, {sequences_ * capacity_, width_}, dtype_)};
}

Value CachedAttention::attend(Tape& tape, int64_t layer, const Value& q, const Value& k, const Value& v, const Microbatch& microbatch,
                              const AttentionOptions& options) {
  if (tape.recording()) fail<StateError>("generate", "a key/value cache has no gradient; use a tape that does not record");
  Rank& rank = tape.rank();
  const Layer& cache = layers_.at(static_cast<size_t>(layer));
  auto keys = std::make_shared<RunList>();
  for (const DocumentRun& run : *microbatch.runs) {
    const int64_t end = int64_t{run.global} + run.length, last = int64_t{run.start} + capacity_;
    if (run.start % capacity_ != 0 || end > last || last > sequences_ * capacity_)
      fail<StateError>("generate", "tokens {} to {} of the document at {} do not fit a cache of {} sequences of {}", run.global, end, run.start, sequences_, capacity_);
    copy(rank, k.tensor.slice(0, run.local, run.local + run.length), cache.keys.slice(0, run.global, end));
    copy(rank, v.tensor.slice(0, run.local, run.local + run.length), cache.values.slice(0, run.global, end));
    keys->push_back({run.start, run.start, static_cast<int32_t>(end - run.start), run.start});
  }
  if (queries_ != microbatch.runs) {  // so that a device's tables are made once for all layers
    queries_ = microbatch.runs;
    keys_ = std::move(keys);
  }
  const AttentionPartial partial = attention_partial(rank, q.tensor, cache.keys, cache.values, microbatch.runs, keys_, options);
  return tape.constant(cast(rank, partial.out, q.tensor.dtype()));
}

void CachedAttention::resize(Rank& rank, std::span<const int64_t> kept, std::span<const int64_t> lengths, int64_t capacity) {
  const int64_t old_capacity = capacity_;
  queries_ = keys_ = {};
  capacity_ = capacity;
  sequences_ = static_cast<int64_t>(kept.size());
  for (Layer& layer : layers_) {
    Layer next = make_layer(rank);
    for (size_t i = 0; i < kept.size(); ++i) {
      const int64_t from = kept[i] * old_capacity, to = static_cast<int64_t>(i) * capacity, length = lengths[i];
      copy(rank, layer.keys.slice(0, from, from + length), next.keys.slice(0, to, to + length));
      copy(rank, layer.values.slice(0, from, from + length), next.values.slice(0, to, to + length));
    }
    layer = std::move(next);
  }
}

// Choosing a token.

namespace {

void check(const GenerationOptions& options) {
  const auto refuse = [](const char* name, auto found, const char* allowed) { fail<ConfigError>("generate", "{} is {}; allowed: {}", name, found, allowed); };
  if (options.tokens < 0) refuse("tokens", options.tokens, "0 or more");
  if (!(options.temperature >= 0) || std::isinf(options.temperature)) refuse("temperature", options.temperature, "0 (the most likely token) or more");
  if (options.top_k < 0) refuse("top_k", options.top_k, "0 (all) or more");
  if (!(options.top_p > 0 && options.top_p <= 1)) refuse("top_p", options.top_p, "above 0, at most 1");
}

/// Ids by falling logit, equal ones by rising id; only the first `count` are in order.
std::vector<int32_t> by_likelihood(std::span<const double> logits, size_t count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    const double x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count), ids.end(), before);
  ids.resize(count);
  return ids;
}

}  // namespace

int32_t sample_token(std::span<const double> logits, const GenerationOptions& options, uint64_t sequence, uint64_t position) {
  const auto most = std::max_element(logits.begin(), logits.end());  // the first of equal ones
  if (options.temperature == 0) return static_cast<int32_t>(most - logits.begin());
  const size_t count = options.top_k > 0 ? std::min(static_cast<size_t>(options.top_k), logits.size()) : logits.size();
  const std::vector<int32_t> ids = by_likelihood(logits, count);
  std::vector<double> weights(count);
  for (size_t i = 0; i < count; ++i) weights[i] = std::exp((logits[static_cast<size_t>(ids[i])] - *most) / options.temperature);
  double sum = 0;
  for (const double weight : weights) sum += weight;
  if (options.top_p < 1) {  // of what top_k left (Holtzman et al., "The curious case of neural text degeneration", 2020)
    const double wanted = options.top_p * sum;
    size_t kept = 0;
    sum = 0;
    while (kept < count && (kept == 0 || sum < wanted)) sum += weights[kept++];
    weights.resize(kept);
  }
    double left = random_uniform(options.seed, stream_of("generation"), sequence, position) * sum;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return ids[i];
  }
  // Rounding left a crumb: the least likely token that has any probability.
  size_t last = weights.size() - 1;
  while (last > 0 && weights[last] == 0) --last;
  return ids[last];
}

// The loop.

namespace {

struct Sequence {
  size_t index;                   ///< among the prompts
  std::vector<int32_t> upcoming;  ///< tokens not yet read
  int64_t read = 0;               ///< tokens in the cache
  int64_t slot = 0;               ///< its place in the cache
};

std::vector<Sequence> start(const Model& model, const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<Sequence> active;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<int32_t>& prompt = prompts[i];
    if (prompt.empty()) fail<ConfigError>("generate", "prompt {} is empty; give at least one token, such as BOS where the model has one", i);
    if (static_cast<int64_t>(prompt.size()) > model.config().max_seq_len)
      fail<ConfigError>("generate", "prompt {} has {} tokens; the model reads at most {} (model.max_seq_len)", i, prompt.size(), model.config().max_seq_len);
    check_tokens(prompt, model.config().vocab_size);
    active.push_back({i, prompt, 0, static_cast<int64_t>(i)});
  }
  return active;
}

/// Makes room for what is upcoming. Grows by halves, not at once to the longest possible text, and drops the sequences that have ended.
void make_room(Rank& rank, CachedAttention& cache, std::vector<Sequence>& active, int64_t longest) {
  int64_t needed = 0;
  for (const Sequence& sequence : active) needed = std::max(needed, sequence.read + static_cast<int64_t>(sequence.upcoming.size()));
  if (needed <= cache.capacity()) return;
  std::vector<int64_t> slots, lengths;
  for (Sequence& sequence : active) {
    slots.push_back(sequence.slot);
    lengths.push_back(sequence.read);
    sequence.slot = static_cast<int64_t>(slots.size()) - 1;
  }
  cache.resize(rank, slots, lengths, std::min(longest, needed + needed / 2 + 16));
}

/// Reads what is upcoming; returns the logits after the last token of each, [active, vocabulary].
template <class A>
std::vector<A> read(Rank& rank, Model& model, CachedAttention& cache, std::vector<Sequence>& active) {
  std::vector<int32_t> tokens, indices, starts;
  std::vector<int64_t> lasts;
  for (Sequence& sequence : active) {
    const int64_t first = sequence.slot * cache.capacity();
    for (const int32_t token : sequence.upcoming) {
      tokens.push_back(token);
      starts.push_back(static_cast<int32_t>(first));
      indices.push_back(static_cast<int32_t>(first + sequence.read++));
    }
    lasts.push_back(static_cast<int64_t>(tokens.size()) - 1);
    sequence.upcoming.clear();
  }
  const std::vector<int32_t> targets(tokens.size(), ignored_target);
  const Microbatch microbatch = Microbatch::make(rank, tokens, targets, Documents::shard(std::move(indices), std::move(starts)));
  Tape tape(rank, false);
  ForwardOptions forward;
  forward.attention = &cache;
  const Tensor hidden = model.hidden(tape, microbatch, forward).tensor;
  if (lasts.size() == tokens.size()) return model.logits(rank, hidden).to_vector<A>();
  const int64_t rows = static_cast<int64_t>(lasts.size());
  const Tensor ends = Tensor::empty(rank, {rows, hidden.size(1)}, hidden.dtype());
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t last = lasts[static_cast<size_t>(i)];
    copy(rank, hidden.slice(0, last, last + 1), ends.slice(0, i, i + 1));
  }
  return model.logits(rank, ends).to_vector<A>();
}

template <class A>
std::vector<Generated> run(Rank& rank, Model& model, const std::vector<std::vector<int32_t>>& prompts, const GenerationOptions& options,
                           const TokenCallback& on_token) {
  std::vector<Generated> results(prompts.size());
  std::vector<Sequence> active = start(model, prompts);
  if (options.tokens == 0) active.clear();
  size_t longest_prompt = 0;
  for (const std::vector<int32_t>& prompt : prompts) longest_prompt = std::max(longest_prompt, prompt.size());
  const int64_t longest = std::min(static_cast<int64_t>(longest_prompt) + options.tokens, model.config().max_seq_len);
  CachedAttention cache(rank, model.config(), model.dtype(), static_cast<int64_t>(active.size()), std::min(longest, static_cast<int64_t>(longest_prompt) + 32));
  const size_t vocabulary = static_cast<size_t>(model.config().vocab_size);
  std::vector<double> row(vocabulary);
  while (!active.empty()) {
    make_room(rank, cache, active, longest);
    const std::vector<A> logits = read<A>(rank, model, cache, active);
    std::vector<Sequence> still;
    for (size_t i = 0; i < active.size(); ++i) {
      Sequence& sequence = active[i];
      std::copy_n(logits.begin() + static_cast<ptrdiff_t>(i * vocabulary), vocabulary, row.begin());
      if (!std::all_of(row.begin(), row.end(), [](double x) { return std::isfinite(x); }))
        fail<NonFiniteError>("generate", "the model's logits after {} tokens of sequence {} are not finite", sequence.read, sequence.index);
      const int32_t token = sample_token(row, options, static_cast<uint64_t>(options.first_sequence) + sequence.index, static_cast<uint64_t>(sequence.read));
      Generated& result = results[sequence.index];
      result.tokens.push_back(token);
      if (on_token) on_token(sequence.index, token);
      const bool ended = std::find(options.end_tokens.begin(), options.end_tokens.end(), token) != options.end_tokens.end();
      const bool enough = static_cast<int64_t>(result.tokens.size()) >= options.tokens, full = sequence.read >= model.config().max_seq_len;
      if (ended || enough || full) {
        result.end = ended ? GenerationEnd::end_token : enough ? GenerationEnd::tokens : GenerationEnd::context;
        continue;
      }
      sequence.upcoming = {token};
      still.push_back(std::move(sequence));
    }
    active = std::move(still);
  }
  return results;
}

}  // namespace

std::vector<Generated> generate(Rank& rank, Model& model, const std::vector<std::vector<int32_t>>& prompts, const GenerationOptions& options,
                                const TokenCallback& on_token) {
  check(options);
  return accumulator_of(model.dtype()) == DType::f64 ? run<double>(rank, model, prompts, options, on_token)
                                                     : run<float>(rank, model, prompts, options, on_token);
}

}  // namespace quire
