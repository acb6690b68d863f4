#include "run/trainer.h"

#include <fmt/core.h>

#include <cmath>
#include <numbers>
#include <tuple>

#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "parallel/context_cost.h"
#include "run/context_costs.h"
#include "run/metrics.h"
#include "run/pipeline_stages.h"
#include "run/rank_options.h"

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
    const int64_t window = config.window(layer);
    if (window != last_window) last = documents.useful_pairs(window);
    last_window = window;
    pairs += last;
  }
  return pairs;
}

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
  if (config.data.arrange == "cost")
    settings.row_cost = [costs = TokenCosts(context_costs(config), config.train.seq_len * config.train.microbatch_size)](const Row& row) {
      int64_t sum = 0;
      for (const Piece& piece : row) sum += costs.until(piece.length);
      return sum;
    };
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

Trainer::Trainer(Rank& rank, const Config& config, Communicator* world)
    : rank_(rank), config_(config), alone_(world == nullptr ? single_communicator() : nullptr),
      groups_(make_groups(world == nullptr ? *alone_ : *world, mesh_shape(config))), schedule_(schedule_of(config)) {
  check_device(rank, config.dtype());
  check_attention(rank, config);
  groups_.world->connect(rank);
  PipelineStages stages = pipeline_stages(config);
  model_ = std::make_unique<Model>(rank, config.model, config.dtype(), true, stages.held_by(groups_.place.pp));
  optimizer_ = std::make_unique<AdamW>(rank, model_->parameters(), adamw_options(config));
  ForwardOptions forward;
  forward.recomputation = recomputation_from(config.train.activation_checkpointing);
  forward.z_weight = config.train.z_loss_weight;
  if (const int64_t cp = groups_.mesh.shape().cp; cp > 1) {
    planner_ = std::make_shared<ContextPlanner>(cp, context_options(config), static_cast<size_t>(4 * config.microbatches() + 16));
    context_ = std::make_unique<ContextAttention>(rank, *groups_.context, *planner_);
  }
  pipeline_ = std::make_unique<Pipeline>(rank, *model_, *groups_.pipeline, std::move(stages), forward, context_.get());
  reducer_ = std::make_unique<GradientReducer>(rank, model_->parameters(), *groups_.replicas);
  if (Parameter* table = model_->tied_table(); table != nullptr && this->stages().first_rank() != this->stages().last_rank()) reducer_->exclude(*table);
  loss_sum_ = Tensor::zeros(rank, {1}, DType::f64, Category::other);
  loss_gradient_ = Tensor::zeros(rank, {1}, DType::f64, Category::other);
  model_->initialize(rank, static_cast<uint64_t>(config.train.seed));
  if (groups_.world->size() > 1)
    rank.pool().set_poll([this] {
      pipeline_->poll();
      groups_.context->poll();
      groups_.replicas->poll();
    });
}

Trainer::~Trainer() { rank_.pool().set_poll({}); }

LoaderSettings Trainer::loader_settings() const {
  LoaderSettings settings = quire::loader_settings(config_);
  const bool first = pipeline_->holds_first(), last = pipeline_->holds_last();
  settings.content = first && last ? Content::all : first ? Content::tokens : last ? Content::targets : Content::documents;
  if (planner_) settings.read = [planner = planner_](const HostBatch& batch) { planner->plan(batch.documents); };
  return settings;
}

void Trainer::begin_step() {
  model_->parameters().zero_gradients(rank_);
  fill_zero(rank_, loss_sum_);
  losses_.clear();
  device_losses_ = {};
  reduced_ = false;
  current_ = {};
  current_.step = steps_done_ + 1;
  largest_cost_ = total_cost_ = 0;
  sent_before_ = bytes_sent();
}

int64_t Trainer::bytes_sent() const {
  int64_t bytes = 0;
  for (const TrafficCounters& traffic : {groups_.world->traffic(), groups_.pipeline->traffic(), groups_.context->traffic(), groups_.replicas->traffic(), reducer_->traffic()})
    for (const TrafficCounters::Entry& entry : traffic.sent) bytes += entry.bytes;
  return bytes;
}

