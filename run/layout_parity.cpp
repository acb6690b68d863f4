#include "run/layout_parity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>

#include "parallel/nccl.h"
#include "run/layout_breaks.h"
#include "run/model_source.h"
#include "run/pipeline_stages.h"
#include "run/rank_options.h"
#include "run/ring_step_leak.h"
#include "run/shared_documents.h"
#include "run/trainer.h"

namespace quire {

namespace {

/// A step small enough to be run twice, with enough microbatches for every stage and replica to be busy. Where context ranks add in another order than one process,
/// in f32 instead of bf16, whose rounding is as large as what is looked for.
Config parity_config(const Config& config) {
  Config result = config;
  const MeshShape shape = mesh_shape(config);
  if (!config.has_schedule_file()) {  // a user's own schedule is checked as a whole
    const int64_t wanted = std::max({int64_t{4}, 2 * shape.dp, shape.pp * config.distributed.pp_chunks});
    result.train.global_batch_size = config.train.microbatch_size * std::min(config.microbatches(), wanted);
  }
  if (shape.cp > 1 && config.dtype() == DType::bf16) result.train.mixed_precision = "f32";
  return result;
}

Config in_one_process(Config config) {
  config.distributed = {};
  return config;
}

/// Every second microbatch, or of a single one the second half, gets documents that ranks must share.
void share_documents(LoadedStep& step, const Config& config) {
  ContextPlanner planner(config.distributed.cp, context_sharing(config).options);
  const bool single = static_cast<int64_t>(step.plan.rows.size()) <= config.train.microbatch_size;
  for (HostBatch& host : step.microbatches) {
    if (!single && host.index % 2 == 0) continue;
    const int64_t tokens = host.documents.tokens(), begin = single ? tokens / 2 : 0;
    std::vector<int64_t> before;
    for (const DocumentRun& run : host.documents.runs())
      if (run.local < begin) before.push_back(std::min<int64_t>(run.length, begin - run.local));
    host.documents = shared_documents(planner, before, tokens, std::min(config.model.max_seq_len, config.train.seq_len));
  }
}

/// A replica's part of the first step of `config`, which may be read for one process. Microbatches of a single document would show nothing of boundaries: it is cut in
/// two, elsewhere in each of them.
LoadedStep first_step(const Config& config, LoaderSettings settings, const BatchShare& share, const std::shared_ptr<const Corpus>& corpus) {
  settings.prefetch = 0;
  LoadedStep step = Loader(corpus, settings, share).next_step();
  for (HostBatch& host : step.microbatches) {
    const int64_t tokens = host.documents.tokens();
    if (host.documents.runs().size() > 1 || tokens < 2) continue;
    const int64_t first = 1 + (tokens / 3 + host.index) % (tokens - 1);
    host.documents = Documents::from_lengths(std::vector<int64_t>{first, tokens - first});
  }
  if (config.distributed.cp > 1) share_documents(step, config);
  return step;
}

/// The same with each row as one document.
void take_rows_for_documents(LoadedStep& step) {
  for (HostBatch& host : step.microbatches) {
    std::vector<int64_t> lengths;
    for (const Row& row : host.plan) {
      lengths.push_back(0);
      for (const Piece& piece : row) lengths.back() += piece.length;
    }
    host.documents = Documents::from_lengths(lengths);
  }
}

/// What of a rank's batch is broken by `labels` and `denominator`.
void break_targets(const std::string& broken, Trainer& trainer, LoadedStep& batch) {
  if (!trainer.pipeline().holds_last() || (broken != "labels" && broken != "denominator")) return;
  int64_t valid = 0;
  for (HostBatch& host : batch.microbatches) {
    const Documents own = trainer.context()->shard(host.documents);
    valid += own_valid(host.targets, own);
    if (broken == "labels") shift_own_targets(host.targets, own);
  }
  if (broken == "denominator") batch.plan.valid = std::max<int64_t>(valid, 1);  // with no factor of the ranks, which would hide it where all have as many
}

/// One rank's part of a step; gradients that it speaks for go into `numbers`.
void run_step(Rank& rank, Trainer& trainer, const LoadedStep& batch, ModelSource* weights, std::mutex& mutex, StepNumbers& numbers) {
  if (weights != nullptr) {
    const std::lock_guard lock(mutex);
    weights->load(rank, trainer.model());
  }
  trainer.begin_step();
  trainer.forward_backward(batch);
  trainer.reduce_gradients();
  if (trainer.groups().replicas->rank() == 0)
    for (const Parameter& p : trainer.model().parameters()) {
      if (!p.counted) continue;
      std::vector<double> values = host_values(p.gradients.at(0));
      const std::lock_guard lock(mutex);
      numbers.gradients[p.name] = std::move(values);
    }
  StepResult result;
  std::string refused;
  try {
    result = trainer.update();
  } catch (const BoundaryError& error) {  // on every rank alike
    refused = error.what();
  }
  if (trainer.groups().world->rank() != 0) return;
  const std::lock_guard lock(mutex);
  numbers.loss = result.loss;
  numbers.refused = refused;
}

StepNumbers alone(const Config& config, const std::shared_ptr<const Corpus>& corpus, ModelSource* weights, bool rows_are_documents) {
  const Config single = in_one_process(config);
  Rank rank(rank_options(single));
  Trainer trainer(rank, single);
  LoadedStep batch = first_step(config, trainer.loader_settings(), trainer.share(), corpus);
  if (rows_are_documents) take_rows_for_documents(batch);
  StepNumbers numbers;
  std::mutex mutex;
  run_step(rank, trainer, batch, weights, mutex, numbers);
  return numbers;
}

StepNumbers in_layout(const Config& config, const std::shared_ptr<const Corpus>& corpus, ModelSource* weights, const std::string& broken) {
  const MeshShape shape = mesh_shape(config);
  StepNumbers numbers;
  std::mutex mutex;
  const RankOptions options = shared_rank_options(config, shape.ranks());
  const auto run_ranks = options.device.kind == DeviceKind::cuda ? run_local_on_devices : run_local;
  run_ranks(static_cast<int>(shape.ranks()), {}, [&](Communicator& world) {
    Rank rank(of_rank(options, world.rank()));
    Trainer trainer(rank, config, &world);
    LoadedStep batch = first_step(config, trainer.loader_settings(), trainer.share(), corpus);
    break_targets(broken, trainer, batch);
    const LayoutBreak in_force(rank, broken, batch.microbatches, trainer.pipeline(), trainer.context());
    run_step(rank, trainer, batch, weights, mutex, numbers);
  });
  return numbers;
}

double tolerance_of(const Config& config) {
  if (const MeshShape shape = mesh_shape(config); shape.dp * shape.cp == 1 && keeps_bits(pipeline_stages(config))) return 0;
  switch (config.dtype()) {
    case DType::f64: return 1e-11;
    case DType::f32: return 1e-5;
    default: return 2e-2;
  }
}

/// Rounding of four units in the last place of the largest gradient is allowed everywhere.
double noise_of(const Config& config) {
  const double allowed = tolerance_of(config);
  return allowed == 0 ? 0 : 4 * (config.dtype() == DType::f64 ? std::numeric_limits<double>::epsilon() : double{std::numeric_limits<float>::epsilon()}) / allowed;
}

/// Largest difference of the loss and of each gradient, of the largest magnitude of what is compared. A gradient whose terms cancel (of queries that meet one key alone, say)
/// is mere rounding: the largest of all gradients, times `noise`, is the least that counts as its magnitude.
double difference(const StepNumbers& a, const StepNumbers& b, double noise) {
  const auto relative = [](double off, double largest) { return off == 0 ? 0 : std::isfinite(off) ? off / largest : HUGE_VAL; };
  double most = relative(std::abs(a.loss - b.loss), std::abs(b.loss)), all = 0;
  for (const auto& [name, values] : b.gradients)
    for (const double x : values) all = std::max(all, std::abs(x));
  for (const auto& [name, values] : b.gradients) {
    const auto found = a.gradients.find(name);
    if (found == a.gradients.end() || found->second.size() != values.size()) return HUGE_VAL;
    double largest = noise * all, off = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      const double d = std::abs(found->second[i] - values[i]);
      off = d <= off ? off : std::isnan(d) ? HUGE_VAL : d;
    }
    most = std::max(most, relative(off, largest));
  }
  return most;
}

}  // namespace

