// Pipelines, context ranks and replicas whose ranks have an emulated device each: what the CPU's ranks compute, without a host read inside a step, to the same bits again.
#include "cuda/layouts.h"

#include <fmt/format.h>

namespace quire::test {

namespace {

using Overrides = std::vector<std::string>;

Overrides pipeline(const std::string& schedule = "1f1b", int64_t pp = 2) {
  const bool two = schedule.starts_with("interleaved") || schedule == "zb_v";
  return {fmt::format("distributed.pp={}", pp), "distributed.pp_schedule=" + schedule, fmt::format("distributed.pp_chunks={}", two ? 2 : 1)};
}
Overrides context(const std::string& layout, const std::string& exchange, int64_t cp = 2) {
  return {fmt::format("distributed.cp={}", cp), "distributed.cp_layout=" + layout, "distributed.cp_exchange=" + exchange};
}
Overrides both(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string name_of(const Overrides& overrides) { return fmt::format("{}", fmt::join(overrides, " ")); }

/// Against the CPU's run of the same layout, by the rule for f32, and the losses of all steps.
void check_against_cpu(const Overrides& overrides) {
  static const LayoutRun exact = run_tiny(of_one_rank(tiny_layout("cpu", "f64")), 1), alone = run_tiny(of_one_rank(tiny_layout("cpu", "f32")), 1);

  const LayoutRun cpu = run_tiny(tiny_layout("cpu", "f32", overrides)), device = run_tiny(tiny_layout("cuda", "f32", overrides));
  const std::string name = name_of(overrides), beyond = beyond_rule(device.gradients.at(0), cpu.gradients.at(0), alone.gradients.at(0), exact.gradients.at(0));
  BOOST_TEST(beyond == "", name << ": " << beyond);
  BOOST_TEST(device.disagreements.empty(), name << ": ranks disagree on " << (device.disagreements.empty() ? "" : device.disagreements.front()));
  for (size_t i = 0; i < cpu.steps.size(); ++i) {
    const StepResult &found = device.steps.at(i), &expected = cpu.steps[i];
    BOOST_TEST(std::abs(found.loss - expected.loss) <= 1e-3 * expected.loss, name << ", step " << i + 1 << ": " << found.loss << " is not " << expected.loss);
    BOOST_TEST((found.valid_tokens == expected.valid_tokens && found.tokens == expected.tokens && found.useful_pairs == expected.useful_pairs && found.padding == expected.padding), name);
    BOOST_TEST(found.balance == expected.balance, name);
    BOOST_TEST(!found.skipped, name);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_layouts)

BOOST_AUTO_TEST_CASE(a_pipeline_trains_as_the_cpus) {
  const emulation::Fresh fresh;
  check_against_cpu(pipeline());
}

BOOST_AUTO_TEST_CASE(context_ranks_train_as_the_cpus) {
  const emulation::Fresh fresh;
  for (const auto& [layout, exchange] : all_tier() ? std::vector<std::pair<std::string, std::string>>{{"balanced", "ring"}, {"zigzag", "gather"}, {"contiguous", "heads"}}
                                                  : std::vector<std::pair<std::string, std::string>>{{"zigzag", "ring"}})
    check_against_cpu(context(layout, exchange));
}

BOOST_AUTO_TEST_CASE(context_ranks_under_a_pipeline_train_as_the_cpus) {
  const emulation::Fresh fresh;
  check_against_cpu(both(pipeline(), context("zigzag", "gather")));
}

BOOST_AUTO_TEST_CASE(replicas_train_as_the_cpus) {
  const emulation::Fresh fresh;
  check_against_cpu({"distributed.dp_replicate=2"});
}

BOOST_AUTO_TEST_CASE(pipelines_have_the_bits_of_one_device) {
  const emulation::Fresh fresh;
  const Overrides layers = all_tier() ? Overrides{} : Overrides{"model.n_layers=4"};  // for four stages
  const LayoutRun expected = run_tiny(of_one_rank(tiny_layout("cuda", "f32", layers)));
  for (const char* schedule : {"1f1b", "interleaved_1f1b", "zb_v", "gpipe", "zb_h1"}) {
    if (!all_tier() && std::string_view(schedule) != "1f1b" && std::string_view(schedule) != "zb_v") continue;  // the product has them all
    BOOST_TEST(bit_difference(run_tiny(tiny_layout("cuda", "f32", both(layers, pipeline(schedule)))), expected) == "", schedule);
  }
  // Control: another seed is another training.
  BOOST_TEST(bit_difference(expected, run_tiny(tiny_layout("cuda", "f32", both(layers, {"train.seed=43", "distributed.pp=2"})), 1)) != "");
}

BOOST_AUTO_TEST_CASE(a_training_has_the_same_bits_again_at_any_pace_of_threads_and_streams) {
  const emulation::Fresh fresh;
  for (const Overrides& overrides : {both(pipeline(), context("zigzag", "ring")), Overrides{"distributed.dp_replicate=2"}}) {
    if (!all_tier() && overrides.size() == 1) continue;
    const Config config = tiny_layout("cuda", "f32", overrides);
    const LayoutRun first = run_tiny(config);
    emulation::Settings settings = emulation::settings();
    settings.order = emulation::Order::random;
    settings.pace = emulation::Pace::random;
    settings.seed = 5;
    emulation::set(settings);
    BOOST_TEST(bit_difference(run_tiny(config), first) == "", name_of(overrides));
    emulation::set(emulation::Settings{});
  }
}

// The smallest of all, which ThreadSanitizer's run takes too (tests/cuda/sanitize).
BOOST_AUTO_TEST_CASE(two_and_four_ranks_work_in_any_order) {
  const emulation::Fresh fresh;
  emulation::order(emulation::Order::random, 3);
  const Overrides small{"model.n_layers=2", "model.dim=8", "model.n_heads=1", "model.n_kv_heads=1", "model.head_dim=8", "model.ffn_hidden_dim=8", "train.seq_len=12", "train.global_batch_size=2",
                        "train.microbatch_size=1"};
  const double expected = run_tiny(of_one_rank(tiny_layout("cpu", "f32", small)), 1).steps.at(0).loss;
  for (const Overrides& overrides : {pipeline(), context("zigzag", "ring"), Overrides{"distributed.dp_replicate=2"}, both(pipeline(), context("contiguous", "heads"))}) {
    Overrides all = both(small, overrides);
    if (overrides.back().ends_with("heads")) all.insert(all.end(), {"model.n_heads=2", "model.n_kv_heads=2", "model.head_dim=4"});
    const StepResult step = run_tiny(tiny_layout("cuda", "f32", all), 1).steps.at(0);
    BOOST_TEST(std::abs(step.loss - expected) <= 1e-2 * expected, name_of(overrides) << ": " << step.loss << " is not " << expected);
    BOOST_TEST(!step.skipped);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
