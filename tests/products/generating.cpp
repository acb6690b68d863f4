// The product of what a model may be and how its text is computed: with the cache, side by side, each text is the one that uncached passes over
// the whole sequence give.
#include <fmt/format.h>

#include "check.h"
#include "model/generation.h"
#include "ops/cpu/instruction_set.h"
#include "tier.h"

using namespace quire;
using namespace quire::test;

namespace {

constexpr int64_t new_tokens = 9;

const TestParameters& parameters() {
  static const TestParameters all{
      {"qk_norm", {"no", "yes"}},  {"kv_heads", {"1", "2", "4"}},     {"window", {"none", "4", "3,0"}},          {"tied", {"yes", "no"}},
      {"precision", {"f64", "f32", "bf16"}}, {"backend", {"block", "dense"}}, {"instruction_set", instruction_sets()}, {"threads", {"1", "2"}},
      {"temperature", {"0", "0.8"}},
  };
  return all;
}

ModelConfig model_of(const Combination& combination) {
  ModelConfig config;
  config.dim = 16;
  config.n_layers = 2;
  config.n_heads = 4;
  config.n_kv_heads = std::stoll(combination["kv_heads"]);
  config.vocab_size = 31;
  config.ffn_hidden_dim = 24;
  config.max_seq_len = 32;
  config.init_std = 0.4;  // far from uniform: a key that is wrong changes the text
  config.qk_norm = combination.is("qk_norm", "yes");
  config.tie_embeddings = combination.is("tied", "yes");
  if (!combination.is("window", "none")) config.sliding_window = combination.is("window", "4") ? std::vector<int64_t>{4} : std::vector<int64_t>{3, 0};
  config.attention_backend = combination["backend"];
  return config.resolved();
}

/// Logits after the last token, by one pass over the whole sequence.
std::vector<double> last_logits(Rank& rank, Model& model, const std::vector<int32_t>& tokens) {
  const std::vector<int32_t> targets(tokens.size(), ignored_target);
  const int64_t length = static_cast<int64_t>(tokens.size());
  const Microbatch microbatch = Microbatch::make(rank, tokens, targets, Documents::from_lengths(std::span(&length, 1)));
  Tape tape(rank, false);
  const Tensor logits = model.logits(rank, model.hidden(tape, microbatch).tensor.slice(0, length - 1, length));
  if (logits.dtype() == DType::f64) return logits.to_vector<double>();
  const std::vector<float> values = logits.to_vector<float>();
  return {values.begin(), values.end()};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(generating_product)

BOOST_AUTO_TEST_CASE(every_combination_says_what_uncached_passes_say) {
  const Combinations combinations = combinations_of_tier(parameters());
  BOOST_TEST(missing_pairs(parameters(), combinations).empty());
  const std::vector<std::vector<int32_t>> prompts{{3}, {7, 1, 30, 2, 9, 9, 4}, {5, 5}};
  int64_t wrong = 0, seen = 0;
  for (const Combination& combination : combinations) {
    Rank rank(RankOptions{.threads = std::stoi(combination["threads"]), .poison = true, .instruction_set = combination["instruction_set"]});
    const DType dtype = dtype_from(combination["precision"]);
    Model model(rank, model_of(combination), dtype, dtype == DType::bf16);  // bf16 weights are rounded from masters
    model.initialize(rank, 5);
    GenerationOptions options;
    options.tokens = new_tokens;
    options.temperature = std::stod(combination["temperature"]);
    const std::vector<Generated> texts = generate(rank, model, prompts, options);
    bool same = true, control = true;
    for (size_t s = 0; s < prompts.size(); ++s) {
      std::vector<int32_t> tokens = prompts[s], shifted = prompts[s];
      shifted[0] = (shifted[0] + 1) % 31;  // the control: another first token, so another key for those that see it
      for (const int32_t token : texts[s].tokens) {
        same = same && token == sample_token(last_logits(rank, model, tokens), options, s, tokens.size());
        control = control && token == sample_token(last_logits(rank, model, shifted), options, s, tokens.size());
        tokens.push_back(token);
        shifted.push_back(token);
      }
      same = same && static_cast<int64_t>(texts[s].tokens.size()) == new_tokens;
    }
    if (!same && ++wrong < 10) BOOST_ERROR(combination.text() << ": other text than without a cache");
    seen += !control;
  }
  BOOST_TEST(wrong == 0);
  BOOST_TEST(seen == static_cast<int64_t>(combinations.size()), "the control is seen in " << seen << " of " << combinations.size());
  BOOST_TEST_MESSAGE(fmt::format("{} combinations", combinations.size()));
}

BOOST_AUTO_TEST_SUITE_END()
