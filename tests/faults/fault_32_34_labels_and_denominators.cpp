// FAULTS.md 32 and 34 under context parallelism: labels were shifted after the cut, so that each shard lost its last target or took the next chunk's first token; and
// each rank divided by the targets of its own.
#include "context_case.h"
#include "run/selfcheck.h"

using namespace quire;
using namespace quire::test;

namespace {

std::vector<Config> label_layouts() {
  std::vector<Config> all;
  for (const int64_t cp : {2, 3, 8})
    for (const auto& [layout, exchange] : context_layouts) all.push_back(context_config(cp, layout, exchange));
  all.push_back(context_config(2, "balanced", "ring", 2));
  all.push_back(context_config(2, "zigzag", "gather", 2));
  Config replicas = context_config(2, "contiguous", "heads", 2);
  replicas.distributed.dp_replicate = 2;
  all.push_back(resolved(replicas));
  return all;
}

/// Documents of 30 tokens and more, in all more than a step of eight rows has, with a single scored target: token `place` of document `number`.
std::shared_ptr<MemoryCorpus> one_scored(size_t number, size_t place) {
  CorpusInfo info;
  info.vocabulary_size = product_eos + 1;
  info.eos = product_eos;
  auto corpus = std::make_shared<MemoryCorpus>(info);
  std::mt19937_64 random(5);
  for (size_t document = 0; document < 8; ++document) {
    std::vector<int32_t> tokens(30 + random() % 20, product_eos);
    for (size_t i = 0; i + 1 < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(random() % product_eos);
    std::vector<uint8_t> mask(tokens.size());
    if (document == number) mask[place] = 1;
    corpus->add(tokens, mask);
  }
  return corpus;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_32_34)

BOOST_AUTO_TEST_CASE(entry_32_every_input_token_keeps_its_target_wherever_the_row_is_cut) {
  const auto corpus = layout_corpus();
  for (const Config& config : label_layouts()) {
    Probing probing(config);
    int64_t changed = 0;
    for (int64_t row = 0; row < 3; ++row) {
      Config shuffled = config;
      shuffled.train.data_seed = row;
      const ProbeRow packed = packed_probe_row(shuffled, corpus, 64);
      const CheckResult check = target_check(probing.ranks, packed, {});
      BOOST_TEST(check.passed, name_of(config) << ": " << check.words);
      if (!probing.ranks.labels_change(packed.input)) continue;  // every shard ends where a document does
      ++changed;
      const CheckResult control = target_check(probing.ranks, packed, {AttentionBackend::block, "labels"});
      BOOST_TEST(!control.passed, name_of(config));
      BOOST_TEST(control.leaked_rows <= 2 * config.distributed.cp);  // at most at the end of each range
    }
    BOOST_TEST(changed > 0, name_of(config));
  }
}

BOOST_AUTO_TEST_CASE(entry_32_a_lost_and_an_exchanged_target_are_seen) {
  Probing probing(context_config(2, "zigzag", "ring"));
  ProbeRow row = packed_probe_row(probing.config, layout_corpus(), 64);
  const auto found = probing.ranks.targets(row.input, {});
  const auto scored = std::find_if(row.input.targets.begin(), row.input.targets.end(), [](int32_t t) { return t != ignored_target; });
  *scored = ignored_target;
  BOOST_TEST((probing.ranks.targets(row.input, {}) != found));
  *scored = 1 + *scored;
  BOOST_TEST((probing.ranks.targets(row.input, {}) != found));
}

BOOST_AUTO_TEST_CASE(entry_34_uniform_logits_read_ln_v_in_training_and_evaluation_in_every_layout) {
  const auto corpus = layout_corpus();
  for (Config config : label_layouts()) {
    config.model.tie_embeddings = false;
    LayoutRunOptions options = with_uniform_logits();
    const LayoutRun run = run_layout(resolved(config), corpus, options);
    BOOST_TEST(std::abs(run.steps[0].loss - std::log(23.0)) < 1e-12, name_of(config));
    BOOST_TEST(std::abs(run.evaluation - std::log(23.0)) < 1e-12, name_of(config));
    // The control: another denominator on each rank.
    options.step = step_with_own_denominator;
    options.evaluate = false;
    if (config.distributed.pp == 1) BOOST_TEST(std::abs(run_layout(resolved(config), corpus, options).steps[0].loss - std::log(23.0)) > 1e-6, name_of(config));
  }
}

BOOST_AUTO_TEST_CASE(entry_34_one_scored_target_gives_the_same_gradient_in_every_layout) {
  for (const auto& [number, place] : std::vector<std::pair<size_t, size_t>>{{0, 3}, {2, 1}, {4, 20}}) {
    const auto corpus = one_scored(number, place);
    const auto with_all_rows = [](Config config) {  // less than an epoch
      config.train.global_batch_size = 8;
      config.data.shuffle = false;
      return resolved(config);
    };
    const LayoutRunOptions options{.steps = 1, .evaluate = false};
    std::map<int64_t, LayoutRun> alone;  // by stages, which have as many layers as they need
    for (const int64_t pp : {1, 2}) {
      alone[pp] = run_layout(with_all_rows(in_one_process(context_config(1, "balanced", "ring", pp))), corpus, options);
      BOOST_TEST(alone[pp].steps[0].valid_tokens == 1);
      BOOST_TEST(alone[pp].steps[0].gradient_norm > 0);
    }
    for (const Config& config : label_layouts()) {
      const LayoutRun& one = alone.at(config.distributed.pp);
      const LayoutRun run = run_layout(with_all_rows(config), corpus, options);
      BOOST_TEST(run.steps[0].valid_tokens == one.steps[0].valid_tokens);
      BOOST_TEST(largest_difference(run, one) < 1e-11, name_of(config) << ": " << largest_difference(run, one));
      LayoutRunOptions own = options;
      own.step = step_with_own_denominator;
      BOOST_TEST(largest_difference(run_layout(with_all_rows(config), corpus, own), one) > 0.1, name_of(config));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