/// Each microbatch is counted by one rank.
void Trainer::count_microbatch(const HostBatch& host) {
  if (!pipeline_->holds_first() || groups_.place.cp != 0) return;
  current_.tokens += host.documents.tokens();
  current_.useful_pairs += useful_pairs(config_.model, host.documents);
  for (const Row& row : host.plan) {
    int64_t length = 0;
    for (const Piece& piece : row) length += piece.length;
    current_.causal_pairs += config_.model.n_layers * (length * (length + 1) / 2);
    current_.padding += config_.train.seq_len - length;
  }
  if (!planner_) return;
  const auto load = planner_->load(host.documents);
  largest_cost_ += *std::max_element(load->cost.begin(), load->cost.end());
  for (const int64_t cost : load->cost) total_cost_ += cost;
}

void Trainer::forward_backward(const LoadedStep& batch) {
  const auto count = static_cast<int64_t>(batch.microbatches.size());
  current_.valid_tokens = batch.plan.valid;
  for (const HostBatch& host : batch.microbatches) {
    check_tokens(host.tokens, config_.model.vocab_size);
    count_microbatch(host);
  }
  const double loss_gradient = batch.plan.valid > 0 ? 1.0 / static_cast<double>(batch.plan.valid) : 0.0;
  write<double>(rank_, loss_gradient_, std::span(&loss_gradient, 1));
  PipelineWork work;
  work.microbatches = batch.microbatches;
  work.step = current_.step;
  work.loss_gradient = loss_gradient_;
  work.losses = Tensor::zeros(rank_, {count}, DType::f64, Category::other);
  if (groups_.replicas->size() > 1) {
    work.parameter_done = [this](Parameter& parameter, int use) { reducer_->contributed(parameter, use); };
    work.between = [this] { reducer_->advance(); };
  }
  reducer_->begin_step(count, current_.step);
  pipeline_->train(work);
  current_.computed_pairs += pipeline_->take_forward_pairs();
  if (rank_.accelerator() != nullptr) {
    device_losses_ = placed_losses(work.losses, batch);
    return;
  }
  if (!rank_.computes()) return;
  // Every rank gets all losses and adds them in one order: the sum's bits are those of one process.
  losses_ = placed_losses(work.losses, batch).to_vector<double>();
}

Tensor Trainer::placed_losses(const Tensor& own, const LoadedStep& batch) {
  if (groups_.replicas->size() == 1) return own;
  const auto rows = static_cast<int64_t>(batch.plan.rows.size()), size = config_.train.microbatch_size;
  const Tensor all = Tensor::zeros(rank_, {(rows + size - 1) / size}, DType::f64, Category::other);
  for (size_t i = 0; i < batch.microbatches.size(); ++i) {
    const auto from = static_cast<int64_t>(i), to = batch.microbatches[i].index;
    copy(rank_, own.slice(0, from, from + 1), all.slice(0, to, to + 1));
  }
  return all;
}

void Trainer::reduce_gradients() {
  if (std::exchange(reduced_, true)) return;
  const MessageLabel label{MessageKind::gradients, current_.step, groups_.place.pp, -1};
  reducer_->finish(label);
  exchange_tied_gradients(rank_, *model_, *groups_.pipeline, stages(), {MessageKind::tied_gradients, current_.step, groups_.place.pp, -1},
                          [&](Parameter& table) { reducer_->reduce_now(table, label); });
}

void Trainer::put_mismatch(std::span<double> codes) {
  if (const std::optional<BoundaryMismatch> mismatch = pipeline_->take_mismatch()) codes[static_cast<size_t>(groups_.world->rank())] = code_of(*mismatch);
}

