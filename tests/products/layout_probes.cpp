// The product of pipelines and what a stage computes, probed: no token reaches another document, and no gradient, at any layout.
//
// Each combination: leak, gradient and alone probes on the microbatch that the real loader gives and on two equal documents, with another microbatch before and
// after it in flight. Controls: boundaries dropped everywhere, dropped by each stage that receives them and attends (the first, a middle one, the last), and
// records of two microbatches in flight swapped; in each of them both probes must see the leak. A pipeline of one stage has the first alone.
// The full tier runs the full product of all parameters but the first three, whose values are drawn for each: 144 layouts.
#include <fmt/format.h>

#include "layout_product.h"
#include "run/pipeline_layout.h"
#include "run/selfcheck.h"

using namespace quire;
using namespace quire::test;

namespace {

const TestParameters& parameters() {
  static const TestParameters all{
      {"layers", {"by cost", "first", "ends"}},
      {"tied", {"yes", "no"}},
      {"threads", {"1", "2"}},
      {"pp", {"4", "3", "2", "1"}},
      {"schedule", {"1f1b", "gpipe", "interleaved_1f1b 2", "interleaved_1f1b 3"}},
      {"recomputation", {"none", "attention", "full"}},
      {"precision", {"f32", "bf16", "f64"}},
  };
  return all;
}

class Probed {
 public:
  explicit Probed(const Combination& combination)
      : combination_(combination), config_(layout_config(parameters(), combination)), rank_(poisoned()), model_(rank_, config_.model, config_.dtype()),
        stages_(cut_into_stages(config_.model, config_.distributed.pp_schedule, config_.distributed.pp, config_.distributed.pp_chunks, config_.distributed.pp_layers)) {
    forward_.recomputation = recomputation_from(config_.train.activation_checkpointing);
    model_.initialize(rank_, 1);
  }

  void check() {
    PipelineLayout pipeline(poisoned(), model_, stages_, forward_);
    SingleLayout single(rank_, model_, forward_);
    const ProbeRow packed = packed_probe_row(config_, layout_corpus(), 64);
    const std::vector<ProbeRow> rows{equal_probe_row(config_.model, packed.input, 64), packed};
    std::map<std::string, int> seen;
    for (const CheckResult& result : check_layout(pipeline, single, config_.model, rows)) {
      BOOST_TEST(result.passed, combination_.text() << ": " << result.name << ", " << result.backend << ": " << result.words);
      const bool control = result.name.starts_with("control");
      if (control) BOOST_TEST(result.leaked_rows > 0, combination_.text() << ": " << result.name);
      else BOOST_TEST(result.leaked_rows == 0, combination_.text() << ": " << result.name);
      if (!control && result.name.find("leak") != std::string::npos && result.name.find("equal") != std::string::npos && config_.dtype() == DType::f32)
        BOOST_TEST(result.changed_fraction == 0.5, combination_.text() << ": " << result.name);
      ++seen[control ? result.name.substr(0, result.name.find(':')) : "probes"];
    }
    for (const std::string& broken : pipeline_breaks(stages_)) BOOST_TEST(seen[fmt::format("control, {}", broken)] > 0, combination_.text() << ": no control for " << broken);
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
  for (const Combination& combination : combinations) Probed(combination).check();
  BOOST_TEST_MESSAGE(fmt::format("{} layouts probed", combinations.size()));
}

BOOST_AUTO_TEST_SUITE_END()
