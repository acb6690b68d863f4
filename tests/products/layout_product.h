// Layouts as parameters of a product.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>

#include "layout_run.h"
#include "run/layout_breaks.h"
#include "product_run.h"
#include "run/scratch.h"

namespace quire::test {

/// `1f1b`, `interleaved_1f1b 2` (chunks; zb_v has 2), `gpipe split` (backward passes split into I and W).
struct ScheduleName {
  std::string name;
  int64_t chunks = 1;
  bool split = false;
};

inline ScheduleName schedule_from(const std::string& text) {
  std::istringstream stream(text);
  ScheduleName result;
  stream >> result.name;
  if (result.name == "zb_v" || result.name == "file") result.chunks = 2;
  for (std::string word; stream >> word;) {
    if (word == "split") result.split = true;
    else result.chunks = std::stoll(word);
  }
  return result;
}

/// A user's own schedule for `file`: stages from the last rank to the first and back, one on each, the first rank in the middle; forward passes as early as may be, weight gradients at the end of all
/// input gradients. Written where the test runs; returns its path.
inline std::string write_user_schedule(int64_t ranks, int64_t microbatches) {
  static const Scratch folder;
  PipelineSchedule schedule{"file", ranks, 2 * ranks, microbatches, {}, {}};
  for (int64_t stage = 0; stage < 2 * ranks; ++stage) schedule.rank_of_stage.push_back(stage < ranks ? ranks - 1 - stage : stage - ranks);
  schedule.actions = forward_schedule(schedule.rank_of_stage, ranks, microbatches).actions;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<Action>& actions = schedule.actions[static_cast<size_t>(rank)];
    for (const ActionKind kind : {ActionKind::backward_input, ActionKind::backward_weight})
      for (int64_t m = 0; m < microbatches; ++m)
        for (int64_t stage = 2 * ranks; stage-- > 0;)
          if (schedule.rank_of_stage[static_cast<size_t>(stage)] == rank) actions.push_back({kind, stage, m});
  }
  const std::string path = folder.path(fmt::format("{}-{}.csv", ranks, microbatches));
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (!std::filesystem::exists(path)) std::ofstream(path) << describe(schedule);
  return path;
}

/// Layers that so many stages can be cut from unevenly: 5, 9 or 13.
inline int64_t layers_for(int64_t stages) { return (stages + 3) / 4 * 4 + 1; }

/// Decoder layers of each stage: `by cost` (none given), `first` (all that can be in the first one), `ends` (none in the first and in the last one).
inline std::vector<int64_t> layers_of_stages(const std::string& name, int64_t stages, int64_t layers) {
  if (name == "by cost") return {};
  std::vector<int64_t> result(static_cast<size_t>(stages), 1);
  if (name == "ends" && stages > 1) {
    result.front() = 0;
    if (stages > 2) result.back() = 0;
    result[1] += layers - (stages > 2 ? stages - 2 : 1);
  } else {
    result.front() = layers - (stages - 1);
  }
  return result;
}

/// Sets one parameter of a layout; others as `set_parameter` does.
inline void set_layout_parameter(Config& config, const std::string& name, const std::string& value) {
  if (name == "pp") config.distributed.pp = std::stoll(value);
  else if (name == "dp") config.distributed.dp_replicate = std::stoll(value);
  else if (name == "cp") config.distributed.cp = std::stoll(value);
  else if (name == "context") std::istringstream(value) >> config.distributed.cp_layout >> config.distributed.cp_exchange;  // `balanced ring`
  else if (name == "schedule") {
    const ScheduleName schedule = schedule_from(value);
    config.distributed.pp_schedule = schedule.name;
    config.distributed.pp_chunks = schedule.chunks;
  } else if (name != "layers" && name != "model") set_parameter(config, name, value);
}

/// What a model may have besides: each of these meets every layout.
inline void set_model(Config& config, const std::string& name) {
  if (name == "window") {
    config.model.sliding_window = {7};
    config.model.n_kv_heads = 2;
    config.train.z_loss_weight = 1e-2;
  } else if (name == "windows") {  // one for each layer
    for (int64_t layer = 0; layer < config.model.n_layers; ++layer) config.model.sliding_window.push_back(layer % 2 == 0 ? 3 : 11);
    config.model.qk_norm = true;
  } else if (name == "norms") {
    config.model.qk_norm = true;
    config.model.n_kv_heads = 1;
    config.train.z_loss_weight = 1e-2;
  } else if (name != "plain") {
    throw std::out_of_range("no model " + name);
  }
}