LayoutParity::LayoutParity(const Config& config, std::shared_ptr<const Corpus> corpus, ModelSource* weights)
    : given_(config), config_(parity_config(config)), corpus_(std::move(corpus)), weights_(weights), one_(alone(config_, corpus_, weights_, false)) {}

CheckResult LayoutParity::begin_result(const char* name) const {
  CheckResult result;
  result.name = name;
  result.layout = Mesh(mesh_shape(given_)).name();
  result.backend = given_.model.attention_backend;
  return result;
}

CheckResult LayoutParity::check(const std::string& broken) const {
  CheckResult result = begin_result("layout parity");
  const StepNumbers many = in_layout(config_, corpus_, weights_, broken);
  if (!many.refused.empty()) {
    result.max_difference = difference({one_.loss, many.gradients, {}}, one_, noise_of(config_));
    result.leaked_rows = 1;
    result.words = fmt::format("the step was refused: {}; its gradients differ by {:.1e} of the largest", many.refused, result.max_difference);
    return result;
  }
  result.max_difference = difference(many, one_, noise_of(config_));
  const double allowed = tolerance_of(config_);
  result.passed = result.max_difference <= allowed;
  result.leaked_rows = result.passed ? 0 : 1;
  const size_t count = one_.gradients.size();
  if (result.max_difference == 0)
    result.words = fmt::format("loss and all {} gradients equal those of one process, to the bit", count);
  else if (result.passed)
    result.words = fmt::format("loss and {} gradients equal those of one process to {:.1e} of the largest; allowed: {:.0e}", count, result.max_difference, allowed);
  else
    result.words = fmt::format("loss or gradients differ from those of one process by {:.1e} of the largest; allowed: {}", result.max_difference,
                               allowed == 0 ? "nothing" : fmt::format("{:.0e}", allowed));
  return result;
}

