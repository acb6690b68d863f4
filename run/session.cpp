#include "run/session.h"

#include <fmt/format.h>

#include <csignal>

#include "ops/cpu/instruction_set.h"
#include "run/machine.h"
#include "run/rank_options.h"
#include "run/training_state.h"
#include "runtime/digest.h"

namespace quire {

namespace {

/// Evaluation is the run's last word: it needs no choice of interval to happen at the end.
bool due(int64_t interval, int64_t step, bool last) { return last || (interval > 0 && step % interval == 0); }

}  // namespace

Session::Session(const Config& config, FileSystem& fs, const ProgressOptions& progress)
    : config_(config), fs_(fs), folder_(config.run.dir, fs), log_(std::make_unique<Log>(fs, folder_.file("log.txt"))), resident_at_start_(resident_bytes()),
      rank_(rank_options(config)), data_(open_data(config, fs)) {
  if (const std::optional<Config> before = stored_config(folder_.path(), fs_)) check_resumable(*before, config_);
  trainer_ = std::make_unique<Trainer>(rank_, config_);
  loader_ = std::make_unique<Loader>(data_.train, loader_settings(config_));
  resume();
  progress_ = std::make_unique<Progress>(config_.train.max_steps, trainer_->steps_done(), log_.get(), progress);
  print_run();
  trainer_->rehearse(data_.train->info().longest);
  check_kernels();
  peak_flops_ = measure_peak_flops(rank_, config_.dtype());
  print_kernels_and_memory();
  upcoming_state_ = loader_->state();
  read_ahead();
  folder_.store_config(config_);  // now that it can start: a refused start binds nobody to its settings
}

Session::~Session() = default;

void Session::read_ahead() {
  if (trainer_->steps_done() >= config_.train.max_steps) return;
  upcoming_ = loader_->next_step();
  upcoming_state_ = loader_->state();
}

LoadedStep Session::next_batch() {
  if (trainer_->steps_done() >= config_.train.max_steps) return {};
  LoadedStep batch = std::move(upcoming_);
  state_ = upcoming_state_;
  if (!batch.empty()) {
    upcoming_ = loader_->next_step();
    upcoming_state_ = loader_->state();
  }
  step_start_ = std::chrono::steady_clock::now();
  return batch;
}

void Session::resume() {
  std::optional<LoadedState> loaded = load_training_state(fs_, folder_.path(), config_.checkpoint.load_path, rank_, *trainer_);
  if (!loaded) {
    folder_.truncate_metrics_after(0);
    state_ = loader_->state();
    return;
  }
  for (const std::string& text : loaded->damaged) notes_.push_back("note: " + text);
  if (loaded->same_run) {
    loader_->restore(loaded->packing);
    saved_step_ = trainer_->steps_done();
  }
  folder_.truncate_metrics_after(trainer_->steps_done());
  state_ = loader_->state();
}

namespace {

std::string mebibytes(int64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)); }

}  // namespace

void Session::print_run() {
  progress_->line(machine_line(rank_));
  const CorpusTotals totals = data_.train->totals();
  progress_->line(fmt::format("data: {} ({} documents, {} tokens, digest {}){}", config_.data.dataset_path, totals.documents, totals.tokens, to_hex(data_.train->digest()),
                              data_.held_out ? fmt::format("; held out: {} documents", data_.held_out->document_count()) : ""));
  progress_->line(fmt::format("model: {} parameters, {}, {} layers; step: {} rows of {} tokens in {} microbatches; run folder: {}", trainer_->model().parameters().elements(),
                              config_.train.mixed_precision, config_.model.n_layers, config_.train.global_batch_size, config_.train.seq_len, config_.microbatches(),
                              folder_.path()));
  for (const std::string& note : notes_) progress_->line(note);
  if (trainer_->steps_done() > 0) progress_->line(fmt::format("resuming after step {}", trainer_->steps_done()));
}

void Session::check_kernels() {
  const auto chosen = rank_.chosen_kernels();
  std::vector<std::string> known;
  for (const auto& [op, kernel] : chosen) known.push_back(op);
  for (const auto& [op, kernel] : rank_.options().kernels) {
    if (chosen.contains(op) || op == "adamw" || op == "optimizer_scalars") continue;
    const std::string near = nearest(op, known);
    fail<ConfigError>("run.kernels", "this run has no operation '{}'; allowed: {}, adamw, optimizer_scalars{}", op, fmt::join(known, ", "), near.empty() ? "" : "; nearest: " + near);
  }
}

