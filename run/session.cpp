#include "run/session.h"

#include <fmt/format.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "ops/cpu/instruction_set.h"
#include "run/context_decision.h"
#include "run/machine.h"
#include "run/memory_advice.h"
#include "run/pipeline_stages.h"
#include "run/rank_options.h"
#include "run/training_state.h"
#include "runtime/accelerator.h"
#include "runtime/digest.h"

namespace quire {

namespace {

/// Evaluation is the run's last word: it needs no choice of interval to happen at the end.
bool due(int64_t interval, int64_t step, bool last) { return last || (interval > 0 && step % interval == 0); }

/// Of all ranks' values, told by the host: no device is asked for anything.
double sum_over(Communicator& world, double value) {
  if (world.size() == 1) return value;
  double sum = 0;
  for (const std::string& text : world.gather_texts(fmt::format("{:.17g}", value))) sum += std::stod(text);
  return sum;
}

/// How much of a processor each thread of this rank has: 1 unless the machine's ranks have more threads than it has processors.
double processor_share(const Communicator& world, const Rank& rank) {
  if (rank.accelerator() != nullptr) return 1.0;
  const int announced = announced_ranks().local_size, ranks = announced > 0 ? announced : world.size();
  return std::min(1.0, static_cast<double>(usable_processors()) / (static_cast<double>(ranks) * rank.options().threads));
}

/// What a device chose among its ways to compute, in choices.json.
constexpr std::string_view device_choice_prefix = "device.";

/// The first lines in which two texts differ; both empty where they do not.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream one(a), two(b);
  for (std::string x, y;;) {
    const bool more = static_cast<bool>(std::getline(one, x)), other = static_cast<bool>(std::getline(two, y));
    if (!more && !other) return {};
    if (!more) x.clear();
    if (!other) y.clear();
    if (x != y) return {x, y};
  }
}

}  // namespace

Session::Session(const Config& config, FileSystem& fs, const ProgressOptions& progress, Communicator* world)
    : config_(config), fs_(fs), alone_(world == nullptr ? single_communicator() : nullptr), world_(world == nullptr ? *alone_ : *world),
      resident_at_start_(resident_bytes()), rank_(rank_options(config, world)) {
  world_.set_watchdog(config_.distributed.watchdog_seconds);
  check_same_config();  // before anything is made or read that only some ranks may find wrong
  check_world_size(mesh_shape(config_), world_.size());
  check_devices();
  check_means();
  if (world_.rank() == 0) {
    folder_ = std::make_unique<RunFolder>(config_.run.dir, fs_);
    folder_->remove_without_config();
    log_ = std::make_unique<Log>(fs_, folder_->file("log.txt"));
  }
  data_ = open_data(config_, fs_);
  check_same_data();
  if (folder_)
    if (const std::optional<Config> before = stored_config(folder_->path(), fs_)) check_resumable(*before, config_);
  replay_choices();
  const Config decided_config = decided();
  in_memory([&] { trainer_ = std::make_unique<Trainer>(rank_, decided_config, &world_); });
  loader_ = std::make_unique<Loader>(data_.train, trainer_->loader_settings(), trainer_->share());
  resume();
  if (world_.rank() == 0) progress_ = std::make_unique<Progress>(config_.train.max_steps, trainer_->steps_done(), log_.get(), progress);
  print_run();
  in_memory([&] { trainer_->rehearse(data_.train->info().longest); });
  check_kernels();
  world_.barrier({MessageKind::control, trainer_->steps_done(), -1, -1});  // all ranks measure at once: what they reach together
  peak_flops_ = sum_over(world_, measure_peak_flops(rank_, config_.dtype()) * processor_share(world_, rank_));
  print_kernels();
  print_memory();
  upcoming_state_ = loader_->state();
  read_ahead();
  if (config_.metrics.trace) {
    traces_ = std::make_unique<StepTraces>(rank_, world_, trainer_->pipeline(), config_.run.dir + "/traces", fs_);
    say(traces_->describe());
  }
  store_schedule();
  if (folder_) folder_->store_config(config_);  // now that it can start: a refused start binds nobody to its settings
}

Session::~Session() = default;

void Session::say(std::string_view line) {
  if (progress_) progress_->line(line);
}