void Trainer::refuse_mismatches(std::span<const double> codes, const std::string& where) const {
  // A wrong record is passed on: the first stage that saw one is where to look.
  std::optional<std::tuple<int64_t, int64_t, int64_t, size_t>> first;  // stage, layer, microbatch, rank
  for (size_t r = 0; r < codes.size(); ++r) {
    if (codes[r] == 0) continue;
    const BoundaryMismatch mismatch = mismatch_of(codes[r]);
    if (const std::tuple found{mismatch.stage, mismatch.layer, mismatch.microbatch, r}; !first || found < *first) first = found;
  }
  if (!first) return;
  const auto [stage, layer, microbatch, rank] = *first;
  if (layer >= 0) fail<BoundaryError>("context", "rank {} received other document boundaries with the keys of layer {}, microbatch {}, {}", rank, layer, microbatch, where);
  fail<BoundaryError>("pipeline", "rank {} received other document boundaries for stage {}, microbatch {}, {}", rank, stage, microbatch, where);
}

std::vector<double> Trainer::own_counts() {
  current_.bytes_sent = bytes_sent() - sent_before_;
  std::vector<double> values;
  for (const int64_t count : {current_.tokens, current_.useful_pairs, current_.computed_pairs, current_.causal_pairs, current_.padding, current_.bytes_sent, largest_cost_, total_cost_})
    values.push_back(static_cast<double>(count));
  return values;
}

void Trainer::set_counts(StepResult& result, std::span<const double> counts) const {
  int64_t largest_cost = 0, total_cost = 0;
  int64_t* const places[] = {&result.tokens, &result.useful_pairs, &result.computed_pairs, &result.causal_pairs, &result.padding, &result.bytes_sent, &largest_cost, &total_cost};
  for (size_t i = 0; i < std::size(places); ++i) *places[i] = static_cast<int64_t>(counts[i]);
  result.computed_pairs /= config_.model.n_heads;
  if (total_cost > 0) result.balance = static_cast<double>(largest_cost * groups_.mesh.shape().cp) / static_cast<double>(total_cost);
}

namespace {

std::string place_of_step(int64_t step) { return fmt::format("step {} than the plan has; no weight was changed by this step", step); }

}  // namespace

void Trainer::combine(const Tensor& squares) {
  const auto parameters = static_cast<size_t>(squares.elements()), ranks = static_cast<size_t>(groups_.world->size());
  std::vector<double> values(parameters);
  if (groups_.replicas->rank() == 0) values = squares.to_vector<double>();  // all replicas have the same
  values.insert(values.end(), losses_.begin(), losses_.end());
  const size_t codes = values.size();
  values.resize(codes + ranks);
  put_mismatch(std::span(values).subspan(codes));
  const std::vector<double> counts = own_counts();
  values.insert(values.end(), counts.begin(), counts.end());

  const Tensor sums = Tensor::from<double>(rank_, {static_cast<int64_t>(values.size())}, values, Category::other);
  groups_.world->all_reduce(rank_, sums, Reduction::sum, {MessageKind::control, current_.step, -1, -1});
  values = sums.to_vector<double>();

  write<double>(rank_, squares, std::span(values).first(parameters));
  double loss = 0;
  for (size_t i = 0; i < losses_.size(); ++i) loss += values[parameters + i];
  write<double>(rank_, loss_sum_, std::span(&loss, 1));
  set_counts(current_, std::span<const double>(values).subspan(codes + ranks));
  refuse_mismatches(std::span(values).subspan(codes, ranks), place_of_step(current_.step));
}