/// Many short documents, some of one token (EOS alone), one as long as a row but one token, and one that a row can not hold: so mixed that no two rows of
/// a step have the same boundaries. Two thirds of the targets are scored.
inline std::shared_ptr<MemoryCorpus> layout_corpus() {
  CorpusInfo info;
  info.vocabulary_size = product_eos + 1;
  info.eos = product_eos;
  auto corpus = std::make_shared<MemoryCorpus>(info);
  std::mt19937_64 random(3);
  std::vector<int64_t> lengths{1, 1, 2, product_row - 1, product_row + 7, 1, 17};
  for (int i = 0; i < 40; ++i) lengths.push_back(1 + static_cast<int64_t>(random() % 12));
  for (const int64_t length : lengths) {
    std::vector<int32_t> tokens(static_cast<size_t>(length), product_eos);
    for (size_t i = 0; i + 1 < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(random() % product_eos);
    std::vector<uint8_t> mask(tokens.size());
    for (uint8_t& scored : mask) scored = random() % 3 != 0;
    corpus->add(tokens, mask);
  }
  return corpus;
}

/// Puts the user's own schedule in the place of `file`.
inline Config with_user_schedule(Config config) {
  if (config.distributed.pp_schedule != "file") return config;
  Config::Distributed own = config.distributed;
  config.distributed.pp_schedule = "1f1b";
  config.distributed.pp_chunks = 1;
  config.distributed.pp_layers.clear();
  own.pp_schedule = write_user_schedule(own.pp, resolved(config).microbatches_of_replica());
  own.pp_chunks = 1;
  config.distributed = own;
  return config;
}

/// The config of a combination: six rows a step; as many layers as its stages need.
inline Config layout_config(const TestParameters& parameters, const Combination& combination) {
  Config config = product_config();
  config.train.global_batch_size = 6;
  config.train.max_steps = 30;
  std::string cut = "by cost", model = "plain";
  for (const TestParameter& parameter : parameters) {
    set_layout_parameter(config, parameter.name, combination[parameter.name]);
    if (parameter.name == "layers") cut = combination["layers"];
    if (parameter.name == "model") model = combination["model"];
  }
  const int64_t stages = config.distributed.pp * config.distributed.pp_chunks;
  config.model.n_layers = layers_for(stages);
  set_model(config, model);
  config.distributed.pp_layers = layers_of_stages(cut, stages, config.model.n_layers);
  return resolved(with_user_schedule(std::move(config)));
}

/// The same training in one process.
inline Config in_one_process(Config config) {
  config.distributed = {};
  return resolved(config);
}

/// What a tier runs: pairs, or the full product of all parameters but the first `drawn`, which get one value for each combination.
inline Combinations combinations_with_drawn(const TestParameters& parameters, size_t drawn) {
  if (!all_tier()) return pairwise(parameters);
  const TestParameters multiplied(parameters.begin() + static_cast<ptrdiff_t>(drawn), parameters.end());
  std::mt19937_64 random(1);
  Combinations result;
  for (const Combination& combination : full_product(multiplied)) {
    std::vector<size_t> chosen;
    for (size_t p = 0; p < drawn; ++p) chosen.push_back(random() % parameters[p].values.size());
    chosen.insert(chosen.end(), combination.chosen().begin(), combination.chosen().end());
    result.emplace_back(parameters, chosen);
  }
  return result;
}

/// The mean of means over context ranks: each divides by the targets of its own tokens.
inline StepResult step_with_own_denominator(Trainer& trainer, const LoadedStep& batch) {
  LoadedStep other = batch;
  int64_t valid = 0;
  for (const HostBatch& host : batch.microbatches)
    if (!host.targets.empty()) valid += own_valid(host.targets, trainer.context()->shard(host.documents));
  other.plan.valid = std::max<int64_t>(valid * trainer.config().distributed.cp * trainer.share().count, 1);
  return trainer.step(other);
}

/// Splits the backward passes of the config's schedule.
inline void split_backward_of(Trainer& trainer) {
  trainer.pipeline().set_schedule([stages = trainer.stages()](int64_t microbatches) { return split_backward(training_schedule(stages, microbatches), 2); });
}

}  // namespace quire::test