void Session::print_kernels_and_memory() {
  std::string kernels;
  std::map<std::string, std::string> choices;
  for (const auto& [op, kernel] : rank_.chosen_kernels()) {
    kernels += fmt::format("{}{} {}", kernels.empty() ? "" : ", ", op, kernel);
    choices["kernel." + op] = kernel;
  }
  choices["instruction_set"] = std::string(instruction_set(rank_));
  const auto before = folder_.choices();
  const auto old_set = before.find("instruction_set");
  if (old_set != before.end() && old_set->second != choices["instruction_set"])
    progress_->line(fmt::format("note: this run began with {} kernels and goes on with {}: rounding differs from here", old_set->second, choices["instruction_set"]));
  folder_.store_choices(choices);
  progress_->line("kernels: " + kernels);
  // After the rehearsal the process holds what training takes: the allocator gives nothing back. What no category accounts for lies between
  // the allocator's blocks, or is the loader's and the threads' own.
  std::string table = "memory:";
  const int64_t total = resident_bytes();
  int64_t named = resident_at_start_;
  for (int c = 0; c < category_count; ++c) {
    const int64_t peak = rank_.allocator().counters(static_cast<Category>(c)).peak;
    if (peak == 0) continue;
    table += fmt::format(" {} {},", name_of(static_cast<Category>(c)), mebibytes(peak));
    named += peak;
  }
  progress_->line(fmt::format("{} program {}, gaps and buffers {}; in all {}", table, mebibytes(resident_at_start_), mebibytes(std::max<int64_t>(total - named, 0)),
                              mebibytes(std::max(total, named))));
}

Evaluation Session::evaluate() {
  progress_->task("evaluating", 0);
  return trainer_->evaluate(data_.held_out, config_.eval.steps);
}

void Session::record(const LoadedStep& batch, const StepResult& result) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - step_start_).count();
  const bool last = result.step >= config_.train.max_steps || upcoming_.empty();
  StepMetrics metrics;
  metrics.step = result.step;
  metrics.epoch = batch.plan.epoch;
  metrics.loss = result.loss;
  metrics.valid_tokens = result.valid_tokens;
  metrics.tokens = result.tokens;
  metrics.grad_norm = result.gradient_norm;
  metrics.lr = result.learning_rate;
  metrics.skipped = result.skipped;
  metrics.useful_pairs = result.useful_pairs;
  metrics.computed_pairs = result.computed_pairs;
  metrics.padding = result.padding;
  metrics.step_ms = seconds * 1e3;
  metrics.tokens_per_s = static_cast<double>(result.tokens) / seconds;
  const double reached = step_flops(config_.model, result.tokens, result.useful_pairs) / seconds;
  if (reached > peak_flops_) peak_flops_ = std::max(peak_flops_, measure_peak_flops(rank_, config_.dtype()));  // the first probe was disturbed
  metrics.peak_share_useful = step_flops(config_.model, result.tokens, result.useful_pairs) / seconds / peak_flops_;
  metrics.peak_share_causal = step_flops(config_.model, result.tokens, result.causal_pairs) / seconds / peak_flops_;
  metrics.resident_bytes = resident_bytes();
  if (result.skipped && result.valid_tokens > 0) {
    ++non_finite_steps_;
    for (const std::string& name : trainer_->optimizer().non_finite()) metrics.non_finite += (metrics.non_finite.empty() ? "" : ", ") + name;
    if (metrics.non_finite.empty()) metrics.non_finite = "loss";
  }
  progress_->step(result.step);
  if (data_.held_out && due(config_.eval.interval, result.step, last)) {
    const Evaluation evaluation = evaluate();
    metrics.eval_loss = evaluation.loss;
    metrics.eval_bits_per_byte = evaluation.bits_per_byte;
  }
  if (result.step == 1 || due(config_.metrics.log_interval, result.step, last) || metrics.eval_loss || result.skipped) {
    folder_.append_metrics(metrics);
    progress_->logged(metrics);
    if (result.skipped)
      progress_->line(result.valid_tokens == 0 ? fmt::format("step {}: every target of the batch is ignored: no weight changed", result.step)
                                               : fmt::format("step {}: not finite: {}; no weight changed ({} such steps so far)", result.step, metrics.non_finite, non_finite_steps_));
  }
  if (config_.checkpoint.interval > 0 && result.step % config_.checkpoint.interval == 0) save();
}

void Session::save() {
  folder_.sync_metrics();  // the record must not be older than the checkpoint after a power loss
  save_training_state(fs_, folder_.path(), *trainer_, state_, *data_.train, config_.checkpoint.keep_last_n);
  saved_step_ = trainer_->steps_done();
}

void Session::finish(int signal) {
  if (saved_step_ != trainer_->steps_done()) save();
  progress_->finish();
  if (signal != 0)
    progress_->line(fmt::format("stopped by {} after step {}; saved; the same command resumes", signal == SIGINT ? "SIGINT" : "SIGTERM", trainer_->steps_done()));
  else
    progress_->line(fmt::format("done: {} steps{}; checkpoint in {}", trainer_->steps_done(),
                                trainer_->skipped_in_a_row() > 0 ? fmt::format(", the last {} skipped as not finite", trainer_->skipped_in_a_row()) : "",
                                folder_.checkpoints()));
}

}  // namespace quire