void Session::check_devices() {
  const std::vector<std::string> devices = world_.gather_texts(to_string(rank_.device()));
  const auto is_cpu = [](const std::string& device) { return device == to_string(Device{}); };
  for (size_t r = 1; r < devices.size(); ++r)
    if (is_cpu(devices[r]) != is_cpu(devices[0]))
      fail<ConfigError>("run.device", "rank {} computes on {}, rank 0 on {}; allowed: one kind for all ranks: set run.device", r, devices[r], devices[0]);
}

/// What a rank's device, and libraries that are first asked for here, can not do: found on any rank before the run's folder is made.
void Session::check_means() {
  std::exception_ptr own;
  std::string problem;
  try {
    check_device(rank_, config_.dtype());
    check_attention(rank_, config_);
    check_messages(rank_.device(), world_.size());
  } catch (const Error& error) {
    own = std::current_exception();
    problem = error.what();
  }
  const std::vector<std::string> problems = world_.gather_texts(problem);
  if (own) std::rethrow_exception(own);
  for (size_t r = 0; r < problems.size(); ++r)
    if (!problems[r].empty()) fail<AbortedError>("train", "rank {} can not train: {}", r, problems[r]);
}

void Session::check_same_config() {
  if (world_.size() == 1) return;
  Config shared = config_;  // without what belongs to each rank's machine; data are compared by digest
  shared.run.threads = shared.run.memory_limit = 0;
  shared.run.pin_threads.clear();
  shared.data.dataset_path = "data";
  if (!shared.data.eval_path.empty()) shared.data.eval_path = "held-out data";
  if (config_.has_schedule_file()) {  // it is the file's content that counts
    const std::string schedule = describe(*pipeline_stages(config_).given);
    shared.distributed.pp_schedule = fmt::format("a file with digest {}", to_hex(digest_of(std::as_bytes(std::span(schedule)))));
  }
  const std::vector<std::string> configs = world_.gather_texts(to_toml(shared));
  for (size_t r = 1; r < configs.size(); ++r)
    if (const auto [theirs, ours] = first_difference(configs[r], configs[0]); !theirs.empty() || !ours.empty())
      fail<ConfigError>("train", "rank {} was started with another config than rank 0: `{}` there, `{}` here; allowed: one config for all ranks", r, theirs, ours);
}

void Session::check_same_data() {
  if (world_.size() == 1) return;
  const auto digests = [](const std::shared_ptr<const Corpus>& corpus) { return corpus ? to_hex(corpus->digest()) : std::string("none"); };
  const std::vector<std::string> data = world_.gather_texts(digests(data_.train) + " and held out " + digests(data_.held_out));
  for (size_t r = 1; r < data.size(); ++r)
    if (data[r] != data[0])
      fail<ConfigError>("train", "rank {} reads other data than rank 0 from {}: digests {} there, {} here; allowed: the same data for all ranks", r,
                        config_.data.dataset_path, data[r], data[0]);
}

Config Session::decided() {
  if (!is_context_open(config_)) return config_;
  const ContextDecision decision = decide_context(config_, rank_, world_, data_.train, folder_ ? folder_->choices() : std::map<std::string, std::string>{});
  notes_.push_back(decision.line);
  choices_ = decision.choices;
  return with_decision(config_, decision);
}

void Session::in_memory(const std::function<void()>& part) {
  try {
    part();
  } catch (const OutOfMemoryError& error) {
    if (world_.size() > 1) throw;
    throw OutOfMemoryError(error.what() + memory_advice(rank_, config_, data_.train->info().longest));
  }
}

int Session::agree_on_signal(int own) {
  return static_cast<int>(world_.agree_on_largest(own, {MessageKind::control, trainer_->steps_done() + 1, -1, -1, "stop signal"}));
}

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
  std::optional<LoadedState> loaded = load_training_state(fs_, config_.run.dir, config_.checkpoint.load_path, rank_, *trainer_);
  if (loaded) {
    for (const std::string& text : loaded->damaged) notes_.push_back("note: " + text);
    if (loaded->same_run) {
      loader_->restore(loaded->packing);
      saved_step_ = trainer_->steps_done();
    }
  }
  if (folder_) folder_->truncate_metrics_after(trainer_->steps_done());
  state_ = loader_->state();
}

