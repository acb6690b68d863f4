// FAULTS.md 34 and 35 under pipelines and replicas: denominators are the global batch's, and microbatches, replicas or batches without a target contribute
// exact zeros, join every collective and change no weight.
#include "layout_case.h"
#include "ops/elementwise.h"

using namespace quire;
using namespace quire::test;

namespace {

/// Documents of one row each, of which those named are scored.
std::shared_ptr<MemoryCorpus> rows_scored(const std::vector<bool>& scored) {
  CorpusInfo info;
  info.vocabulary_size = product_eos + 1;
  info.eos = product_eos;
  auto corpus = std::make_shared<MemoryCorpus>(info);
  std::mt19937_64 random(5);
  for (const bool score : scored) {
    std::vector<int32_t> tokens(4 + random() % 12, product_eos);
    for (size_t i = 0; i + 1 < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(random() % product_eos);
    corpus->add(tokens, std::vector<uint8_t>(tokens.size(), score ? uint8_t{1} : uint8_t{0}));
  }
  return corpus;
}

Config rows_config(int64_t pp, int64_t dp, const std::string& schedule, const std::string& precision) {
  Config config = fault_layout(pp, schedule, dp);
  set_parameter(config, "packing", "single");
  config.data.shuffle = false;
  config.train.mixed_precision = precision;
  return config;
}

const std::vector<std::tuple<int64_t, int64_t, std::string>> empty_layouts = {  // pp, dp, schedule
    {2, 1, "1f1b"}, {3, 1, "gpipe"}, {2, 1, "interleaved_1f1b 3"}, {3, 1, "zb_h1"}, {2, 2, "zb_v"}, {1, 2, "1f1b"}, {2, 3, "1f1b"}, {1, 3, "1f1b"}};

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_34_35)

BOOST_AUTO_TEST_CASE(entry_34_uniform_logits_read_ln_v_in_every_layout) {
  const auto corpus = layout_corpus();
  for (const auto& [pp, dp, schedule] : empty_layouts) {
    Config config = fault_layout(pp, schedule, dp);
    config.train.mixed_precision = "f64";
    config.model.tie_embeddings = false;
    const LayoutRunOptions options = with_uniform_logits();
    const LayoutRun run = run_layout(config, corpus, options);
    BOOST_TEST(std::abs(run.steps[0].loss - std::log(23.0)) < 1e-12, schedule << ", pp " << pp << ", dp " << dp);
    BOOST_TEST(std::abs(run.evaluation - std::log(23.0)) < 1e-12, schedule << ", pp " << pp << ", dp " << dp);
  }
}

BOOST_AUTO_TEST_CASE(entry_34_35_one_scored_document_gives_the_same_gradient_wherever_it_lies) {
  for (size_t where = 0; where < 6; ++where) {
    std::vector<bool> scored(6, false);
    scored[where] = true;
    const auto corpus = rows_scored(scored);
    for (const auto& [pp, dp, schedule] : empty_layouts) {
      const LayoutRun one = run_layout(rows_config(1, 1, "1f1b", "f32"), corpus, {.steps = 2}), run = run_layout(rows_config(pp, dp, schedule, "f32"), corpus, {.steps = 2});
      BOOST_TEST(one.steps[0].valid_tokens > 0);
      BOOST_TEST(one.steps[0].gradient_norm > 0);
      // All others add exact zeros: the order of additions does not matter, and replicas too have the bits of one process.
      BOOST_TEST(bit_difference(run, one) == "", schedule << ", pp " << pp << ", dp " << dp << ", document " << where);
      if (dp == 1) continue;
      // The control: each replica divides by the targets of its own.
      LayoutRunOptions local;
      local.steps = 2;
      local.step = [](Trainer& trainer, const LoadedStep& batch) {
        LoadedStep other = batch;
        other.plan.valid = 0;
        for (const HostBatch& host : batch.microbatches) other.plan.valid += host.valid;
        other.plan.valid = std::max<int64_t>(1, other.plan.valid) * trainer.share().count;
        return trainer.step(other);
      };
      BOOST_TEST(largest_difference(run_layout(rows_config(pp, dp, schedule, "f32"), corpus, local), one) > 0.1);
    }
  }
}

BOOST_AUTO_TEST_CASE(entry_35_a_batch_without_a_target_changes_no_weight_in_any_layout) {
  // Two steps of six rows: nothing is scored in the first, everything in the second.
  std::vector<bool> scored(12, true);
  std::fill_n(scored.begin(), 6, false);
  const auto corpus = rows_scored(scored);
  for (const auto& [pp, dp, schedule] : empty_layouts)
    for (const char* precision : {"f64", "bf16"}) {
      const LayoutRun one = run_layout(rows_config(1, 1, "1f1b", precision), corpus, {.steps = 2});
      std::mutex mutex;
      int64_t unchanged = 0, changed = 0, zeros = 0;
      LayoutRunOptions options;
      options.steps = 2;
      options.step = [&](Trainer& trainer, const LoadedStep& batch) {
        const auto before = masters_of(trainer);
        const StepResult result = trainer.step(batch);
        bool zero = true;
        for (const Parameter& p : trainer.model().parameters())
          for (const double g : as_doubles(p.gradients.at(0))) zero = zero && g == 0;
        const std::lock_guard lock(mutex);
        zeros += zero;
        (masters_of(trainer) == before ? unchanged : changed) += 1;
        return result;
      };
      const LayoutRun run = run_layout(rows_config(pp, dp, schedule, precision), corpus, options);
      const std::string what = fmt::format("{}, pp {}, dp {}, {}", schedule, pp, dp, precision);
      BOOST_TEST(run.steps[0].skipped, what);
      BOOST_TEST(run.steps[0].valid_tokens == 0, what);
      BOOST_TEST(run.steps[0].loss == 0.0, what);
      BOOST_TEST(zeros == pp * dp, what);      // the first step, on every rank
      BOOST_TEST(unchanged == pp * dp, what);
      BOOST_TEST(changed == pp * dp, what);    // the control: the second
      BOOST_TEST(!run.steps[1].skipped, what);
      if (dp == 1) BOOST_TEST(bit_difference(run, one) == "", what);
    }
}

BOOST_AUTO_TEST_SUITE_END()
