// A step of training with cuDNN's attention, beside the same with `block`.
#include "cuda/cudnn_there.h"
#include "emulation.h"
#include "ops/kernel_test.h"
#include "run/config_schema.h"
#include "run/data_source.h"
#include "run/probes.h"
#include "run/rank_options.h"
#include "run/selfcheck.h"
#include "run/trainer.h"
#include "run/training_run.h"
#include "runtime/accelerator.h"

namespace quire::test {
namespace {

/// tiny.toml with heads that cuDNN has, cut.
Config small(const std::string& device, const std::string& dtype, const std::string& backend, std::vector<std::string> overrides = {}) {
  std::vector<std::string> all{"run.device=" + device, "train.mixed_precision=" + dtype, "run.threads=1", "model.attention_backend=" + backend, "model.n_layers=2", "model.dim=32",
                               "model.n_heads=2", "model.n_kv_heads=1", "model.head_dim=64", "model.ffn_hidden_dim=48", "train.seq_len=48", "train.global_batch_size=2"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return load_config(QUIRE_SOURCE_ROOT "/tools/configs/tiny.toml", all);
}

struct Step {
  double loss = 0;
  std::vector<std::string> names;
  std::vector<std::vector<double>> gradients;
  int64_t host_reads = 0, graphs = 0;
  std::string forward, backward;
  std::vector<std::string> notes;
};

Step step_of(const Config& config) {
  RankOptions options = rank_options(config);
  options.poison = true;
  Rank rank(options);
  Trainer trainer(rank, config);
  Loader loader(open_data(config).train, trainer.loader_settings());
  Step step;
  emulation::reset_counters();
  const int64_t before = rank.accelerator() != nullptr ? rank.accelerator()->host_reads() : 0;
  trainer.begin_step();
  trainer.forward_backward(loader.next_step());
  trainer.submit();
  step.graphs = emulation::counters().graphs;
  if (rank.accelerator() != nullptr) {
    step.host_reads = rank.accelerator()->host_reads() - before;
    step.notes = rank.accelerator()->take_notes();
  }
  step.loss = trainer.collect().loss;
  for (const Parameter& p : trainer.model().parameters()) {
    step.names.push_back(p.name);
    step.gradients.push_back(host_values(p.gradients[0]));
  }
  step.forward = rank.chosen_kernels()["attention_forward"];
  step.backward = rank.chosen_kernels()["attention_backward"];
  return step;
}

struct TrainingTest {
  const emulation::Fresh fresh;
  const bool there = has_cudnn();
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(cuda_cudnn_training, TrainingTest)

BOOST_AUTO_TEST_CASE(a_step_is_that_of_block) {
  if (!there) return;
  const Step exact = step_of(small("cpu", "f64", "block")), block = step_of(small("cuda", "bf16", "block")), found = step_of(small("cuda", "bf16", "cudnn"));
  BOOST_TEST((found.forward == "cudnn" && found.backward == "cudnn"));
  BOOST_TEST((block.forward == "tensor_cores" && block.graphs == 0));
  BOOST_TEST(found.graphs == 2 * 2 * 1);  // forward and backward of two layers; all documents are of one length class
  BOOST_TEST(found.host_reads == 0);
  BOOST_TEST(found.notes.empty());
  BOOST_TEST(std::abs(found.loss - exact.loss) <= std::max(2 * std::abs(block.loss - exact.loss), 4 * 0x1p-7 * exact.loss));
  for (size_t i = 0; i < exact.gradients.size(); ++i) {
    double largest = 0, of_block = 0, of_found = 0;
    for (size_t j = 0; j < exact.gradients[i].size(); ++j) {
      largest = std::max(largest, std::abs(exact.gradients[i][j]));
      of_block = std::max(of_block, std::abs(block.gradients[i][j] - exact.gradients[i][j]));
      const double error = std::abs(found.gradients[i][j] - exact.gradients[i][j]);
      of_found = error > of_found || std::isnan(error) ? error : of_found;
    }
    BOOST_TEST(of_found <= std::max(2 * of_block, 4 * 0x1p-7 * largest), exact.names[i] << ": " << of_found << " off with cudnn, " << of_block << " with block, of " << largest);
  }
}

BOOST_AUTO_TEST_CASE(bits_and_windows) {
  if (!there) return;
  const std::vector<std::string> window = {"model.sliding_window=[0,5]"};
  const Step first = step_of(small("cuda", "bf16", "cudnn", window));
  BOOST_TEST(first.graphs == 2);  // the other layer is block's
  BOOST_TEST(first.notes.size() == 1u);
  for (const char* recomputation : {"none", "attention", "full"}) {
    std::vector<std::string> overrides = window;
    overrides.push_back(std::string("train.activation_checkpointing=") + recomputation);
    const Step again = step_of(small("cuda", "bf16", "cudnn", overrides));
    BOOST_TEST((again.loss == first.loss && again.gradients == first.gradients), recomputation);
  }
}

BOOST_AUTO_TEST_CASE(a_run_is_recorded_and_resumes_to_the_same_bits) {
  if (!there) return;
  Scratch scratch;
  const auto config = [&](const char* run, const char* steps) {
    return small_config(scratch, run, {"run.device=cuda", "train.mixed_precision=bf16", "model.attention_backend=cudnn", "model.head_dim=64", "model.n_heads=2", "model.n_kv_heads=1",
                                       "model.n_layers=1", std::string("train.max_steps=") + steps});
  };
  run_training(config("whole", "3"));
  run_training(config("parts", "1"));
  run_training(config("parts", "3"));
  const std::vector<StepMetrics> whole = metrics_of(config("whole", "3")), parts = metrics_of(config("parts", "3"));
  BOOST_TEST_REQUIRE((whole.size() == 3u && parts.size() == 3u));
  for (size_t i = 0; i < 3; ++i) BOOST_TEST(whole[i].loss == parts[i].loss);
  const std::string choices = read_text(disk(), scratch.path("parts") + "/choices.json");
  for (const char* part : {"attention.forward.heads=2", "attention.backward.heads=2", "engine="}) BOOST_TEST(choices.find(part) != std::string::npos, choices);
}

BOOST_AUTO_TEST_CASE(selfcheck_looks_at_it_too) {
  if (!there) return;
  Scratch scratch;
  const Config config = small_config(scratch, "run", {"run.device=cuda", "train.mixed_precision=bf16", "model.attention_backend=cudnn", "model.head_dim=64", "model.n_heads=2",
                                                      "model.n_kv_heads=1", "model.n_layers=1"});
  SelfcheckOptions options;
  options.tokens = 48;
  const SelfcheckReport report = selfcheck(config, options);
  BOOST_TEST(report.passed(), report.table());
  BOOST_TEST(std::any_of(report.checks.begin(), report.checks.end(), [](const CheckResult& check) { return check.backend == "cudnn" && check.name.starts_with("control"); }), report.table());
  options.broken = "dropped";
  const SelfcheckReport broken = selfcheck(config, options);
  BOOST_TEST(std::any_of(broken.checks.begin(), broken.checks.end(), [](const CheckResult& check) { return check.backend == "cudnn" && !check.passed; }), broken.table());
}

BOOST_AUTO_TEST_CASE(heads_that_it_has_not_end_a_run_at_its_start) {
  if (!there) return;
  check_error<UnsupportedError>([&] { step_of(small("cuda", "bf16", "cudnn", {"model.head_dim=20"})); }, {"[attention]", "cuDNN 9.", "heads of 20", "d_qk % 8"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