Tensor Trainer::combine_on_device(const Tensor& squares, Readback& report) {
  const int64_t parameters = squares.elements(), losses = device_losses_.defined() ? device_losses_.elements() : 0, ranks = groups_.world->size();
  const std::vector<double> counts = own_counts();
  std::vector<double> values(static_cast<size_t>(parameters + losses + ranks));
  values.insert(values.end(), counts.begin(), counts.end());
  const Tensor sums = Tensor::from<double>(rank_, {static_cast<int64_t>(values.size())}, values, Category::other);
  const Tensor all_squares = sums.slice(0, 0, parameters), all_losses = sums.slice(0, parameters, parameters + losses),
               codes = sums.slice(0, parameters + losses, parameters + losses + ranks);
  if (groups_.replicas->rank() == 0) copy(rank_, squares, all_squares);
  if (losses > 0) copy(rank_, device_losses_, all_losses);
  copy(rank_, pipeline_->mismatch_flag(), codes.slice(0, groups_.world->rank(), groups_.world->rank() + 1));
  groups_.world->all_reduce(rank_, sums, Reduction::sum, {MessageKind::control, current_.step, -1, -1});
  copy(rank_, all_squares, squares);
  for (int64_t i = 0; i < losses; ++i) accumulate(rank_, all_losses.slice(0, i, i + 1), loss_sum_);  // in ascending order, as `combine` adds them
  report = Readback(rank_, sums.slice(0, parameters + losses, sums.elements()));
  return codes;
}

void Trainer::submit() {
  reduce_gradients();
  const Tensor squares = optimizer_->measure(rank_);
  Submitted step;
  Tensor refusals;
  if (rank_.accelerator() != nullptr) refusals = combine_on_device(squares, step.report);
  else combine(squares);
  step.result = current_;
  step.result.learning_rate = schedule_.at(steps_done_ + 1);
  if (step.result.valid_tokens == 0) {  // nothing was scored: no weight, moment or step of the optimizer may change
    step.result.skipped = true;
  } else {
    optimizer_->apply(rank_, loss_sum_, step.result.learning_rate, refusals);
    step.loss = Readback(rank_, loss_sum_);
    step.outcome = optimizer_->read_outcome(rank_);
  }
  submitted_.push_back(std::move(step));
  ++steps_done_;
}

StepResult Trainer::collect() {
  if (submitted_.empty()) fail<StateError>("train", "no step is submitted whose result could be collected");
  Submitted step = std::move(submitted_.front());
  submitted_.pop_front();
  StepResult& result = step.result;
  if (step.report.defined()) {
    const std::vector<double> report = step.report.values<double>();
    groups_.world->poll();  // of ranks that were ended meanwhile, messages end with nothing in their memory
    const auto ranks = static_cast<size_t>(groups_.world->size());
    set_counts(result, std::span(report).subspan(ranks));
    try {
      refuse_mismatches(std::span(report).first(ranks), place_of_step(result.step));
    } catch (const BoundaryError&) {  // the device's flag stood, so that steps submitted meanwhile changed nothing either
      pipeline_->take_mismatch();
      submitted_.clear();
      steps_done_ = result.step - 1;
      throw;
    }
  }
  if (!step.outcome.defined()) return result;
  const StepOutcome outcome = optimizer_->outcome_of(step.outcome.values<double>());
  result.gradient_norm = outcome.gradient_norm;
  result.skipped = outcome.skipped;
  result.loss = step.loss.values<double>().at(0) / static_cast<double>(result.valid_tokens);
  std::string names;
  for (const std::string& name : outcome.non_finite) names += (names.empty() ? "" : ", ") + name;
  if (result.skipped) result.non_finite = names.empty() ? "loss" : names;
  skipped_in_a_row_ = outcome.skipped ? skipped_in_a_row_ + 1 : 0;
  if (skipped_in_a_row_ >= config_.train.max_non_finite_steps)
    fail<NonFiniteError>("train", "loss or gradients were not finite in {} steps in a row, up to step {} (loss {}); gradients not finite: {}; "
                         "no weight was changed by them; lower optimizer.lr or look at the data", skipped_in_a_row_, result.step, result.loss,
                         names.empty() ? "none" : few_names(names));
  return std::move(result);
}

StepResult Trainer::update() {
  submit();
  return collect();
}

StepResult Trainer::step(const LoadedStep& batch) {
  begin_step();
  forward_backward(batch);
  return update();
}

