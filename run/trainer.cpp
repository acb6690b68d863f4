#include "run/trainer.h"

#include <cmath>
#include <numbers>

#include "ops/elementwise.h"
#include "ops/embedding.h"

namespace quire {

namespace {

AdamWOptions adamw_options(const Config& config) {
  return {config.optimizer.betas.at(0), config.optimizer.betas.at(1), config.optimizer.eps, config.optimizer.weight_decay, config.train.grad_clip_norm};
}

Schedule schedule_of(const Config& config) {
  const Config::Scheduler& s = config.scheduler;
  const int64_t rest = std::max<int64_t>(config.train.max_steps - s.warmup_steps - (s.name == "wsd" ? s.stable_steps : 0), 0);
  return {s.name, config.optimizer.lr, s.warmup_steps, s.decay_steps > 0 ? s.decay_steps : rest, s.stable_steps, s.min_lr_ratio};
}

/// Attention pairs of a microbatch over all layers, per head, with each layer's own window.
int64_t useful_pairs(const ModelConfig& config, const Documents& documents) {
  int64_t pairs = 0, last_window = -1, last = 0;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const int64_t window = config.sliding_window.empty() ? 0 : config.sliding_window[static_cast<size_t>(layer)];
    if (window != last_window) last = documents.useful_pairs(window);
    last_window = window;
    pairs += last;
  }
  return pairs;
}

Microbatch to_microbatch(Rank& rank, const HostBatch& host) { return Microbatch::make(rank, host.tokens, host.targets, host.documents); }

}  // namespace

LoaderSettings loader_settings(const Config& config) {
  LoaderSettings settings;
  settings.packing.seq_len = config.train.seq_len;
  settings.packing.strategy = config.data.pack_sequences ? packing_strategy_from(config.data.strategy) : PackingStrategy::single;
  settings.packing.overflow = overflow_from(config.data.overflow);
  settings.packing.buffer = config.data.buffer_documents;
  settings.packing.seed = static_cast<uint64_t>(config.train.data_seed);
  settings.packing.shuffle = config.data.shuffle;
  settings.packing.epochs = config.data.epochs;
  settings.global_batch_size = config.train.global_batch_size;
  settings.microbatch_size = config.train.microbatch_size;
  return settings;
}

double step_flops(const ModelConfig& config, int64_t tokens, int64_t pairs) {
  const double queries = static_cast<double>(config.n_heads * config.head_dim), keys = static_cast<double>(config.n_kv_heads * config.head_dim);
  const double dim = static_cast<double>(config.dim), ffn = static_cast<double>(config.ffn_hidden_dim);
  const double layer = dim * (2 * queries + 2 * keys + 3 * ffn);
  const double weights = static_cast<double>(config.n_layers) * layer + dim * static_cast<double>(config.vocab_size);
  return 6.0 * weights * static_cast<double>(tokens) + 12.0 * queries * static_cast<double>(pairs);
}

Trainer::Trainer(Rank& rank, const Config& config)
    : rank_(rank), config_(config), model_(rank, config.model, config.dtype()), optimizer_(rank, model_.parameters(), adamw_options(config)),
      schedule_(schedule_of(config)) {
  forward_.recomputation = recomputation_from(config.train.activation_checkpointing);
  forward_.z_weight = config.train.z_loss_weight;
  loss_sum_ = Tensor::zeros(rank, {1}, DType::f64, Category::other);
  loss_gradient_ = Tensor::zeros(rank, {1}, DType::f64, Category::other);
  model_.initialize(rank, static_cast<uint64_t>(config.train.seed));
}

void Trainer::begin_step() {
  model_.parameters().zero_gradients(rank_);
  fill_zero(rank_, loss_sum_);
  current_ = {};
  current_.step = steps_done_ + 1;
}

void Trainer::forward_backward(const HostBatch& batch, int64_t valid_in_step) {
  check_tokens(batch.tokens, config_.model.vocab_size);
  const Microbatch microbatch = to_microbatch(rank_, batch);
  current_.tokens += microbatch.size();
  current_.valid_tokens += microbatch.valid;
  current_.useful_pairs += useful_pairs(config_.model, batch.documents);
  for (const Row& row : batch.plan) {
    int64_t length = 0;
    for (const Piece& piece : row) length += piece.length;
    current_.causal_pairs += config_.model.n_layers * (length * (length + 1) / 2);
    current_.padding += config_.train.seq_len - length;
  }
  Tape tape(rank_);
  const int64_t pairs_before = rank_.work().computed_pairs;
  const Value loss = model_.loss(tape, microbatch, forward_);
  current_.computed_pairs += (rank_.work().computed_pairs - pairs_before) / config_.model.n_heads;
  accumulate(rank_, loss.tensor, loss_sum_);
  if (rank_.computes()) loss_gradient_.data<double>()[0] = valid_in_step > 0 ? 1.0 / static_cast<double>(valid_in_step) : 0.0;
  tape.backward(std::span(&loss, 1), std::span(&loss_gradient_, 1));
}

