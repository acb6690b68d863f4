// Generation: cached decoding is the forward pass; sequences do not know each other; sampling keeps to its options.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "check.h"
#include "device.h"
#include "files.h"
#include "model/generation.h"
#include "model/huggingface.h"
#include "runtime/file.h"

using namespace quire;
using namespace quire::test;

namespace {

ModelConfig generating_config() {
  ModelConfig config;
  config.dim = 32;
  config.n_layers = 3;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.vocab_size = 61;
  config.ffn_hidden_dim = 48;
  config.max_seq_len = 96;
  config.init_std = 0.3;  // far from uniform, so that a wrong key changes the text
  config.qk_norm = true;
  return config;
}

struct Setup {
  Rank rank;
  Model model;
  Setup(const ModelConfig& config, DType dtype, bool poison = true, int threads = 1)
      : rank(on_device({.threads = threads, .poison = poison}, dtype)), model(rank, config, dtype, dtype == DType::bf16) {  // bf16 weights are rounded from masters
    model.initialize(rank, 5);
  }
};

std::vector<std::vector<int32_t>> random_prompts(std::mt19937_64& random, size_t count, int32_t vocabulary) {
  std::vector<std::vector<int32_t>> prompts(count);
  for (auto& prompt : prompts) {
    prompt.resize(1 + random() % 20);
    for (int32_t& token : prompt) token = static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary));
  }
  return prompts;
}

/// Logits after the last token by one uncached pass.
std::vector<double> last_logits(Setup& setup, const std::vector<int32_t>& tokens) {
  const std::vector<int32_t> targets(tokens.size(), ignored_target);
  const int64_t length = static_cast<int64_t>(tokens.size());
  const Microbatch microbatch = Microbatch::make(setup.rank, tokens, targets, Documents::from_lengths(std::span(&length, 1)));
  Tape tape(setup.rank, false);
  const Tensor logits = setup.model.logits(setup.rank, setup.model.hidden(tape, microbatch).tensor.slice(0, length - 1, length));
  if (logits.dtype() == DType::f64) return logits.to_vector<double>();
  const std::vector<float> values = logits.to_vector<float>();
  return {values.begin(), values.end()};
}

/// The executor that the cache must equal, and the cache itself, token by token: logits after each prefix.
std::vector<double> cached_logits(Setup& setup, const std::vector<int32_t>& tokens, int64_t prefill, int64_t sequences, int64_t slot) {
  CachedAttention cache(setup.rank, setup.model.config(), setup.model.dtype(), sequences, static_cast<int64_t>(tokens.size()) + 3);
  std::vector<double> result;
  for (int64_t read = 0; read < static_cast<int64_t>(tokens.size());) {
    const int64_t count = read == 0 ? prefill : 1, start = slot * cache.capacity();
    std::vector<int32_t> part, indices, starts;
    for (int64_t i = read; i < read + count; ++i) {
      part.push_back(tokens[static_cast<size_t>(i)]);
      indices.push_back(static_cast<int32_t>(start + i));
      starts.push_back(static_cast<int32_t>(start));
    }
    const std::vector<int32_t> targets(part.size(), ignored_target);
    const Microbatch microbatch = Microbatch::make(setup.rank, part, targets, Documents::shard(indices, starts));
    Tape tape(setup.rank, false);
    ForwardOptions forward;
    forward.attention = &cache;
    const Tensor hidden = setup.model.hidden(tape, microbatch, forward).tensor;
    const std::vector<double> logits = setup.model.logits(setup.rank, hidden.slice(0, count - 1, count)).to_vector<double>();
    result.insert(result.end(), logits.begin(), logits.end());
    read += count;
  }
  return result;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(generation)

BOOST_AUTO_TEST_CASE(cached_logits_equal_those_of_the_uncached_pass, *cpu_only()) {
  std::mt19937_64 random(1);
  for (const auto& [window, backend] : {std::pair<int64_t, std::string>{0, "block"}, {5, "block"}, {0, "dense"}, {1, "dense"}}) {
    ModelConfig config = generating_config();
    config.sliding_window = {window, 0, window};
    config.attention_backend = backend;
    Setup setup(config, DType::f64);
    std::vector<int32_t> tokens(60);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 61);
    const int64_t prefill = 1 + static_cast<int64_t>(random() % 30);
    std::vector<double> uncached;
    for (size_t length = static_cast<size_t>(prefill); length <= tokens.size(); ++length) {
      const std::vector<double> logits = last_logits(setup, std::vector<int32_t>(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(length)));
      uncached.insert(uncached.end(), logits.begin(), logits.end());
    }
    BOOST_TEST(relative_difference(cached_logits(setup, tokens, prefill, 3, 1), uncached) < 1e-12);
    // The control: a cache that keeps another token's key is seen.
    std::vector<int32_t> other = tokens;
    other[static_cast<size_t>(prefill - 1)] = (other[static_cast<size_t>(prefill - 1)] + 1) % 61;
    BOOST_TEST(relative_difference(cached_logits(setup, other, prefill, 1, 0), uncached) > 1e-6);
  }
}

