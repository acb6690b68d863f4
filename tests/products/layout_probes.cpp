// The product of pipelines and what a stage computes, probed: no token reaches another document, and no gradient, at any layout.
//
// Each combination: leak, gradient and alone probes on the microbatch that the real loader gives and on two equal documents, with another microbatch before and
// after it in flight. Controls: boundaries dropped everywhere, dropped by each stage that receives them and attends (the first, a middle one, the last), and
// records of two microbatches in flight swapped; in each of them both probes must see the leak. A pipeline of one stage has the first alone.
// The full tier runs the full product of all parameters but the first three, whose values are drawn for each: 144 layouts.
//
// A second product has context ranks, alone and under pipelines: besides these, documents that ranks must share, and received keys that are masked as one document. What can not
// show such a leak in any of the rows (windows so short that no document's beginning sees another rank's keys) has no such control.
#include <fmt/format.h>

#include "layout_product.h"
#include "run/pipeline_stages.h"
#include "run/ranks_layout.h"
#include "run/selfcheck.h"
#include "run/shared_documents.h"

using namespace quire;
using namespace quire::test;

namespace {

const TestParameters& parameters() {
  static const TestParameters all{
      {"layers", {"by cost", "first", "ends"}},
      {"tied", {"yes", "no"}},
      {"threads", {"1", "2"}},
      {"pp", {"4", "3", "2", "1"}},
      {"schedule", {"1f1b", "gpipe", "interleaved_1f1b 2", "interleaved_1f1b 3", "zb_h1", "zb_v", "file"}},
      {"recomputation", {"none", "attention", "full"}},
      {"precision", {"f32", "bf16", "f64"}},
  };
  return all;
}

const TestParameters& context_parameters() {
  static const TestParameters all{
      {"model", {"plain", "windows", "norms"}},
      {"schedule", {"1f1b", "interleaved_1f1b 2", "zb_v"}},
      {"recomputation", {"none", "attention", "full"}},
      {"precision", {"f32", "bf16", "f64"}},
      {"context", {"balanced ring", "balanced gather", "contiguous ring", "contiguous gather", "contiguous heads", "zigzag ring", "zigzag gather"}},
      {"cp", {"2", "3", "8"}},
      {"pp", {"1", "2"}},
  };
  return all;
}

/// 24 heads, which all of the rank numbers divide, and one key/value head where the model has one.
Config context_config_of(const Combination& combination) {
  TestParameters others = context_parameters();  // the heads come first: not every exchange takes any
  std::erase_if(others, [](const TestParameter& p) { return p.name == "cp" || p.name == "context"; });
  Config config = layout_config(others, combination);
  for (const char* name : {"cp", "context"}) set_layout_parameter(config, name, combination[name]);
  config.model.n_kv_heads = config.model.n_kv_heads == 1 ? 1 : 24;
  config.model.n_heads = 24;
  config.model.head_dim = 2;
  return resolved(config);
}

class Probed {
 public:
  Probed(const Combination& combination, const Config& config)
      : combination_(combination), config_(config), rank_(poisoned()), model_(rank_, config_.model, config_.dtype()),
        stages_(pipeline_stages(config_)) {
    forward_.recomputation = recomputation_from(config_.train.activation_checkpointing);
    model_.initialize(rank_, 1);
  }

  /// Counts in `controls` which breaks had a control.
  void check(std::map<std::string, int>& controls) {
    RanksLayout ranks(poisoned(), model_, stages_, forward_, context_sharing(config_));
    SingleLayout single(rank_, model_, forward_);
    const int64_t tokens = config_.distributed.cp == 1 ? 64 : 48;
    const ProbeRow packed = packed_probe_row(config_, layout_corpus(), tokens);
    std::vector<ProbeRow> rows{equal_probe_row(config_.model, packed.input, tokens), packed};
    if (ranks.planner() != nullptr && !keys_travel(*ranks.planner()->plan(packed.input.documents)))
      if (std::optional<ProbeRow> shared = shared_probe_row(config_.model, *ranks.planner(), packed.input)) rows.push_back(std::move(*shared));
    std::map<std::string, int> seen;
    for (const CheckResult& result : check_layout(ranks, single, config_.model, rows)) {
      BOOST_TEST(result.passed, combination_.text() << ": " << result.name << ", " << result.backend << ": " << result.words);
      const bool control = result.name.starts_with("control");
      if (control) BOOST_TEST(result.leaked_rows > 0, combination_.text() << ": " << result.name);
      else BOOST_TEST(result.leaked_rows == 0, combination_.text() << ": " << result.name);
      if (!control && result.name.find("leak") != std::string::npos && result.name.find("equal") != std::string::npos && config_.dtype() == DType::f32 && influence_reach(config_.model) < 0)
        BOOST_TEST(result.changed_fraction == 0.5, combination_.text() << ": " << result.name);
      ++seen[control ? result.name.substr(0, result.name.find(':')) : "probes"];
    }
    for (const std::string& broken : ranks.breaks()) {
      const bool possible = std::any_of(rows.begin(), rows.end(), [&](const ProbeRow& row) { return ranks.leak_of(row.input, broken).has_value(); });
      BOOST_TEST(possible == (seen[fmt::format("control, {}", broken)] > 0), combination_.text() << ": control for " << broken);
      controls[broken.substr(0, broken.find('@'))] += possible;
    }
  }

 private:
  RankOptions poisoned() const {
    RankOptions options = rank_options(config_);
    options.poison = true;
    return options;
  }
  const Combination& combination_;
  Config config_;
  Rank rank_;
  Model model_;
  PipelineStages stages_;
  ForwardOptions forward_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(layout_probes_product)

BOOST_AUTO_TEST_CASE(no_layout_lets_a_document_reach_another) {
  const Combinations combinations = combinations_with_drawn(parameters(), 3);
  BOOST_TEST(missing_pairs(parameters(), combinations).empty());
  std::map<std::string, int> controls;
  for (const Combination& combination : combinations) Probed(combination, layout_config(parameters(), combination)).check(controls);
  BOOST_TEST_MESSAGE(fmt::format("{} layouts probed", combinations.size()));
}

BOOST_AUTO_TEST_CASE(no_context_rank_lets_a_document_reach_another) {
  const Combinations combinations = combinations_with_drawn(context_parameters(), 4);
  BOOST_TEST(missing_pairs(context_parameters(), combinations).empty());
  std::map<std::string, int> controls;
  for (const Combination& combination : combinations) Probed(combination, context_config_of(combination)).check(controls);
  for (const char* broken : {"dropped", "swapped", "ring_step"}) BOOST_TEST(controls[broken] > static_cast<int>(combinations.size()) / 5, broken);
  BOOST_TEST_MESSAGE(fmt::format("{} layouts probed", combinations.size()));
}

BOOST_AUTO_TEST_SUITE_END()
