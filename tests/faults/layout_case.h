// What tests of faults under pipelines and replicas share.
#pragma once
#include "ops/elementwise.h"
#include "products/layout_product.h"
#include "run/pipeline_stages.h"

namespace quire::test {

/// A layout with schedule `1f1b`, `interleaved_1f1b 2`, `file` and so on; twelve layers, six rows a step, one in a microbatch, f32.
inline Config fault_layout(int64_t pp, const std::string& schedule = "1f1b", int64_t dp = 1) {
  Config config = product_config();
  config.model.n_layers = 12;
  config.train.global_batch_size = 6;
  config.train.microbatch_size = 1;
  config.train.mixed_precision = "f32";
  set_layout_parameter(config, "schedule", schedule);
  config.distributed.pp = pp;
  config.distributed.dp_replicate = dp;
  return resolved(with_user_schedule(std::move(config)));
}

/// The steps as one process loads them.
inline std::vector<LoadedStep> loaded_steps(const Config& config, const std::shared_ptr<const Corpus>& corpus, int steps) {
  LoaderSettings settings = loader_settings(config);
  settings.prefetch = 0;
  Loader loader(corpus, settings);
  std::vector<LoadedStep> result;
  for (int step = 0; step < steps; ++step) result.push_back(loader.next_step());
  return result;
}

/// Masters of all parameters that a rank holds.
inline std::vector<std::vector<double>> masters_of(Trainer& trainer) {
  std::vector<std::vector<double>> all;
  for (const Parameter& p : trainer.model().parameters()) all.push_back(as_doubles(p.master));
  return all;
}

/// One step and an evaluation of a model whose head is zero all the time: every logit is 0.
inline LayoutRunOptions with_uniform_logits() {
  const auto uniform = [](Trainer& trainer) {
    for (Parameter& p : trainer.model().parameters())
      if (p.name == "head.weight") {
        fill_zero(trainer.rank(), p.value);
        fill_zero(trainer.rank(), p.master);
      }
  };
  LayoutRunOptions options;
  options.steps = 1;
  options.prepare = uniform;
  options.step = [uniform](Trainer& trainer, const LoadedStep& batch) {
    const StepResult result = trainer.step(batch);
    uniform(trainer);
    return result;
  };
  return options;
}

}  // namespace quire::test
