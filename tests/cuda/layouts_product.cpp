// The product of layouts and of what a model and its training may be, on emulated devices: a step's loss and every gradient against one process in f64, no further off than the CPU's run
// of the same layout. Every pair of values meets in a combination; the default tier takes one in six of these, --all takes all.
#include "cuda/layouts.h"
#include "products/layout_product.h"

using namespace quire;
using namespace quire::test;

namespace {

const TestParameters& parameters() {
  static const TestParameters all{
      {"model", {"plain", "window", "windows", "norms"}},
      {"packing", {"concat", "bfd", "bfd/truncate", "single", "single/truncate"}},
      {"tied", {"yes", "no"}},
      {"schedule", {"1f1b", "interleaved_1f1b 2", "gpipe", "zb_h1", "zb_v", "1f1b split"}},
      {"recomputation", {"none", "attention", "full"}},
      {"rows", {"1", "2", "6"}},
      {"threads", {"1", "2"}},
      {"precision", {"f32", "bf16"}},
      {"context", {"balanced ring", "zigzag gather", "contiguous heads"}},
      {"cp", {"1", "2"}},
      {"dp", {"1", "2"}},
      {"pp", {"2", "1"}},
  };
  return all;
}

/// As few layers as the stages need.
Config config_of(const Combination& combination) {
  TestParameters others = parameters();  // layers are not those of the other products, and windows are one for each layer
  std::erase_if(others, [](const TestParameter& p) { return p.name == "model"; });
  Config config = layout_config(others, combination);
  config.model.sliding_window.clear();
  config.model.n_layers = std::max<int64_t>(2, config.distributed.pp * config.distributed.pp_chunks);
  set_model(config, combination["model"]);
  return resolved(config);
}

LayoutRun one_step(Config config, const std::shared_ptr<const Corpus>& corpus, bool split) {
  LayoutRunOptions options;
  options.steps = 1;
  options.evaluate = false;
  if (split) options.prepare = split_backward_of;
  return run_layout(config, corpus, options);
}

double largest_error(const LayoutRun& run, const LayoutRun& exact) {
  double error = error_of({run.steps.at(0).loss}, {exact.steps.at(0).loss});
  for (const auto& [name, values] : exact.gradients.at(0)) error = std::max(error, error_of(run.gradients.at(0).at(name), values));
  return error;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_layouts_product)

BOOST_AUTO_TEST_CASE(whatever_is_combined_a_step_on_devices_is_as_right_as_the_cpus) {
  const emulation::Fresh fresh;
  const auto corpus = layout_corpus();
  const Combinations combinations = pairwise(parameters());
  BOOST_TEST(missing_pairs(parameters(), combinations).empty());
  for (size_t i = 0; i < combinations.size(); i += all_tier() ? 1 : 6) {
    const Combination& combination = combinations[i];
    const bool split = schedule_from(combination["schedule"]).split;
    Config config = config_of(combination), plain = in_one_process(config);
    plain.train.mixed_precision = "f64";
    plain.model.attention_backend = "dense";
    const LayoutRun exact = one_step(resolved(plain), corpus, false), cpu = one_step(config, corpus, split);
    config.run.device = "cuda";
    const LayoutRun device = one_step(config, corpus, split);
    // The error of one step is one random draw: two of them differ by more than 2 often enough.
    const double of_cpu = largest_error(cpu, exact), found = largest_error(device, exact), four_ulp = std::ldexp(4.0, combination["precision"] == "f32" ? -24 : -8);
    BOOST_TEST(found <= std::max(4 * of_cpu, four_ulp), combination.text() << ": " << found << " off on devices, " << of_cpu << " on the CPU");
    BOOST_TEST((device.steps[0].valid_tokens == exact.steps[0].valid_tokens && device.steps[0].useful_pairs == exact.steps[0].useful_pairs), combination.text());
    BOOST_TEST(device.disagreements.empty(), combination.text());
    // Control: the same without boundaries is far off.
    if (i != 0) continue;
    LayoutRunOptions unpacked;
    unpacked.steps = 1;
    unpacked.evaluate = false;
    unpacked.step = [](Trainer& trainer, const LoadedStep& batch) { return trainer.step(without_boundaries(batch)); };
    BOOST_TEST(largest_error(run_layout(config, corpus, unpacked), exact) > 10 * std::max(4 * of_cpu, four_ulp));
  }
  BOOST_TEST_MESSAGE(combinations.size() << " combinations in all");
}

BOOST_AUTO_TEST_SUITE_END()