namespace {

std::string mebibytes(int64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)); }

}  // namespace

void Session::print_run() {
  if (!folder_) return;
  say(machine_line(rank_));
  const CorpusTotals totals = data_.train->totals();
  say(fmt::format("data: {} ({} documents, {} tokens, digest {}){}", config_.data.dataset_path, totals.documents, totals.tokens, to_hex(data_.train->digest()),
                  data_.held_out ? fmt::format("; held out: {} documents", data_.held_out->document_count()) : ""));
  say(fmt::format("model: {} parameters, {}, {} layers; step: {} rows of {} tokens in {} microbatches; run folder: {}", trainer_->model().parameters().declared_elements(),
                  config_.train.mixed_precision, config_.model.n_layers, config_.train.global_batch_size, config_.train.seq_len, config_.microbatches(),
                  folder_->path()));
  if (world_.size() > 1) {
    std::string stages;
    if (trainer_->stages().stages() > 1) stages = fmt::format("; {}, stages: {}", trainer_->stages().title(), trainer_->stages().describe());
    if (trainer_->context() != nullptr) {
      const ContextOptions& context = trainer_->context()->planner().options();
      stages += fmt::format("; context: {}, {}", name_of(context.layout), name_of(context.exchange));
    }
    say(fmt::format("layout: {} ranks ({}): {}{}", world_.size(), world_.name(), trainer_->groups().mesh.name(), stages));
  }
  if (!keeps_bits(trainer_->stages()))
    say(fmt::format("note: {} does not add gradients in ascending order of microbatches: they agree with those of one process to rounding, not to the bit", trainer_->stages().schedule));
  for (const std::string& note : notes_) say(note);
  if (trainer_->steps_done() > 0) say(fmt::format("resuming after step {}", trainer_->steps_done()));
}

void Session::store_schedule() {
  if (!folder_) return;
  const std::string file = folder_->file("schedule.csv");
  if (trainer_->stages().stages() == 1) {  // another layout may have left one
    if (fs_.exists(file)) fs_.remove_all(file);
    return;
  }
  write_atomically(fs_, file, describe(training_schedule(trainer_->stages(), config_.microbatches_of_replica())));
}

void Session::check_kernels() {
  std::string own;
  for (const auto& [op, kernel] : rank_.chosen_kernels()) own += op + " " + kernel + "\n";
  for (const std::string& text : world_.gather_texts(own)) {
    std::istringstream lines(text);
    for (std::string op, kernel; lines >> op >> kernel;) kernels_.emplace(op, kernel);
  }
  std::vector<std::string> known;
  for (const auto& [op, kernel] : kernels_) known.push_back(op);
  for (const auto& [op, kernel] : rank_.options().kernels) {
    if (kernels_.contains(op) || op == "adamw" || op == "optimizer_scalars") continue;
    const std::string near = nearest(op, known);
    fail<ConfigError>("run.kernels", "this run has no operation '{}'; allowed: {}, adamw, optimizer_scalars{}", op, fmt::join(known, ", "), near.empty() ? "" : "; nearest: " + near);
  }
}

void Session::print_kernels() {
  if (!folder_) return store_device_choices();
  std::string kernels;
  std::map<std::string, std::string> choices = choices_;
  for (const auto& [op, kernel] : kernels_) {
    kernels += fmt::format("{}{} {}", kernels.empty() ? "" : ", ", op, kernel);
    choices["kernel." + op] = kernel;
  }
  choices["instruction_set"] = std::string(instruction_set(rank_));
  const auto before = folder_->choices();
  for (const auto& [key, value] : before)  // decided once for the run, though this start did not ask for it
    if (choices_.empty() && key.starts_with("context.")) choices.emplace(key, value);
  const auto old_set = before.find("instruction_set");
  if (old_set != before.end() && old_set->second != choices["instruction_set"])
    say(fmt::format("note: this run began with {} kernels and goes on with {}: rounding differs from here", old_set->second, choices["instruction_set"]));
  choices["device"] = std::string(rank_.accelerator() == nullptr ? "cpu" : "cuda");
  const auto old_device = before.find("device");
  if (old_device != before.end() && old_device->second != choices["device"])
    say(fmt::format("note: this run began on {} and goes on on {}: rounding differs from here", old_device->second, choices["device"]));
  for (const auto& [key, value] : before)  // of products that have not come up yet
    if (key.starts_with(device_choice_prefix)) choices.emplace(key, value);
  stored_choices_ = std::move(choices);
  folder_->store_choices(stored_choices_);
  store_device_choices();
  say("kernels: " + kernels);
}

