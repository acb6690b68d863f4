// Whole runs on an emulated device: resumed to the same bits, checkpoints that go from and to the CPU, too little memory, documents kept apart.
#include "run/session.h"

#include "emulation.h"
#include "model/generation.h"
#include "parallel/checkpoint_names.h"
#include "run/machine.h"
#include "run/memory_case.h"
#include "run/model_source.h"
#include "run/selfcheck.h"
#include "run/training_run.h"
#include "tier.h"

namespace quire::test {

namespace {

Config device_config(const Scratch& scratch, const std::string& run, std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"run.device=cuda", "train.max_steps=5"});
  return small_config(scratch, run, overrides);
}

std::string log_of(const Config& config) { return read_text(disk(), config.run.dir + "/log.txt"); }

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_session)

BOOST_AUTO_TEST_CASE(a_run_is_recorded_and_resumes_to_the_same_bits) {
  const emulation::Fresh fresh;
  Scratch scratch;
  const Config whole = device_config(scratch, "whole", {"checkpoint.interval=2"});
  run_training(whole);
  const std::vector<StepMetrics> metrics = metrics_of(whole);
  BOOST_REQUIRE_EQUAL(metrics.size(), 5u);
  BOOST_TEST(metrics.back().loss < metrics.front().loss);
  BOOST_TEST(metrics[3].eval_loss.has_value());
  BOOST_TEST(metrics[4].eval_loss.has_value());
  for (size_t i = 0; i < metrics.size(); ++i) {
    BOOST_TEST(metrics[i].step == static_cast<int64_t>(i) + 1);
    BOOST_TEST(metrics[i].computed_pairs >= metrics[i].useful_pairs);
  }
  // Reports come a step late, checkpoints do not.
  std::set<int64_t> checkpoints;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints_folder(whole.run.dir))) checkpoints.insert(step_of(entry.path().filename().string()).value_or(-1));
  BOOST_TEST((checkpoints == std::set<int64_t>{2, 4, 5}));
  const std::string log = log_of(whole);
  for (const char* part : {"memory of cuda:0: parameters ", "kernels: ", "cuda:0 ("}) BOOST_TEST(log.find(part) != std::string::npos, part << " is not in " << log);
  const std::map<std::string, std::string> choices = RunFolder(whole.run.dir).choices();
  BOOST_TEST(choices.at("device") == "cuda");
  BOOST_TEST(std::any_of(choices.begin(), choices.end(), [](const auto& choice) { return choice.first.starts_with("device."); }));  // algorithms of products
  for (const int64_t stop : all_tier() ? std::vector<int64_t>{0, 1, 2, 3, 4, 5} : std::vector<int64_t>{1, 4}) {
    const Config config = device_config(scratch, fmt::format("stopped-{}", stop), {"checkpoint.interval=2"});
    run_training(config, stop);
    run_training(config);
    check_same_training(whole, config, fmt::format("stopped after {}", stop));
  }
  // Control: another seed is another training.
  const Config seed = device_config(scratch, "seed", {"train.seed=43", "train.max_steps=1"});
  run_training(seed);
  BOOST_TEST((checkpoint_of(whole) != checkpoint_of(seed)));
}

BOOST_AUTO_TEST_CASE(a_resumed_run_asks_for_the_algorithms_that_it_recorded) {
  const emulation::Fresh fresh;
  Scratch scratch;
  const Config config = device_config(scratch, "run", {"metrics.trace=true"});
  run_training(config, 1);
  {
    RunFolder folder(config.run.dir);
    std::map<std::string, std::string> choices = folder.choices();
    const auto product = std::find_if(choices.begin(), choices.end(), [](const auto& choice) { return choice.first.starts_with("device.matmul."); });
    BOOST_REQUIRE(product != choices.end());
    product->second = "of another library";
    folder.store_choices(choices);
  }
  run_training(config, 2);
  const std::string log = log_of(config);
  BOOST_TEST(log.find("the recorded choice `of another library` can not be made") != std::string::npos, log);
  BOOST_TEST(log.find("handed to cuda:0, which computes later") != std::string::npos, log);  // what traces show of a device
}

