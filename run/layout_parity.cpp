#include "run/layout_parity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "run/model_source.h"
#include "run/pipeline_layout.h"
#include "run/rank_options.h"
#include "run/trainer.h"

namespace quire {

namespace {

/// What a step came to.
struct StepNumbers {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;  ///< of all parameters, gathered
  std::string refused;                                   ///< what the step itself said of received boundaries
};

/// A step small enough to be run twice, with enough microbatches for every stage and replica to be busy.
Config parity_config(const Config& config) {
  Config result = config;
  const MeshShape shape = mesh_shape(config);
  const int64_t wanted = std::max({int64_t{4}, 2 * shape.dp, shape.pp * config.distributed.pp_chunks});
  result.train.global_batch_size = config.train.microbatch_size * std::min(config.microbatches(), wanted);
  return result;
}

Config in_one_process(Config config) {
  config.distributed = {};
  return config;
}

/// A replica's part of the first step. Microbatches of a single document would show nothing of boundaries: it is cut in two, elsewhere in each of them.
LoadedStep first_step(LoaderSettings settings, const BatchShare& share, const std::shared_ptr<const Corpus>& corpus) {
  settings.prefetch = 0;
  LoadedStep step = Loader(corpus, settings, share).next_step();
  for (HostBatch& host : step.microbatches) {
    const int64_t tokens = host.documents.tokens();
    if (host.documents.runs().size() > 1 || tokens < 2) continue;
    const int64_t first = 1 + (tokens / 3 + host.index) % (tokens - 1);
    host.documents = Documents::from_lengths(std::vector<int64_t>{first, tokens - first});
  }
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
  LoadedStep batch = first_step(trainer.loader_settings(), trainer.share(), corpus);
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
  run_local(static_cast<int>(shape.ranks()), {}, [&](Communicator& world) {
    RankOptions options = rank_options(config);
    options.threads = std::max(1, options.threads / world.size());
    Rank rank(options);
    Trainer trainer(rank, config, &world);
    const LoadedStep batch = first_step(trainer.loader_settings(), trainer.share(), corpus);
    const std::unique_ptr<BoundaryTamper> tamper = make_tamper(rank, broken, batch.microbatches);
    trainer.pipeline().set_tamper(tamper.get());
    run_step(rank, trainer, batch, weights, mutex, numbers);
  });
  return numbers;
}

double tolerance_of(const Config& config) {
  if (mesh_shape(config).dp == 1) return 0;  // the same bits
  switch (config.dtype()) {
    case DType::f64: return 1e-11;
    case DType::f32: return 1e-5;
    default: return 2e-2;
  }
}

/// Largest difference of the loss and of each gradient, of the largest magnitude of what is compared.
double difference(const StepNumbers& a, const StepNumbers& b) {
  const auto relative = [](double off, double largest) { return off == 0 ? 0 : std::isfinite(off) ? off / largest : HUGE_VAL; };
  double most = relative(std::abs(a.loss - b.loss), std::abs(b.loss));
  for (const auto& [name, values] : b.gradients) {
    const auto found = a.gradients.find(name);
    if (found == a.gradients.end() || found->second.size() != values.size()) return HUGE_VAL;
    double largest = 0, off = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      const double d = std::abs(found->second[i] - values[i]);
      off = d <= off ? off : std::isnan(d) ? HUGE_VAL : d;
    }
    most = std::max(most, relative(off, largest));
  }
  return most;
}

CheckResult begin_result(std::string name, const Config& config) {
  CheckResult result;
  result.name = std::move(name);
  result.layout = Mesh(mesh_shape(config)).name();
  result.backend = config.model.attention_backend;
  return result;
}

}  // namespace

CheckResult parity_check(const Config& config, std::shared_ptr<const Corpus> corpus, ModelSource* weights, const std::string& broken) {
  CheckResult result = begin_result("layout parity", config);
  const Config small = parity_config(config);
  const StepNumbers one = alone(small, corpus, weights, false), many = in_layout(small, corpus, weights, broken);
  if (!many.refused.empty()) {
    result.max_difference = difference({one.loss, many.gradients, {}}, one);
    result.leaked_rows = 1;
    result.words = fmt::format("the step was refused: {}; its gradients differ by {:.1e} of the largest", many.refused, result.max_difference);
    return result;
  }
  result.max_difference = difference(many, one);
  result.passed = result.max_difference <= tolerance_of(config);
  result.leaked_rows = result.passed ? 0 : 1;
  if (result.max_difference == 0) result.words = fmt::format("loss and all {} gradients equal those of one process, to the bit", one.gradients.size());
  else result.words = fmt::format("loss and {} gradients equal those of one process to {:.1e} of the largest; allowed: {:.0e}", one.gradients.size(), result.max_difference, tolerance_of(config));
  return result;
}

bool parity_sees(const Config& config, const std::shared_ptr<const Corpus>& corpus, const std::string& broken) {
  LoaderSettings settings = loader_settings(parity_config(config));
  settings.content = Content::documents;
  const int64_t replicas = mesh_shape(config).dp;
  for (int64_t replica = 0; replica < replicas; ++replica) {
    const LoadedStep step = first_step(settings, {replica, replicas}, corpus);
    LoadedStep rows = step;
    take_rows_for_documents(rows);
    for (size_t i = 0; i < step.microbatches.size(); ++i) {
      const Documents& own = step.microbatches[i].documents;
      if (broken == "unpacked" && influence_reach(config.model) != 0 && rows.microbatches[i].documents.digest() != own.digest()) return true;
      if (broken.starts_with("dropped") && own.runs().size() > 1) return true;
      const size_t other = i ^ 1;  // as the tamper has it
      if (broken == "swapped" && other < step.microbatches.size() && laid_over(step.microbatches[other].documents, own.tokens()).digest() != own.digest()) return true;
    }
  }
  return false;
}

CheckResult unpacked_control(const Config& config, std::shared_ptr<const Corpus> corpus, ModelSource* weights) {
  CheckResult result = begin_result("control, unpacked: layout parity", config);
  const Config small = parity_config(config);
  const StepNumbers packed = alone(small, corpus, weights, false), unpacked = alone(small, corpus, weights, true);
  result.max_difference = difference(unpacked, packed);
  result.passed = result.max_difference > 10 * std::max(tolerance_of(config), 1e-9);
  result.words = result.passed ? fmt::format("rows taken for one document each differ by {:.1e} of the largest: the check sees what packing is for", result.max_difference)
                               : "rows taken for one document each give the same numbers: the check above proves nothing about documents";
  return result;
}

}  // namespace quire
