// The product of what a stopped run must carry over: whatever is trained, however it goes on, the resumed run has the bits of one that never stopped.
#include <fmt/format.h>

#include "run/training_run.h"
#include "tier.h"

using namespace quire;
using namespace quire::test;

namespace {

constexpr int steps = 6;

using Values = std::vector<std::string>;

/// What a model may be beside the config of `small_config`, by the key that says it.
const Values models{"model.qk_norm=true", "model.n_kv_heads=1", "model.sliding_window=5", "model.sliding_window=[3,7]", "model.attention_backend=dense",
                    "train.z_loss_weight=1e-3", "run.instruction_set=portable"};

/// The full product leaves out values whose like it holds: 5,040 combinations.
const TestParameters& parameters() {
  static const TestParameters all{
      {"packing", {"concat", "bfd", "bfd/truncate", "single", "single/truncate"}},
      {"precision", {"f32", "bf16", "f64"}},
      {"mask", {"no", "yes"}},
      {"tied", {"yes", "no"}},
      {"model", models},
      {"scheduler", all_tier() ? Values{"cosine", "wsd"} : Values{"constant", "cosine", "linear", "wsd"}},
      {"rows", all_tier() ? Values{"2"} : Values{"2", "1"}},
      {"threads", all_tier() ? Values{"1 then 2", "2 then 1"} : Values{"1 then 1", "1 then 2", "2 then 1"}},  // until the run stops, and after
      {"recomputation", {"none then none", "none then full", "attention then none"}},
  };
  return all;
}

/// Half of `A then B`.
std::string part(const std::string& value, bool second) {
  const size_t at = value.find(" then ");
  return second ? value.substr(at + 6) : value.substr(0, at);
}

/// Ten documents: an epoch is over in two or three steps. Some are longer than a row.
void write_documents(const Scratch& scratch) {
  std::mt19937_64 random(3);
  std::ofstream plain(scratch.path("plain.jsonl")), masked(scratch.path("masked.jsonl"));
  for (int d = 0; d < 10; ++d) {
    std::string text[2];
    for (std::string& half : text)
      for (size_t i = 0; i < 1 + random() % (d % 4 == 0 ? 30 : 8); ++i) half += static_cast<char>('a' + random() % 26);
    plain << "{\"text\": \"" << text[0] << text[1] << "\"}\n";
    masked << "{\"prompt\": \"" << text[0] << "\", \"completion\": \"" << text[1] << "\"}\n";
  }
}

Config config_of(const Combination& combination, const Scratch& scratch, const std::string& run, bool second, std::vector<std::string> more = {}) {
  const std::string packing = combination["packing"], strategy = packing.substr(0, packing.find('/'));
  std::vector<std::string> overrides{
      "data.dataset_path=" + scratch.path(combination.is("mask", "yes") ? "masked.jsonl" : "plain.jsonl"),
      "train.seq_len=32", "data.separator=", "data.eval_fraction=0", "eval.interval=0", "checkpoint.interval=4", fmt::format("train.max_steps={}", steps),
      "train.mixed_precision=" + combination["precision"], combination["model"], std::string("model.tie_embeddings=") + (combination.is("tied", "yes") ? "true" : "false"),
      "scheduler.name=" + combination["scheduler"], "scheduler.warmup_steps=1", "train.microbatch_size=" + combination["rows"],
      std::string("data.pack_sequences=") + (strategy == "single" ? "false" : "true"), "data.strategy=" + (strategy == "single" ? "concat" : strategy),
      std::string("data.overflow=") + (packing.find('/') == std::string::npos ? "split" : "truncate"),
      "run.threads=" + part(combination["threads"], second), "train.activation_checkpointing=" + part(combination["recomputation"], second)};
  if (combination.is("scheduler", "wsd")) overrides.push_back("scheduler.stable_steps=2");
  overrides.insert(overrides.end(), more.begin(), more.end());
  return small_config(scratch, run, overrides);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(resuming_product)

BOOST_AUTO_TEST_CASE(every_combination_resumes_to_the_bit) {
  const Combinations combinations = combinations_of_tier(parameters());
  BOOST_TEST(missing_pairs(parameters(), combinations).empty());
  int stop = 0, crossed = 0;
  for (const Combination& combination : combinations) {
    Scratch scratch;
    write_documents(scratch);
    const Config whole = config_of(combination, scratch, "whole", false), before = config_of(combination, scratch, "stopped", false);
    const Config after = config_of(combination, scratch, "stopped", true);
    stop = stop % (steps - 1) + 1;  // 1 to 5 in turn; stopping at 0 and at every step is tested in tests/run
    run_training(whole);
    run_training(before, stop);
    // Control: weights alone, without moments, step and place in the data, are not enough.
    const Config control = config_of(combination, scratch, "control", true, {"checkpoint.load_path=" + before.run.dir});
    run_training(control);
    run_training(after);
    check_same_training(whole, after, fmt::format("{}, stopped after {}", combination.text(), stop));
    BOOST_TEST((checkpoint_of(whole) != checkpoint_of(control)), combination.text());
    crossed += metrics_of(whole).back().epoch > 0;
  }
  BOOST_TEST(crossed > 0);
  BOOST_TEST_MESSAGE(fmt::format("{} combinations, {} of them across an epoch's end", combinations.size(), crossed));
}

BOOST_AUTO_TEST_SUITE_END()