BOOST_AUTO_TEST_CASE(checkpoints_go_from_the_cpu_to_the_device_and_back) {
  const emulation::Fresh fresh;
  for (const char* dtype : {"f32", "bf16"}) {
    Scratch scratch;
    const auto config = [&](const std::string& run, const char* device, int steps) {
      return small_config(scratch, run, {fmt::format("run.device={}", device), fmt::format("train.max_steps={}", steps), fmt::format("train.mixed_precision={}", dtype), "scheduler.name=constant",
                                         "scheduler.warmup_steps=0"});
    };
    run_training(config("cpu", "cpu", 6));
    run_training(config("run", "cpu", 2));
    const auto before = checkpoint_of(config("run", "cpu", 2));
    run_training(config("run", "cuda", 2));  // nothing is left to do: what is there was read
    BOOST_TEST((checkpoint_of(config("run", "cpu", 2)) == before));
    run_training(config("run", "cuda", 4));
    BOOST_TEST((checkpoint_of(config("run", "cpu", 2)) != before));
    run_training(config("run", "cpu", 6));
    const std::vector<StepMetrics> expected = metrics_of(config("cpu", "cpu", 6)), found = metrics_of(config("run", "cpu", 6));
    BOOST_REQUIRE_EQUAL(found.size(), 6u);
    for (size_t i = 0; i < found.size(); ++i)
      BOOST_TEST(std::abs(found[i].loss - expected[i].loss) <= (dtype == std::string_view("f32") ? 1e-4 : 2e-2) * expected[i].loss, "step " << i + 1);
    BOOST_TEST(log_of(config("run", "cpu", 6)).find("note: this run began on cpu and goes on on cuda") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(every_part_of_the_model_trains_on_the_device_as_on_the_cpu) {
  const emulation::Fresh fresh;
  for (const std::vector<std::string>& part : std::vector<std::vector<std::string>>{
           {"model.tie_embeddings=false", "model.qk_norm=true", "train.z_loss_weight=0.01"},
           {"model.sliding_window=[5, 0]", "model.n_kv_heads=1", "data.strategy=concat"}}) {
    Scratch scratch;
    std::vector<std::string> overrides = part;
    overrides.insert(overrides.end(), {"train.max_steps=2", "eval.interval=2"});
    const Config cpu = small_config(scratch, "cpu", overrides);
    overrides.push_back("run.device=cuda");
    const Config device = small_config(scratch, "cuda", overrides);
    run_training(cpu);
    run_training(device);
    const std::vector<StepMetrics> expected = metrics_of(cpu), found = metrics_of(device);
    BOOST_REQUIRE_EQUAL(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      BOOST_TEST(std::abs(found[i].loss - expected[i].loss) <= 1e-5 * expected[i].loss, part[0] << " step " << i + 1);
      BOOST_TEST(std::abs(found[i].grad_norm - expected[i].grad_norm) <= 1e-4 * expected[i].grad_norm);
      BOOST_TEST(found[i].useful_pairs == expected[i].useful_pairs);
    }
    BOOST_TEST(std::abs(*found.back().eval_loss - *expected.back().eval_loss) <= 1e-4 * *expected.back().eval_loss);
  }
}

BOOST_AUTO_TEST_CASE(too_little_memory_says_what_would_fit) {
  const emulation::Fresh fresh;
  Scratch scratch;
  const Config config = memory_config(scratch, "measured");
  int64_t needed = 1 << 16;
  while (!fits_memory(config, 64, needed)) needed += needed / 16;
  std::vector<int64_t> limits{needed / 2};
  if (all_tier()) limits.insert(limits.end(), {2 * needed, needed, needed / 4, needed / 8});
  limits.push_back(needed / 32);
  const std::set<std::string> said = advice_under(limits, [](int64_t limit) {
    return std::vector<std::string>{"run.device=cuda", fmt::format("run.memory_limit={}", limit)};
  });
  BOOST_TEST(said.contains(""));
  BOOST_TEST(said.size() >= 2u);
  // A device that is too small, without a limit of the run's own.
  emulation::Settings small = emulation::settings();
  small.memory = static_cast<size_t>(needed / 32);
  emulation::set(small);
  check_error<OutOfMemoryError>([&] { run_training(memory_config(scratch, "small", {"run.device=cuda"})); }, {"biggest users", "no setting of"});
}

BOOST_AUTO_TEST_CASE(a_peak_is_measured_in_the_memory_that_is_left) {
  const emulation::Fresh fresh;
  const int64_t limit = int64_t{2} << 20;
  for (const int64_t left : {int64_t{0}, int64_t{16} << 10, int64_t{64} << 10}) {  // no product's, that of 32 rows, that of 64 rows
    Rank rank(RankOptions{.device = {DeviceKind::cuda, 0}, .memory_limit = limit});
    const Tensor taken = Tensor::empty(rank, {(limit - left) / 4}, DType::f32);
    BOOST_TEST((measure_peak_flops(rank, DType::f32) > 0) == (left > 0), left << " bytes are left");
    BOOST_TEST(rank.work().flops == 0);
  }
}

BOOST_AUTO_TEST_CASE(selfcheck_passes_and_its_breaks_fail) {
  const emulation::Fresh fresh;
  Scratch scratch;
  const Config config = device_config(scratch, "run");
  SelfcheckOptions options;
  options.tokens = 96;
  const SelfcheckReport report = selfcheck(config, options);
  BOOST_TEST(report.passed(), report.table());
  BOOST_TEST(std::any_of(report.checks.begin(), report.checks.end(), [](const CheckResult& check) { return check.name.starts_with("control"); }));
  options.broken = "dropped";
  BOOST_TEST(!selfcheck(config, options).passed());
}

BOOST_AUTO_TEST_CASE(text_is_the_cpus) {
  const emulation::Fresh fresh;
  Scratch scratch;
  run_training(small_config(scratch, "run", {"train.max_steps=12"}));
  std::vector<std::vector<int32_t>> texts;
  for (const Device device : {Device{}, Device{DeviceKind::cuda, 0}}) {
    const std::unique_ptr<ModelSource> source = open_model_source(disk(), scratch.path("run"));
    Rank rank(RankOptions{.device = device, .poison = true});
    Model model(rank, source->info().model, source->info().dtype, false);
    source->load(rank, model);
    GenerationOptions options;
    options.tokens = 12;
    options.temperature = 0;
    for (const Generated& generated : generate(rank, model, {{1, 2, 3}, {7}, {100, 101}}, options)) texts.push_back(generated.tokens);
  }
  for (size_t i = 0; i < 3; ++i) BOOST_TEST(texts[i] == texts[i + 3], boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
