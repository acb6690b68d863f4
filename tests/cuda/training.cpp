// Training on an emulated device: what the CPU computes, without a host read inside a step, to the same bits again.
#include "check.h"
#include "emulation.h"
#include "ops/kernel_test.h"
#include "run/config_schema.h"
#include "run/data_source.h"
#include "run/probes.h"
#include "run/rank_options.h"
#include "run/trainer.h"
#include "runtime/accelerator.h"
#include "tier.h"

namespace quire::test {

namespace {

/// tiny.toml, cut unless all tests are asked for.
Config tiny(const std::string& device, const std::string& dtype, std::vector<std::string> overrides = {}) {
  std::vector<std::string> all{"run.device=" + device, "train.mixed_precision=" + dtype, "run.threads=1"};
  if (!all_tier()) all.insert(all.end(), {"model.n_layers=2", "train.seq_len=64", "train.global_batch_size=4"});
  all.insert(all.end(), overrides.begin(), overrides.end());
  return load_config(QUIRE_SOURCE_ROOT "/tools/configs/tiny.toml", all);
}

/// A trainer and the steps it takes.
struct Training {
  explicit Training(const Config& config) : rank(poisoned(rank_options(config))), trainer(rank, config), loader(open_data(config).train, trainer.loader_settings()) {}
  static RankOptions poisoned(RankOptions options) {
    options.poison = true;
    return options;
  }
  void submit() {
    trainer.begin_step();
    trainer.forward_backward(loader.next_step());
    trainer.submit();
  }
  /// Every weight, in canonical order.
  std::vector<std::vector<double>> weights() {
    std::vector<std::vector<double>> all;
    for (const Parameter& p : trainer.model().parameters()) all.push_back(host_values(p.master));
    return all;
  }