void Session::replay_choices() {
  if (rank_.accelerator() == nullptr) return;
  nlohmann::json recorded = nlohmann::json::object();
  if (folder_)
    for (const auto& [key, value] : folder_->choices())
      if (key.starts_with(device_choice_prefix)) recorded[key.substr(device_choice_prefix.size())] = value;
  rank_.accelerator()->replay(nlohmann::json::parse(world_.gather_texts(recorded.dump()).at(0)).get<Accelerator::Choices>());
}

void Session::store_device_choices() {
  if (rank_.accelerator() == nullptr) return;
  const nlohmann::json own = nlohmann::json::array({rank_.accelerator()->choices(), rank_.accelerator()->take_notes()});
  const std::map<std::string, std::string> before = stored_choices_;
  std::set<std::string> notes;
  for (const std::string& text : world_.gather_texts(own.dump())) {
    const nlohmann::json theirs = nlohmann::json::parse(text);
    for (const auto& [key, value] : theirs.at(0).get<Accelerator::Choices>()) stored_choices_[std::string(device_choice_prefix) + key] = value;
    for (const std::string& note : theirs.at(1).get<std::vector<std::string>>())
      if (notes.insert(note).second) say("note: " + note);
  }
  if (folder_ && stored_choices_ != before) folder_->store_choices(stored_choices_);
}

void Session::print_memory() {
  if (rank_.accelerator() != nullptr) return print_device_memory();
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
  const std::string in_all = mebibytes(std::max(total, named));
  const std::vector<std::string> ranks = world_.gather_texts(in_all);
  say(fmt::format("{} program {}, gaps and buffers {}; in all {}{}", table, mebibytes(resident_at_start_), mebibytes(std::max<int64_t>(total - named, 0)), in_all,
                  ranks.size() > 1 ? fmt::format(" on rank 0 (by rank: {})", fmt::join(ranks, ", ")) : ""));
}

void Session::print_device_memory() {
  const Accelerator& device = *rank_.accelerator();
  std::string table = fmt::format("memory of {}:", to_string(rank_.device()));
  int64_t named = 0;
  for (int c = 0; c < category_count; ++c) {
    const int64_t peak = rank_.allocator().counters(static_cast<Category>(c)).peak;
    if (peak == 0) continue;
    table += fmt::format(" {} {},", name_of(static_cast<Category>(c)), mebibytes(peak));
    named += peak;
  }
  const int64_t reserved = rank_.allocator().reserved();
  const std::vector<std::string> ranks = world_.gather_texts(mebibytes(reserved));
  say(fmt::format("{} gaps {}; in all {} of {}, {} free{}; of the machine: {}", table, mebibytes(std::max<int64_t>(reserved - named, 0)), mebibytes(reserved),
                  mebibytes(device.memory_bytes()), mebibytes(device.free_bytes()), ranks.size() > 1 ? fmt::format(" (by rank: {})", fmt::join(ranks, ", ")) : "",
                  mebibytes(resident_bytes())));
}

Evaluation Session::evaluate() {
  if (progress_) progress_->task("evaluating", 0);
  return trainer_->evaluate(data_.held_out, config_.eval.steps);
}