StepResult Trainer::update() {
  StepResult result = current_;
  const int64_t step = steps_done_ + 1;
  result.learning_rate = schedule_.at(step);
  if (result.valid_tokens == 0) {  // nothing was scored: no weight, moment or step of the optimizer may change
    result.skipped = true;
  } else {
    model_.parameters().combine_uses(rank_);
    optimizer_.step(rank_, loss_sum_, result.learning_rate);
    const StepOutcome outcome = optimizer_.outcome();
    result.gradient_norm = outcome.gradient_norm;
    result.skipped = outcome.skipped;
    result.loss = loss_sum_.to_vector<double>().at(0) / static_cast<double>(result.valid_tokens);
    skipped_in_a_row_ = outcome.skipped ? skipped_in_a_row_ + 1 : 0;
    if (skipped_in_a_row_ >= config_.train.max_non_finite_steps) {
      std::string names;
      for (const std::string& name : optimizer_.non_finite()) names += (names.empty() ? "" : ", ") + name;
      fail<NonFiniteError>("train", "loss or gradients were not finite in {} steps in a row, up to step {} (loss {}); gradients not finite: {}; "
                           "no weight was changed by them; lower optimizer.lr or look at the data", skipped_in_a_row_, step, result.loss,
                           names.empty() ? "none" : names);
    }
  }
  steps_done_ = step;
  return result;
}

StepResult Trainer::step(const LoadedStep& batch) {
  begin_step();
  for (const HostBatch& host : batch.microbatches) forward_backward(host, batch.plan.valid);
  return update();
}

Evaluation Trainer::evaluate(std::shared_ptr<const Corpus> corpus, int64_t steps) {
  LoaderSettings settings = evaluation_settings(loader_settings(config_));
  Loader loader(corpus, settings);
  Evaluation result;
  const Tensor sum = Tensor::zeros(rank_, {1}, DType::f64, Category::other);
  int64_t done = 0;
  for (LoadedStep batch = loader.next_step(); !batch.empty(); batch = loader.next_step()) {
    for (const HostBatch& host : batch.microbatches) {
      const Microbatch microbatch = to_microbatch(rank_, host);
      Tape tape(rank_, false);
      const Value hidden = model_.hidden(tape, microbatch, forward_);
      reduce(rank_, model_.losses(rank_, hidden.tensor, microbatch), 1, sum);
      result.nats += sum.to_vector<double>().at(0);
      result.valid_tokens += microbatch.valid;
    }
    if (steps > 0 && ++done == steps) break;
  }
  if (result.valid_tokens > 0) result.loss = result.nats / static_cast<double>(result.valid_tokens);
  const CorpusTotals totals = corpus->totals();
  const bool whole = result.valid_tokens == totals.valid;
  if (whole && totals.text_bytes > 0)
    result.bits_per_byte = (result.nats / std::numbers::ln2 + 8.0 * static_cast<double>(totals.unscored_bytes)) / static_cast<double>(totals.text_bytes);
  return result;
}

void Trainer::rehearse(int64_t longest) {
  // Twice, the second time with rows not quite full: blocks of other sizes lie elsewhere, and the allocator's segments are then all in use.
  for (const int64_t length : {config_.train.seq_len, std::max<int64_t>(config_.train.seq_len - 1 - config_.train.seq_len / 32, 1)}) {
    std::vector<int64_t> lengths;
    for (int64_t row = 0; row < config_.train.microbatch_size; ++row)
      for (int64_t left = length; left > 0; left -= lengths.back()) lengths.push_back(std::min(left, std::max<int64_t>(longest, 1)));
    const int64_t tokens = config_.train.microbatch_size * length;
    HostBatch batch;
    batch.tokens.assign(static_cast<size_t>(tokens), 0);
    batch.targets.assign(static_cast<size_t>(tokens), 0);
    batch.documents = Documents::from_lengths(lengths);
    begin_step();
    forward_backward(batch, tokens);
  }
  begin_step();
  rank_.work().computed_pairs = 0;
  rank_.work().flops = 0;
}

}  // namespace quire