Evaluation Trainer::evaluate(std::shared_ptr<const Corpus> corpus, int64_t steps) {
  Loader loader(corpus, evaluation_settings(loader_settings()), share());
  const Tensor nats = Tensor::zeros(rank_, {1}, DType::f64, Category::other), one = Tensor::zeros(rank_, {1}, DType::f64, Category::other);
  int64_t valid = 0, done = 0;
  for (LoadedStep batch = loader.next_step(); !batch.empty(); batch = loader.next_step()) {
    PipelineWork work;
    work.microbatches = batch.microbatches;
    work.step = ++done;
    work.hidden = [&](int64_t, const Tensor& hidden, const Microbatch& microbatch) {
      reduce(rank_, model_->losses(rank_, hidden, microbatch), 1, one);
      accumulate(rank_, one, nats);
      valid += microbatch.valid;
    };
    pipeline_->forward(work);
    if (steps > 0 && done == steps) break;
  }
  pipeline_->take_forward_pairs();
  std::vector<double> sums{nats.to_vector<double>().at(0), static_cast<double>(valid)};  // and mismatches of each rank
  sums.resize(2 + static_cast<size_t>(groups_.world->size()));
  put_mismatch(std::span(sums).subspan(2));
  const Tensor global = Tensor::from<double>(rank_, {static_cast<int64_t>(sums.size())}, sums, Category::other);
  groups_.world->all_reduce(rank_, global, Reduction::sum, {MessageKind::control, steps_done_, -1, -1});
  sums = global.to_vector<double>();
  groups_.world->poll();  // as in `collect`
  Evaluation result;
  refuse_mismatches(std::span<const double>(sums).subspan(2), fmt::format("of the evaluation after step {} than the plan has", steps_done_));
  result.nats = sums[0];
  result.valid_tokens = static_cast<int64_t>(sums[1]);
  if (result.valid_tokens > 0) result.loss = result.nats / static_cast<double>(result.valid_tokens);
  const CorpusTotals totals = corpus->totals();
  const bool whole = result.valid_tokens == totals.valid;
  if (whole && totals.text_bytes > 0)
    result.bits_per_byte = (result.nats / std::numbers::ln2 + 8.0 * static_cast<double>(totals.unscored_bytes)) / static_cast<double>(totals.text_bytes);
  return result;
}

void Trainer::rehearse(int64_t longest) {
  // As many microbatches as are in flight at most. Twice, the second time with rows not quite full: blocks of other sizes lie elsewhere, and the
  // allocator's segments are then all in use.
  const int64_t all = config_.microbatches(), own = all * (share().index + 1) / share().count - all * share().index / share().count;
  const int64_t in_flight = stages().schedule == "gpipe" || stages().given ? own : std::min(own, stages().stages() == 1 ? 1 : stages().stages() + stages().ranks);
  for (const int64_t length : {config_.train.seq_len, std::max<int64_t>(config_.train.seq_len - 1 - config_.train.seq_len / 32, 1)}) {
    std::vector<int64_t> lengths;
    for (int64_t row = 0; row < config_.train.microbatch_size; ++row)
      for (int64_t left = length; left > 0; left -= lengths.back()) lengths.push_back(std::min(left, std::max<int64_t>(longest, 1)));
    const int64_t tokens = config_.train.microbatch_size * length;
    HostBatch host;
    host.tokens.assign(static_cast<size_t>(tokens), 0);
    host.targets.assign(static_cast<size_t>(tokens), 0);
    host.documents = Documents::from_lengths(lengths);
    LoadedStep batch;
    batch.plan.rows.resize(static_cast<size_t>(config_.train.global_batch_size));
    batch.plan.valid = config_.train.global_batch_size * length;
    for (int64_t i = 0; i < in_flight; ++i) {
      host.index = all * share().index / share().count + i;
      batch.microbatches.push_back(host);
    }
    begin_step();
    forward_backward(batch);
    reduce_gradients();
  }
  begin_step();
  rank_.work().computed_pairs = 0;
  rank_.work().flops = 0;
}

}  // namespace quire