BOOST_AUTO_TEST_CASE(greedy_text_is_the_argmax_of_uncached_passes) {
  std::mt19937_64 random(2);
  for (const DType dtype : device_dtypes({DType::f64, DType::f32})) {
    Setup setup(generating_config(), dtype);
    const auto prompts = random_prompts(random, on_cpu() ? 5 : 2, 61);
    GenerationOptions options;
    options.tokens = 50;  // the cache grows on the way
    options.temperature = 0;
    const std::vector<Generated> texts = generate(setup.rank, setup.model, prompts, options);
    for (size_t s = 0; s < prompts.size(); ++s) {
      std::vector<int32_t> tokens = prompts[s];
      BOOST_REQUIRE_EQUAL(texts[s].tokens.size(), 50u);
      BOOST_TEST((texts[s].end == GenerationEnd::tokens));
      for (size_t i = 0; i < texts[s].tokens.size(); ++i) {
        if (on_cpu() || i < 5 || i > 40) {
          const std::vector<double> logits = last_logits(setup, tokens);
          BOOST_REQUIRE_EQUAL(texts[s].tokens[i], std::max_element(logits.begin(), logits.end()) - logits.begin());
        }
        tokens.push_back(texts[s].tokens[i]);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_sequence_is_the_same_alone_and_beside_others_to_the_bit) {
  std::mt19937_64 random(3);
  for (const DType dtype : device_dtypes({DType::f64, DType::f32, DType::bf16}))
    for (const int64_t window : {0, 7}) {
      if (!on_cpu() && (window == 0) == (dtype == DType::f32)) continue;
      ModelConfig config = generating_config();
      config.sliding_window = {window};
      Setup setup(config, dtype);
      const auto prompts = random_prompts(random, on_cpu() ? 7 : 3, 61);
      GenerationOptions options;
      options.tokens = on_cpu() ? 60 : 12;
      options.end_tokens = {3, 17};  // sequences end at different steps, and the cache is packed anew without them
      const std::vector<Generated> together = generate(setup.rank, setup.model, prompts, options);
      std::set<size_t> lengths;
      for (size_t s = 0; s < prompts.size(); ++s) {
        GenerationOptions own = options;
        own.first_sequence = static_cast<int64_t>(s);
        const Generated alone = generate(setup.rank, setup.model, {prompts[s]}, own).at(0);
        BOOST_TEST(alone.tokens == together[s].tokens, boost::test_tools::per_element());
        BOOST_TEST((alone.end == together[s].end));
        lengths.insert(alone.tokens.size());
        // The control: another number is another text.
        own.first_sequence += 1000;
        if (alone.tokens.size() > 10) BOOST_TEST(generate(setup.rank, setup.model, {prompts[s]}, own).at(0).tokens != alone.tokens);
      }
      if (on_cpu()) BOOST_TEST(lengths.size() > 1u);
      Setup two(config, dtype, false, 2);
      const std::vector<Generated> threads = generate(two.rank, two.model, prompts, options);
      for (size_t s = 0; s < prompts.size(); ++s) BOOST_TEST(threads[s].tokens == together[s].tokens, boost::test_tools::per_element());
    }
}

BOOST_AUTO_TEST_CASE(the_seed_decides_and_the_callback_sees_every_token_in_order) {
  Setup setup(generating_config(), DType::f32);
  const std::vector<std::vector<int32_t>> prompts = {{1, 2}, {1, 2}, {9}};
  GenerationOptions options;
  options.tokens = 20;
  std::vector<std::vector<int32_t>> seen(3);
  const std::vector<Generated> first = generate(setup.rank, setup.model, prompts, options, [&](size_t s, int32_t token) { seen[s].push_back(token); });
  const std::vector<Generated> again = generate(setup.rank, setup.model, prompts, options);
  options.seed = 2;
  const std::vector<Generated> other = generate(setup.rank, setup.model, prompts, options);
  for (size_t s = 0; s < 3; ++s) {
    BOOST_TEST(first[s].tokens == seen[s]);
    BOOST_TEST(first[s].tokens == again[s].tokens);
    BOOST_TEST(first[s].tokens != other[s].tokens);
  }
  BOOST_TEST(first[0].tokens != first[1].tokens);  // equal prompts, different numbers
}

BOOST_AUTO_TEST_CASE(a_sequence_ends_at_its_end_token_at_its_length_and_at_the_model_s_context) {
  Setup setup(generating_config(), DType::f32);
  GenerationOptions options;
  options.temperature = 0;
  options.tokens = 30;
  const std::vector<int32_t> text = generate(setup.rank, setup.model, {{4}}, options).at(0).tokens;
  const int32_t end = text[7];
  const auto first = std::find(text.begin(), text.end(), end);
  options.end_tokens = {end};
  const Generated ended = generate(setup.rank, setup.model, {{4}}, options).at(0);
  BOOST_TEST((ended.end == GenerationEnd::end_token));
  BOOST_TEST(ended.tokens == std::vector<int32_t>(text.begin(), first + 1));
  options.end_tokens.clear();
  options.tokens = 1000;
  const Generated full = generate(setup.rank, setup.model, {{4, 5, 6}}, options).at(0);
  BOOST_TEST((full.end == GenerationEnd::context));
  BOOST_TEST(full.tokens.size() == 96u - 3 + 1);  // the last one is predicted from max_seq_len tokens
  options.tokens = 0;
  BOOST_TEST(generate(setup.rank, setup.model, {{4}}, options).at(0).tokens.empty());
  BOOST_TEST(generate(setup.rank, setup.model, {}, options).empty());
}

BOOST_AUTO_TEST_CASE(sampling_keeps_to_its_options, *cpu_only()) {
  std::mt19937_64 random(4);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<double> logits(40);
    for (double& x : logits) x = static_cast<double>(random() % 7);  // with ties
    std::vector<int32_t> order(40);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
    GenerationOptions options;
    options.temperature = 0;
    BOOST_TEST(sample_token(logits, options, 0, 0) == order[0]);
    options.temperature = 0.7;
    options.top_k = 1;
    BOOST_TEST(sample_token(logits, options, 0, static_cast<uint64_t>(trial)) == order[0]);
    options.top_k = 5;
    const std::set<int32_t> best(order.begin(), order.begin() + 5);
    for (uint64_t position = 0; position < 50; ++position) BOOST_TEST(best.contains(sample_token(logits, options, 1, position)));
    options.top_k = 0;
    options.top_p = 0.6;
    double sum = 0, so_far = 0;
    for (const double x : logits) sum += std::exp(x / 0.7);
    std::set<int32_t> nucleus;
    for (const int32_t id : order) {
      if (so_far >= 0.6 * sum) break;
      nucleus.insert(id);
      so_far += std::exp(logits[static_cast<size_t>(id)] / 0.7);
    }
    BOOST_TEST(nucleus.size() < 40u);
    for (uint64_t position = 0; position < 50; ++position) BOOST_TEST(nucleus.contains(sample_token(logits, options, 2, position)));
  }
}

BOOST_AUTO_TEST_CASE(tokens_are_drawn_as_often_as_the_softmax_says, *cpu_only()) {
  const std::vector<double> logits = {std::log(0.5), std::log(0.3), std::log(0.15), std::log(0.05)};
  const auto frequencies = [&](double temperature) {
    GenerationOptions options;
    options.temperature = temperature;
    std::vector<double> counts(4);
    for (uint64_t i = 0; i < 20000; ++i) counts[static_cast<size_t>(sample_token(logits, options, i / 100, i % 100))] += 1.0 / 20000;
    return counts;
  };
  const std::vector<double> at_one = frequencies(1), at_half = frequencies(0.5);
  double sum = 0;
  for (const double x : logits) sum += std::exp(2 * x);
  for (size_t i = 0; i < 4; ++i) {
    BOOST_TEST(std::abs(at_one[i] - std::exp(logits[i])) < 0.015);  // four standard deviations
    BOOST_TEST(std::abs(at_half[i] - std::exp(2 * logits[i]) / sum) < 0.015);
  }
}

BOOST_AUTO_TEST_CASE(a_trained_model_continues_greedily_as_its_reference, *cpu_only()) {
  if (!cases_present()) return;
  const std::string folder = cases + "/stories260K";
  const nlohmann::json reference = nlohmann::json::parse(read_text(disk(), folder + "/import_check.json"));
  const std::vector<int32_t> wanted = reference.at("greedy_200_tokens").get<std::vector<int32_t>>();
  const HuggingFaceModel weights = open_huggingface(disk(), folder + "/hf");
  for (const DType dtype : {DType::f64, DType::f32}) {
    Rank rank;
    Model model(rank, weights.config().model, dtype, false);
    for (const Parameter& parameter : model.parameters()) weights.read(parameter.name, dtype, parameter.value.raw());
    GenerationOptions options;
    options.tokens = 200;
    options.temperature = 0;
    const std::vector<Generated> texts = generate(rank, model, {{1}, {1, 403}, {1}}, options);
    for (const size_t s : {0, 2}) {
      std::vector<int32_t> all = {1};
      all.insert(all.end(), texts[s].tokens.begin(), texts[s].tokens.end());
      BOOST_TEST(all == wanted, boost::test_tools::per_element());
    }
  }
}

BOOST_AUTO_TEST_CASE(wrong_prompts_and_options_are_refused) {
  Setup setup(generating_config(), DType::f32);
  const auto run = [&](std::vector<int32_t> prompt, GenerationOptions options = {}) { generate(setup.rank, setup.model, {std::move(prompt)}, options); };
  check_error<ConfigError>([&] { run({}); }, {"[generate]", "empty", "BOS"});
  check_error<ConfigError>([&] { run(std::vector<int32_t>(97, 1)); }, {"97 tokens", "at most 96"});
  check_error<DataError>([&] { run({61}); }, {"61"});
  check_error<DataError>([&] { run({-1}); }, {"-1"});
  check_error<ConfigError>([&] { run({1}, {.temperature = -1}); }, {"temperature", "-1"});
  check_error<ConfigError>([&] { run({1}, {.temperature = std::nan("")}); }, {"temperature"});
  check_error<ConfigError>([&] { run({1}, {.top_p = 0}); }, {"top_p"});
  check_error<ConfigError>([&] { run({1}, {.top_k = -2}); }, {"top_k", "-2"});
  const Tensor gain = setup.model.parameters().find("norm.weight").value;
  std::vector<float> values = gain.to_vector<float>();
  values[3] = std::nanf("");
  write<float>(setup.rank, gain, values);
  check_error<NonFiniteError>([&] { run({1}); }, {"not finite"});
  CachedAttention cache(setup.rank, setup.model.config(), DType::f32, 1, 4);
  const std::vector<int32_t> two = {1, 2};
  const int64_t length = 2;
  const Microbatch microbatch = Microbatch::make(setup.rank, two, two, Documents::from_lengths(std::span(&length, 1)));
  ForwardOptions forward;
  forward.attention = &cache;
  Tape tape(setup.rank);
  check_error<StateError>([&] { setup.model.hidden(tape, microbatch, forward); }, {"gradient"});
}

BOOST_AUTO_TEST_SUITE_END()
