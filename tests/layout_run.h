// A few steps of real training in any layout, its ranks threads of this process: what every rank of it holds, gathered.
#pragma once
#include <functional>
#include <map>
#include <mutex>

#include "check.h"
#include "data/loader.h"
#include "parallel/nccl.h"
#include "run/rank_options.h"
#include "run/trainer.h"
#include "wire.h"

namespace quire::test {

struct LayoutRun {
  std::vector<StepResult> steps;                                     ///< rank 0's
  std::vector<std::map<std::string, std::vector<double>>> gradients; ///< of each step, by parameter
  std::map<std::string, std::vector<double>> weights;                ///< masters after the last step, by parameter
  double evaluation = 0;                                             ///< loss over the whole corpus after the last step
  TrafficCounters traffic;                                           ///< of all pipeline groups, summed over ranks
  std::vector<std::string> disagreements;                            ///< values that two ranks hold differently
};

struct LayoutRunOptions {
  int steps = 3;
  bool gradients = true, evaluate = true;
  /// Called on every rank before the first step.
  std::function<void(Trainer&)> prepare;
  /// Called on every rank instead of `Trainer::step`.
  std::function<StepResult(Trainer&, const LoadedStep&)> step;
  /// What sees and changes a rank's messages.
  std::function<WireHooks(Rank&, int world_rank)> wire;
};

inline std::vector<double> as_doubles(const Tensor& tensor) {
  if (tensor.dtype() == DType::f64) return tensor.to_vector<double>();
  const std::vector<float> values = tensor.to_vector<float>();
  return {values.begin(), values.end()};
}

/// Keeps a tensor by name; ranks that hold the same one must hold the same bits.
inline void keep(std::map<std::string, std::vector<double>>& all, const std::string& name, const Tensor& tensor, LayoutRun& run, const char* what) {
  std::vector<double> values = as_doubles(tensor);
  const auto [entry, fresh] = all.emplace(name, values);
  if (!fresh && !(entry->second == values)) run.disagreements.push_back(fmt::format("{} of {}", what, name));
}

/// Each row taken for one document: what training without boundaries sees.
inline LoadedStep without_boundaries(LoadedStep batch) {
  for (HostBatch& host : batch.microbatches) {
    std::vector<int64_t> lengths;
    for (const Row& row : host.plan) {
      lengths.push_back(0);
      for (const Piece& piece : row) lengths.back() += piece.length;
    }
    host.documents = Documents::from_lengths(lengths);
  }
  return batch;
}

inline LayoutRun run_layout(const Config& config, const std::shared_ptr<const Corpus>& corpus, const LayoutRunOptions& options = {}) {
  LayoutRun run;
  run.gradients.resize(static_cast<size_t>(options.steps));
  std::mutex mutex;
  const auto run_ranks = config.run.device == "cuda" ? run_local_on_devices : run_local;
  run_ranks(static_cast<int>(mesh_shape(config).ranks()), {}, [&](Communicator& world) {
    Rank rank(rank_options(config, &world));
    Wire wire(world, options.wire ? options.wire(rank, world.rank()) : WireHooks{});
    Trainer trainer(rank, config, options.wire ? static_cast<Communicator*>(&wire) : &world);
    Loader loader(corpus, trainer.loader_settings(), trainer.share());
    if (options.prepare) options.prepare(trainer);
    for (int step = 0; step < options.steps; ++step) {
      const LoadedStep batch = loader.next_step();
      const StepResult result = options.step ? options.step(trainer, batch) : trainer.step(batch);
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) run.steps.push_back(result);
      if (!options.gradients) continue;
      for (const Parameter& p : trainer.model().parameters()) keep(run.gradients[static_cast<size_t>(step)], p.name, p.gradients.at(0), run, "gradient");
    }
    const double evaluation = options.evaluate ? trainer.evaluate(corpus).loss : 0;
    const std::lock_guard lock(mutex);
    for (const Parameter& p : trainer.model().parameters()) keep(run.weights, p.name, p.master, run, "weight");
    if (world.rank() == 0) run.evaluation = evaluation;
    for (int kind = 0; kind < message_kinds; ++kind) {
      const TrafficCounters::Entry& sent = trainer.groups().pipeline->traffic()[static_cast<MessageKind>(kind)];
      run.traffic.sent[static_cast<size_t>(kind)].messages += sent.messages;
      run.traffic.sent[static_cast<size_t>(kind)].bytes += sent.bytes;
    }
  });
  return run;
}

/// What differs between two runs, in words; "" where every bit of losses, norms, gradients, weights and the evaluation is the same.
inline std::string bit_difference(const LayoutRun& a, const LayoutRun& b) {
  for (size_t i = 0; i < b.steps.size(); ++i) {
    if (a.steps.at(i).loss != b.steps[i].loss) return fmt::format("loss of step {}: {:.17g} and {:.17g}", i + 1, a.steps[i].loss, b.steps[i].loss);
    if (a.steps[i].gradient_norm != b.steps[i].gradient_norm) return fmt::format("gradient norm of step {}", i + 1);
    if (a.steps[i].valid_tokens != b.steps[i].valid_tokens || a.steps[i].tokens != b.steps[i].tokens || a.steps[i].useful_pairs != b.steps[i].useful_pairs ||
        a.steps[i].computed_pairs != b.steps[i].computed_pairs || a.steps[i].padding != b.steps[i].padding || a.steps[i].learning_rate != b.steps[i].learning_rate)
      return fmt::format("counts of step {}", i + 1);
    for (const auto& [name, values] : b.gradients.at(i))
      if (a.gradients.at(i).at(name) != values) return fmt::format("gradient of {} in step {}", name, i + 1);
  }
  if (a.weights.size() != b.weights.size()) return "number of parameters";
  for (const auto& [name, values] : b.weights)
    if (a.weights.at(name) != values) return "weight of " + name;
  if (a.evaluation != b.evaluation) return "evaluation";
  return a.disagreements.empty() ? "" : a.disagreements.front();
}

/// Largest difference of losses, norms and gradients, of the largest magnitude of each. A gradient whose terms cancel (of queries that meet one key alone) is mere rounding:
/// the step's largest gradient, times `noise`, is the least that counts as its magnitude.
inline double largest_difference(const LayoutRun& a, const LayoutRun& b, double noise = 0) {
  double most = 0;
  const auto magnitude = [](const std::vector<double>& values) {
    double largest = 0;
    for (const double x : values) largest = std::max(largest, std::abs(x));
    return largest;
  };
  const auto relative = [&](const std::vector<double>& x, const std::vector<double>& y, double least) {
    double off = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      const double d = std::abs(x.at(i) - y[i]);
      off = d <= off ? off : std::isnan(d) ? HUGE_VAL : d;
    }
    if (off > 0) most = std::max(most, off / std::max(magnitude(y), least));
  };
  for (size_t i = 0; i < b.steps.size(); ++i) {
    relative({a.steps.at(i).loss}, {b.steps[i].loss}, 0);
    relative({a.steps[i].gradient_norm}, {b.steps[i].gradient_norm}, 0);
    double largest = 0;
    for (const auto& [name, values] : b.gradients.at(i)) largest = std::max(largest, magnitude(values));
    for (const auto& [name, values] : b.gradients.at(i)) relative(a.gradients.at(i).at(name), values, noise * largest);
  }
  return most;
}

}  // namespace quire::test
