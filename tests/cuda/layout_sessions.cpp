// Whole runs in layouts of emulated devices: checkpoints that any layout and device reads, documents kept apart with controls that fail, devices that are too few.
#include "cuda/layouts.h"
#include "run/selfcheck.h"
#include "run/session_layouts.h"

namespace quire::test {

namespace {

/// Layouts in which two layers are enough.
Config device_run(const Scratch& scratch, const std::string& run, const Layout& layout, std::vector<std::string> overrides = {}, const std::string& device = "cuda") {
  overrides.insert(overrides.begin(), {"model.n_layers=2", "run.device=" + device, "train.seq_len=24", "train.microbatch_size=1", "scheduler.name=constant", "scheduler.warmup_steps=0",
                                       "distributed.watchdog_seconds=600"});  // kernels take long under a sanitizer
  return ranks_config(scratch, run, layout, overrides);
}

const Layout pipeline_of_contexts{2, 1, "1f1b", 1, 2, "zigzag ring"}, contexts{1, 1, "1f1b", 1, 2, "zigzag ring"}, heads{1, 1, "1f1b", 1, 2, "contiguous heads"};

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_layout_sessions)

BOOST_AUTO_TEST_CASE(a_run_in_a_layout_resumes_to_the_same_bits) {
  const emulation::Fresh fresh;
  Scratch scratch;
  const std::vector<std::string> steps{"train.max_steps=2", "eval.interval=0", "metrics.trace=true"};
  const Layout layout = all_tier() ? pipeline_of_contexts : two_stages;
  const Config whole = device_run(scratch, "whole", layout, steps), stopped = device_run(scratch, "stopped", layout, steps);
  run_training_ranks(whole);
  run_training_ranks(stopped, 1);
  run_training_ranks(stopped);
  check_same_training(whole, stopped, "stopped after a step");
  const std::string log = read_text(disk(), whole.run.dir + "/log.txt");
  for (const char* part : {"layout: ", "ranks (local and nccl): pp 2", "memory of cuda:0: parameters ", "by rank: "}) BOOST_TEST(log.find(part) != std::string::npos, part << " is not in " << log);
  BOOST_TEST(std::filesystem::exists(whole.run.dir + "/traces/step-00000001.json"));
  const std::map<std::string, std::string> choices = RunFolder(whole.run.dir).choices();
  BOOST_TEST(choices.at("device") == "cuda");
  BOOST_TEST(std::any_of(choices.begin(), choices.end(), [](const auto& choice) { return choice.first.starts_with("device."); }));
}

BOOST_AUTO_TEST_CASE(a_checkpoint_of_any_layout_goes_on_in_any_other_on_devices_and_on_the_cpu) {
  const emulation::Fresh fresh;
  Scratch scratch;
  run_training(device_run(scratch, "cpu", single, {"train.max_steps=4"}, "cpu"));
  int64_t steps = 0;
  for (const auto& [layout, device] : {std::pair<Layout, const char*>{two_stages, "cuda"}, {heads, "cuda"}, {pipeline_of_contexts, "cpu"}, {two_replicas, "cuda"}})
    run_training_ranks(device_run(scratch, "run", layout, {fmt::format("train.max_steps={}", ++steps)}, device));
  const std::vector<StepMetrics> expected = metrics_of(device_run(scratch, "cpu", single, {}, "cpu")), found = metrics_of(device_run(scratch, "run", single, {}, "cpu"));
  BOOST_REQUIRE_EQUAL(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    BOOST_TEST(std::abs(found[i].loss - expected[i].loss) <= 1e-4 * expected[i].loss, "step " << i + 1 << ": " << found[i].loss << " is not " << expected[i].loss);
    BOOST_TEST((found[i].valid_tokens == expected[i].valid_tokens && found[i].tokens == expected[i].tokens));
  }
}

BOOST_AUTO_TEST_CASE(selfcheck_of_a_layout_passes_on_devices_and_its_breaks_fail) {
  const emulation::Fresh fresh;
  Scratch scratch;
  SelfcheckOptions options;
  options.tokens = 16;
  // Of four layers both stages hold some: to a stage of the head alone no boundaries travel.
  const Config config = all_tier() ? device_run(scratch, "run", pipeline_of_contexts, {"model.n_layers=4"}) : device_run(scratch, "run", contexts);
  const SelfcheckReport report = selfcheck(config, options);
  BOOST_TEST(report.passed(), report.table());
  for (const CheckResult& check : report.checks) {
    const bool control = check.name.starts_with("control");
    if (check.layout.find("cp 2") != std::string::npos && check.name.find("probe") != std::string::npos) BOOST_TEST((check.leaked_rows == 0) == !control, check.name << ": " << check.words);
  }
  BOOST_TEST(std::count_if(report.checks.begin(), report.checks.end(), [](const CheckResult& check) { return check.name.starts_with("control"); }) >= 8);
  if (!all_tier()) return;  // the controls above are the same breaks
  for (const char* broken : {"dropped@stage1", "ring_step", "dkv_owner"}) {
    options.broken = broken;
    BOOST_TEST(!selfcheck(config, options).passed(), broken);
  }
}

BOOST_AUTO_TEST_CASE(more_ranks_than_devices_are_refused_before_anything_is_made) {
  const emulation::Fresh fresh;
  emulation::Settings settings = emulation::settings();
  settings.devices = 3;
  emulation::set(settings);
  Scratch scratch;
  const Config config = device_run(scratch, "run", pipeline_of_contexts);
  for (const RankEnd& end : ends_of_ranks(4, [&](Communicator& world) { train_as_rank(config, world); })) {
    if (end.aborted()) continue;
    for (const char* part : {"[device]", "4 ranks", "3 CUDA devices", "at most 3", "cpu"}) BOOST_TEST(end.text.find(part) != std::string::npos, end.text);
  }
  BOOST_TEST(!std::filesystem::exists(config.run.dir));
  check_error<UnsupportedError>([&] { selfcheck(config); }, {"4 ranks", "3 CUDA devices"});
  BOOST_TEST((device_of("cuda", DType::f32, {2, 3}) == Device{DeviceKind::cuda, 2}));
  // `auto` takes no emulated device.
  BOOST_TEST((device_of("auto", DType::f32, {0, 2}) == Device{}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