CheckResult LayoutParity::unpacked_control() const {
  CheckResult result = begin_result("control, unpacked: layout parity");
  const StepNumbers unpacked = alone(config_, corpus_, weights_, true);
  result.max_difference = difference(unpacked, one_, noise_of(config_));
  result.passed = result.max_difference > 10 * std::max(tolerance_of(config_), 1e-9);
  result.words = result.passed ? fmt::format("rows taken for one document each differ by {:.1e} of the largest: the check sees what packing is for", result.max_difference)
                               : "rows taken for one document each give the same numbers: the check above proves nothing about documents";
  return result;
}

namespace {

/// Whether a context rank with targets has other ones, or divides by another number, in that step.
bool targets_differ(const LoadedStep& step, ContextPlanner& planner, const std::string& broken) {
  for (int64_t rank = 0; rank < planner.ranks(); ++rank) {
    int64_t valid = 0;
    for (const HostBatch& host : step.microbatches) {
      const Documents own = documents_of(host.documents, planner.plan(host.documents)->shards[static_cast<size_t>(rank)]);
      valid += own_valid(host.targets, own);
      std::vector<int32_t> targets = host.targets;
      shift_own_targets(targets, own);
      if (broken == "labels" && targets != host.targets) return true;
    }
    if (broken == "denominator" && valid > 0 && valid != step.plan.valid) return true;
  }
  return false;
}

/// Tokens that are all alike stay so through all layers, whomever they attend to.
bool are_alike(const std::vector<int32_t>& tokens) { return std::adjacent_find(tokens.begin(), tokens.end(), std::not_equal_to<>()) == tokens.end(); }

/// Whether a replica's part of the step shows it.
bool step_sees(const Config& config, const LoadedStep& step, ContextPlanner& planner, const std::string& broken) {
  if (broken == "labels" || broken == "denominator") return targets_differ(step, planner, broken);
  LoadedStep rows = step;
  take_rows_for_documents(rows);
  for (size_t i = 0; i < step.microbatches.size(); ++i) {
    const Documents& own = step.microbatches[i].documents;
    const size_t other = i ^ 1;  // as the tamper has it
    const auto plan = [&] { return planner.plan(own); };
    const bool shows = !are_alike(step.microbatches[i].tokens);
    if (broken == "unpacked" && shows && influence_reach(config.model) != 0 && rows.microbatches[i].documents.digest() != own.digest()) return true;
    if (broken.starts_with("dropped") && own.runs().size() > 1) return true;
    if (broken == "swapped" && other < step.microbatches.size() && laid_over(step.microbatches[other].documents, own.tokens()).digest() != own.digest()) return true;
    if (broken == "ring_step" && shows && ring_step_leak(config.model, own, *plan())) return true;
    if (broken == "dkv_owner" && shows && keys_travel(*plan())) return true;
  }
  return false;
}

}  // namespace

bool parity_sees(const Config& config, const std::shared_ptr<const Corpus>& corpus, const std::string& broken) {
  const Config small = parity_config(config);
  LoaderSettings settings = loader_settings(small);
  ContextPlanner planner(small.distributed.cp, context_sharing(small).options);
  const int64_t replicas = mesh_shape(small).dp;
  for (int64_t replica = 0; replica < replicas; ++replica)
    if (step_sees(small, first_step(small, settings, {replica, replicas}, corpus), planner, broken)) return true;
  return false;
}

}  // namespace quire