StepMetrics Session::metrics_of(const Awaited& step, const StepResult& result) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - std::max(step.begun, reported_)).count();
  StepMetrics metrics;
  metrics.step = result.step;
  metrics.epoch = step.epoch;
  metrics.loss = result.loss;
  metrics.valid_tokens = result.valid_tokens;
  metrics.tokens = result.tokens;
  metrics.grad_norm = result.gradient_norm;
  metrics.lr = result.learning_rate;
  metrics.skipped = result.skipped;
  metrics.useful_pairs = result.useful_pairs;
  metrics.computed_pairs = result.computed_pairs;
  metrics.padding = result.padding;
  metrics.bytes_sent = result.bytes_sent;
  if (config_.distributed.cp > 1) metrics.balance = result.balance;
  metrics.step_ms = seconds * 1e3;
  metrics.tokens_per_s = static_cast<double>(result.tokens) / seconds;
  const double reached = step_flops(config_.model, result.tokens, result.useful_pairs) / seconds;
  if (reached > peak_flops_)  // the first probe was disturbed; ranks do not meet for another one
    peak_flops_ = std::max(peak_flops_, world_.size() == 1 && rank_.accelerator() == nullptr ? measure_peak_flops(rank_, config_.dtype()) : reached);
  metrics.peak_share_useful = reached / peak_flops_;
  metrics.peak_share_causal = step_flops(config_.model, result.tokens, result.causal_pairs) / seconds / peak_flops_;
  metrics.resident_bytes = resident_bytes();
  if (result.skipped && result.valid_tokens > 0) {
    ++non_finite_steps_;
    metrics.non_finite = result.non_finite;
  }
  return metrics;
}

Session::Awaited Session::awaited(const LoadedStep& batch) const {
  return {batch.plan.epoch, trainer_->steps_done() >= config_.train.max_steps || upcoming_.empty(), step_start_};
}

bool Session::evaluates_after(int64_t step, bool last) const { return data_.held_out && due(config_.eval.interval, step, last); }

void Session::record(const LoadedStep& batch) {
  awaited_.push_back(awaited(batch));
  const int64_t step = trainer_->steps_done();
  const bool last = awaited_.back().last, waits = rank_.accelerator() == nullptr || last || traces_ || evaluates_after(step, last) || saves_after(step);
  report_submitted(waits ? 0 : 1);
}

void Session::record(const LoadedStep& batch, const StepResult& result) { report(awaited(batch), result); }

void Session::report_submitted(int64_t left) {
  while (trainer_->submitted() > left) {
    const StepResult result = trainer_->collect();
    const Awaited step = awaited_.front();
    awaited_.pop_front();
    report(step, result);
  }
}

void Session::report(const Awaited& step, const StepResult& result) {
  StepMetrics metrics = metrics_of(step, result);
  if (progress_) progress_->step(result.step);
  if (evaluates_after(result.step, step.last)) {
    const Evaluation evaluation = evaluate();
    metrics.eval_loss = evaluation.loss;
    metrics.eval_bits_per_byte = evaluation.bits_per_byte;
  }
  if (result.step == 1 || due(config_.metrics.log_interval, result.step, step.last) || metrics.eval_loss || result.skipped) {
    metrics.resident_bytes = static_cast<int64_t>(sum_over(world_, static_cast<double>(metrics.resident_bytes)));
    if (folder_) folder_->append_metrics(metrics);
    if (progress_) progress_->logged(metrics);
    if (traces_) traces_->keep(result.step);
    if (result.skipped)
      say(result.valid_tokens == 0 ? fmt::format("step {}: every target of the batch is ignored: no weight changed", result.step)
                                   : fmt::format("step {}: not finite; no weight changed ({} such steps so far)", result.step, non_finite_steps_));
  }
  if (saves_after(result.step)) save();
  reported_ = std::chrono::steady_clock::now();
}

void Session::save() {
  store_device_choices();
  if (folder_) folder_->sync_metrics();  // the record must not be older than the checkpoint after a power loss
  save_training_state(fs_, config_.run.dir, *trainer_, state_, *data_.train, config_.checkpoint.keep_last_n);
  saved_step_ = trainer_->steps_done();
}

void Session::finish(int signal) {
  report_submitted(0);
  if (saved_step_ != trainer_->steps_done()) save();
  if (progress_) progress_->finish();
  if (signal != 0)
    say(fmt::format("stopped by {} after step {}; saved; the same command resumes", signal == SIGINT ? "SIGINT" : signal == SIGHUP ? "SIGHUP" : "SIGTERM", trainer_->steps_done()));
  else
    say(fmt::format("done: {} steps{}; checkpoint in {}/checkpoints", trainer_->steps_done(),
                    trainer_->skipped_in_a_row() > 0 ? fmt::format(", the last {} skipped as not finite", trainer_->skipped_in_a_row()) : "", config_.run.dir));
}

}  // namespace quire