  Rank rank;
  Trainer trainer;
  Loader loader;
};

struct FirstStep {
  double loss = 0;
  std::vector<std::string> names;
  std::vector<std::vector<double>> gradients;
};

FirstStep first_step(const Config& config) {
  Training training(config);
  training.submit();
  FirstStep result;
  result.loss = training.trainer.collect().loss;
  for (const Parameter& p : training.trainer.model().parameters()) {
    result.names.push_back(p.name);
    result.gradients.push_back(host_values(p.gradients[0]));
  }
  return result;
}

/// Losses of `steps` steps, each collected one late.
std::vector<double> losses(Training& training, int64_t steps) {
  std::vector<double> all;
  for (int64_t step = 0; step < steps; ++step) {
    training.submit();
    if (step > 0) all.push_back(training.trainer.collect().loss);
  }
  all.push_back(training.trainer.collect().loss);
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_training)

BOOST_AUTO_TEST_CASE(the_first_step_is_the_cpus) {
  const emulation::Fresh fresh;
  const FirstStep exact = first_step(tiny("cpu", "f64"));
  for (const char* dtype : {"f32", "bf16"}) {
    const FirstStep cpu = first_step(tiny("cpu", dtype)), device = first_step(tiny("cuda", dtype));
    if (dtype == std::string_view("f32")) BOOST_TEST(std::abs(device.loss - cpu.loss) <= 1e-6 * cpu.loss, device.loss << " is not " << cpu.loss);
    for (size_t i = 0; i < exact.gradients.size(); ++i) {
      double largest = 0, of_cpu = 0, of_device = 0;
      for (size_t j = 0; j < exact.gradients[i].size(); ++j) {
        largest = std::max(largest, std::abs(exact.gradients[i][j]));
        of_cpu = std::max(of_cpu, std::abs(cpu.gradients[i][j] - exact.gradients[i][j]));
        const double error = std::abs(device.gradients[i][j] - exact.gradients[i][j]);
        of_device = error > of_device || std::isnan(error) ? error : of_device;
      }
      const double ulp = dtype == std::string_view("f32") ? 0x1p-23 : 0x1p-7;
      BOOST_TEST(of_device <= std::max(2 * of_cpu, 4 * ulp * largest),
                 dtype << " " << exact.names[i] << ": " << of_device << " off on the device, " << of_cpu << " on the CPU, of " << largest);
    }
  }
}

BOOST_AUTO_TEST_CASE(steps_follow_the_cpu) {
  const emulation::Fresh fresh;
  const int64_t steps = all_tier() ? 30 : 3;
  Training cpu(tiny("cpu", "f32")), device(tiny("cuda", "f32"));
  const std::vector<double> expected = losses(cpu, steps), found = losses(device, steps);
  for (size_t i = 0; i < found.size(); ++i) BOOST_TEST(std::abs(found[i] - expected[i]) < 1e-3 * expected[i], "step " << i + 1 << ": " << found[i] << " is not " << expected[i]);
}

BOOST_AUTO_TEST_CASE(steps_have_the_same_bits_each_time_in_every_order_and_where_activations_are_computed_again) {
  const emulation::Fresh fresh;
  std::optional<std::vector<std::vector<double>>> weights;
  for (const std::vector<std::string>& overrides : {std::vector<std::string>{}, {}, {"train.activation_checkpointing=attention"}, {"train.activation_checkpointing=full"}}) {
    if (weights) emulation::order(emulation::Order::random, 11);
    Training device(tiny("cuda", "f32", overrides));
    losses(device, 2);
    if (!weights) weights = device.weights();
    BOOST_TEST((device.weights() == *weights), "other bits");
  }
  // Control: another seed is another training.
  Training other(tiny("cuda", "f32", {"train.seed=43"}));
  losses(other, 1);
  BOOST_TEST((other.weights() != *weights));
}

BOOST_AUTO_TEST_CASE(a_step_reads_nothing_on_the_host) {
  const emulation::Fresh fresh;
  Training training(tiny("cuda", "f32"));
  losses(training, 1);
  const Accelerator& device = *training.rank.accelerator();
  emulation::reset_counters();
  const int64_t before = device.host_reads();
  losses(training, 3);
  BOOST_TEST(device.host_reads() == before);
  const emulation::Counters counted = emulation::counters();
  BOOST_TEST(counted.kernels > 100);
  BOOST_TEST(counted.device_synchronizations == 0);
  BOOST_TEST(counted.stream_synchronizations == 0);
  BOOST_TEST(counted.synchronous_copies == 0);
  BOOST_TEST(counted.allocations == 0);
  // Control: a read put into the step is counted.
  training.trainer.begin_step();
  training.trainer.forward_backward(training.loader.next_step());
  training.trainer.model().parameters()[0].gradients[0].to_vector<float>();
  training.trainer.submit();
  training.trainer.collect();
  BOOST_TEST(device.host_reads() == before + 1);
}

BOOST_AUTO_TEST_CASE(what_a_step_did_is_told_a_step_late_and_is_the_same) {
  const emulation::Fresh fresh;
  const Config config = tiny("cuda", "f32", {"train.max_non_finite_steps=2"});
  Training together(config), late(config);
  std::vector<StepResult> expected, found;
  for (int step = 0; step < 3; ++step) expected.push_back(together.trainer.step(together.loader.next_step()));
  for (int step = 0; step < 3; ++step) {
    late.submit();
    BOOST_TEST(late.trainer.submitted() == std::min(step + 1, 2));
    if (step > 0) found.push_back(late.trainer.collect());
  }
  found.push_back(late.trainer.collect());
  check_error<StateError>([&] { late.trainer.collect(); }, {"no step is submitted"});
  for (size_t i = 0; i < found.size(); ++i) {
    BOOST_TEST(found[i].step == expected[i].step);
    BOOST_TEST(found[i].loss == expected[i].loss);
    BOOST_TEST(found[i].gradient_norm == expected[i].gradient_norm);
    BOOST_TEST(found[i].valid_tokens == expected[i].valid_tokens);
    BOOST_TEST(found[i].computed_pairs >= found[i].useful_pairs);
    BOOST_TEST(found[i].useful_pairs > 0);
    BOOST_TEST(!found[i].skipped);
  }
  // A weight that is not finite: both steps are skipped, nothing is changed, and the second one's report ends the training.
  const Tensor weight = late.trainer.model().parameters().find("layers.1.ffn.up.weight").value;
  std::vector<float> values = weight.to_vector<float>();
  values[5] = std::numeric_limits<float>::quiet_NaN();
  write<float>(late.rank, weight, values);
  const int64_t adam = late.trainer.optimizer().adam_step();
  late.submit();
  late.submit();
  const StepResult skipped = late.trainer.collect();
  BOOST_TEST(skipped.skipped);
  BOOST_TEST(skipped.non_finite.find("layers.1.ffn.up.weight") != std::string::npos, skipped.non_finite);
  check_error<NonFiniteError>([&] { late.trainer.collect(); }, {"2 steps in a row", "gradients not finite: embedding.weight, ", "no weight was changed"});
  BOOST_TEST(late.trainer.optimizer().adam_step() == adam);
}

BOOST_AUTO_TEST_CASE(what_a_device_can_not_do_is_refused_to_embedders_too) {
  const emulation::Fresh fresh;
  const auto unchecked = [](const std::string& dtype, std::vector<std::string> overrides = {}) {
    Config config = tiny("cpu", dtype, std::move(overrides));
    config.run.device = "cuda";
    return config;
  };
  check_error<UnsupportedError>([&] { Training training(unchecked("f64")); }, {"f64 on cuda:0", "f32, bf16"});
  // `auto` never takes an emulated device.
  BOOST_TEST((rank_options(tiny("auto", "f32")).device == Device{}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
