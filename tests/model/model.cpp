// The decoder: gradients, identical bits where they are promised, packed documents as alone, initial weights.
#include "model/model.h"

#include <algorithm>
#include <map>
#include <optional>

#include "gradient.h"
#include "model/decoder_case.h"

using namespace quire;
using namespace quire::test;

namespace {

const std::vector<int64_t> several = {1, 40, 3, 1, 64, 7, 65, 1};

struct Built {
  Rank rank;
  Model model;
  Built(const ModelConfig& config, DType dtype, int threads = 2, uint64_t seed = 1)
      : rank(on_device({.threads = threads, .poison = true}, dtype)), model(rank, config, dtype) {
    model.initialize(rank, seed);
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(model)

BOOST_AUTO_TEST_CASE(gradients_equal_finite_differences, *cpu_only()) {
  std::mt19937_64 random(1);
  const Batch batch = random_batch(random, {1, 5, 2, 6}, 11);
  for (const bool tied : {false, true})
    for (const bool qk_norm : {false, true})
      for (const std::vector<int64_t>& window : {std::vector<int64_t>{}, std::vector<int64_t>{0, 3}}) {
        ModelConfig config = small_config();
        config.dim = 8;
        config.vocab_size = 11;
        config.head_dim = 4;
        config.ffn_hidden_dim = 12;
        config.tie_embeddings = tied;
        config.qk_norm = qk_norm;
        config.sliding_window = window;
        Built built(config, DType::f64);
        const Microbatch microbatch = batch.on(built.rank);
        std::vector<Parameter*> parameters;
        for (Parameter& p : built.model.parameters()) parameters.push_back(&p);
        ForwardOptions options;
        options.z_weight = qk_norm ? 0.05 : 0;
        check_gradient(built.rank, [&](Tape& t, std::span<const Value>) { return built.model.loss(t, microbatch, options); }, {}, parameters, 1e-6, 6);
      }
}

BOOST_AUTO_TEST_CASE(recomputation_threads_split_backward_and_an_announced_gradient_change_no_bit) {
  std::mt19937_64 random(2);
  for (const DType dtype : device_dtypes({DType::f64, DType::f32, DType::bf16}))
    for (const char* backend : device_backends()) {
      ModelConfig config = small_config();
      config.attention_backend = backend;
      config.qk_norm = true;
      config.sliding_window = {0, 50};
      config.tie_embeddings = backend == std::string_view("dense");
      const Batch batch = random_batch(random, several, config.vocab_size);
      const double scale = 1.0 / 179;
      std::optional<Outcome> first;
      for (const int threads : {1, 2, 3})
        for (const Recomputation recomputation : {Recomputation::none, Recomputation::attention, Recomputation::full})
          for (const BackwardMode mode : {BackwardMode::full, BackwardMode::input_only}) {
            if (threads == 3 && mode == BackwardMode::full) continue;  // enough of the product
            if (!on_cpu() && dtype == DType::bf16 && recomputation == Recomputation::attention) continue;
            if (!on_cpu() && threads != (mode == BackwardMode::full ? 1 : 2)) continue;  // threads compute nothing
            Built built(config, dtype, threads);
            ForwardOptions options;
            options.recomputation = recomputation;
            if (threads > 1) options.loss_gradient = Tensor::from<double>(built.rank, {1}, Doubles{scale});
            const Outcome found = outcome(built.rank, built.model, batch.on(built.rank), options, mode, scale);
            if (!first) first = found;
            BOOST_TEST((found == *first), "other bits: " << name_of(dtype) << " " << backend << " threads " << threads << " recomputation "
                                                         << static_cast<int>(recomputation) << " mode " << static_cast<int>(mode));
          }
      BOOST_TEST(std::isfinite(first->loss));
    }
}

BOOST_AUTO_TEST_CASE(block_and_dense_agree, *cpu_only()) {
  std::mt19937_64 random(3);
  ModelConfig config = small_config();
  config.sliding_window = {0, 30};
  const Batch batch = random_batch(random, several, config.vocab_size);
  Built block(config, DType::f64);
  config.attention_backend = "dense";
  Built dense(config, DType::f64);
  const Outcome a = outcome(block.rank, block.model, batch.on(block.rank)), b = outcome(dense.rank, dense.model, batch.on(dense.rank));
  BOOST_TEST(std::abs(a.loss - b.loss) <= 1e-12 * b.loss);
  BOOST_TEST(relative_difference(a.logits, b.logits) < 1e-12);
  for (size_t p = 0; p < a.gradients.size(); ++p) BOOST_TEST(relative_difference(a.gradients[p], b.gradients[p]) < 1e-11);
  BOOST_TEST(block.rank.chosen_kernels().at("attention_forward") == "block");
  BOOST_TEST(dense.rank.chosen_kernels().at("attention_forward") == "dense");
}

BOOST_AUTO_TEST_CASE(packed_documents_are_trained_as_alone) {
  std::mt19937_64 random(4);
  const DType widest = on_cpu() ? DType::f64 : DType::f32;
  const double tolerance = on_cpu() ? 1e-12 : 1e-4;
  for (const char* backend : device_backends())
    for (const std::vector<int64_t>& window : {std::vector<int64_t>{}, std::vector<int64_t>{20}}) {
      ModelConfig config = small_config();
      config.attention_backend = backend;
      config.qk_norm = true;
      config.sliding_window = window;
      const Batch batch = random_batch(random, several, config.vocab_size);
      Built built(config, widest);
      const Outcome packed = outcome(built.rank, built.model, batch.on(built.rank));
      double loss = 0;
      std::vector<Doubles> gradients;
      for (size_t d = 0; d < batch.lengths.size(); ++d) {
        const Outcome alone = outcome(built.rank, built.model, batch.alone(d).on(built.rank));
        const int64_t begin = batch.begin_of(d), end = begin + batch.lengths[d];
        const Doubles logits = rows_of(packed.logits, config.vocab_size, begin, end), at_embedding = rows_of(packed.embedding_gradient, config.dim, begin, end);
        if (on_cpu()) {  // A document's rows have the very bits that they have alone: row-wise operations do not see the other rows.
          BOOST_TEST((logits == alone.logits));
          BOOST_TEST((at_embedding == alone.embedding_gradient));
        } else {  // A device's tiles of keys begin at multiples of 64 wherever documents do, so that sums are cut elsewhere.
          BOOST_TEST(relative_difference(logits, alone.logits) < tolerance);
          BOOST_TEST(relative_difference(at_embedding, alone.embedding_gradient) < tolerance);
        }
        loss += alone.loss;
        gradients.resize(alone.gradients.size());
        for (size_t p = 0; p < gradients.size(); ++p) {
          gradients[p].resize(alone.gradients[p].size());
          for (size_t i = 0; i < gradients[p].size(); ++i) gradients[p][i] += alone.gradients[p][i];
        }
      }
      BOOST_TEST(std::abs(packed.loss - loss) <= tolerance * loss);
      for (size_t p = 0; p < gradients.size(); ++p) BOOST_TEST(relative_difference(packed.gradients[p], gradients[p]) < tolerance);
      // The control: the same tokens with the boundaries dropped are clearly another function.
      Batch dropped = batch;
      dropped.lengths = {batch.size()};
      const Outcome unpacked = outcome(built.rank, built.model, dropped.on(built.rank));
      BOOST_TEST(std::abs(unpacked.loss - packed.loss) > 1e-3 * packed.loss);
      BOOST_TEST(relative_difference(unpacked.gradients[1], packed.gradients[1]) > 1e-2);
    }
}

BOOST_AUTO_TEST_CASE(narrow_types_follow_f64) {
  // DESIGN section 6 at model level needs a plain model of the same type; here the gross error is bounded, kernels hold the rule themselves.
  std::mt19937_64 random(5);
  ModelConfig config = small_config();
  config.init_std = 0.1;
  const Batch batch = random_batch(random, several, config.vocab_size);
  Built wide(config, DType::f64), single(config, DType::f32), half(config, DType::bf16);
  const Outcome exact = outcome(wide.rank, wide.model, batch.on(wide.rank)), f32 = outcome(single.rank, single.model, batch.on(single.rank)),
                bf = outcome(half.rank, half.model, batch.on(half.rank));
  BOOST_TEST(std::abs(f32.loss / exact.loss - 1) < 1e-5);
  BOOST_TEST(std::abs(bf.loss / exact.loss - 1) < 1e-2);
  for (size_t p = 0; p < exact.gradients.size(); ++p) {
    BOOST_TEST(relative_difference(f32.gradients[p], exact.gradients[p]) < 1e-4);
    BOOST_TEST(relative_difference(bf.gradients[p], exact.gradients[p]) < 0.2);
  }
}

BOOST_AUTO_TEST_CASE(parts_of_the_model_are_the_whole) {
  std::mt19937_64 random(6);
  const ModelConfig config = small_config();
  Built built(config, DType::f32);
  const Microbatch microbatch = random_batch(random, several, config.vocab_size).on(built.rank);
  std::vector<std::string> names;
  for (const auto& layer : built.model.layers()) names.push_back(layer->name());
  BOOST_TEST((names == std::vector<std::string>{"embedding", "layers.0", "layers.1", "norm", "head"}));
  Tape whole(built.rank, false), parts(built.rank, false);
  const double loss = built.model.loss(whole, microbatch).tensor.to_vector<double>()[0];
  Value x;
  for (size_t i = 0; i < names.size(); ++i) x = built.model.forward(parts, std::move(x), microbatch, {}, i, i + 1);
  BOOST_TEST(x.tensor.to_vector<double>()[0] == loss);
  // Loss per token sums to the loss.
  const std::vector<float> each = built.model.losses(built.rank, built.model.hidden(whole, microbatch).tensor, microbatch).to_vector<float>();
  double sum = 0;
  for (const float l : each) sum += l;
  BOOST_TEST(sum == loss);
  BOOST_TEST(std::count_if(each.begin(), each.end(), [](float l) { return l != 0; }) == microbatch.valid);
}

BOOST_AUTO_TEST_CASE(every_use_of_every_parameter_is_done_once) {
  std::mt19937_64 random(7);
  for (const bool tied : {false, true}) {
    if (!on_cpu() && !tied) continue;
    ModelConfig config = small_config();
    config.tie_embeddings = tied;
    config.qk_norm = true;
    for (const std::vector<int64_t>& lengths : {several, std::vector<int64_t>{}})  // a microbatch without tokens joins everything too
      for (const Recomputation recomputation : {Recomputation::none, Recomputation::attention, Recomputation::full})
        for (const BackwardMode mode : {BackwardMode::full, BackwardMode::input_only}) {
          Built built(config, DType::f32);
          const Microbatch microbatch = random_batch(random, lengths, config.vocab_size).on(built.rank);
          std::map<std::string, int> done;
          Tape tape(built.rank);
          tape.set_parameter_hook([&](Parameter& p, int use) { ++done[p.name + "/" + std::to_string(use)]; });
          ForwardOptions options;
          options.recomputation = recomputation;
          const Value loss = built.model.loss(tape, microbatch, options);
          const Tensor one = Tensor::from<double>(built.rank, {1}, Doubles{1});
          tape.backward(std::span(&loss, 1), std::span(&one, 1), mode);
          if (mode == BackwardMode::input_only) tape.backward_weights();
          size_t uses = 0;
          for (const Parameter& p : built.model.parameters()) uses += static_cast<size_t>(p.uses);
          BOOST_TEST(done.size() == uses);
          for (const auto& [name, count] : done) BOOST_TEST(count == 1, name << " done " << count << " times");
          if (!lengths.empty()) continue;
          BOOST_TEST(loss.tensor.to_vector<double>()[0] == 0);
          for (const Parameter& p : built.model.parameters())
            for (const double g : widened(built.rank, p.gradients[0])) BOOST_REQUIRE_EQUAL(g, 0);
        }
  }
}

BOOST_AUTO_TEST_CASE(recomputation_keeps_less) {
  std::mt19937_64 random(8);
  const ModelConfig config = small_config();
  Built built(config, DType::f32);
  const Microbatch microbatch = random_batch(random, several, config.vocab_size).on(built.rank);
  const auto kept = [&](Recomputation recomputation) {
    Tape tape(built.rank);
    ForwardOptions options;
    options.recomputation = recomputation;
    built.model.loss(tape, microbatch, options);
    return tape.saved_bytes();
  };
  const int64_t none = kept(Recomputation::none), attention = kept(Recomputation::attention), full = kept(Recomputation::full);
  BOOST_TEST(attention < none);
  BOOST_TEST(full < attention);
  // Full: a hidden state per layer, and what the embedding, the last norm and the head keep.
  const int64_t tokens = microbatch.size(), hidden = tokens * config.dim * 4;
  BOOST_TEST(full == config.n_layers * hidden + 2 * hidden + 2 * tokens * 4 + 2 * tokens * 4);
}

BOOST_AUTO_TEST_CASE(a_step_leaves_no_memory_behind) {
  std::mt19937_64 random(9);
  const ModelConfig config = small_config();
  Built built(config, DType::f32);
  const Microbatch microbatch = random_batch(random, several, config.vocab_size).on(built.rank);
  int64_t in_use = 0, calls = 0;
  for (int step = 0; step < 5; ++step) {
    outcome(built.rank, built.model, microbatch, {}, step % 2 ? BackwardMode::input_only : BackwardMode::full);
    if (step == 1) {
      in_use = built.rank.allocator().in_use();
      calls = built.rank.allocator().system_calls();
    }
    if (step > 1) {
      BOOST_TEST(built.rank.allocator().in_use() == in_use);
      BOOST_TEST(built.rank.allocator().system_calls() == calls);
    }
  }
}

BOOST_AUTO_TEST_CASE(initial_weights_depend_on_seed_and_name_only) {
  ModelConfig config = small_config(), deeper = config;
  deeper.n_layers = 5;
  Built a(config, DType::f64, 1), threads(config, DType::f64, 3), b(deeper, DType::f64), seed(config, DType::f64, 1, 2), single(config, DType::f32);
  const double residual = std::sqrt(5.0 / 2.0);  // layers that write into the residual stream are scaled by the depth
  for (const Parameter& p : a.model.parameters()) {
    const Doubles values = p.value.to_vector<double>(), other = b.model.parameters().find(p.name).value.to_vector<double>();
    BOOST_TEST((threads.model.parameters().find(p.name).value.to_vector<double>() == values));
    if (p.init_std == b.model.parameters().find(p.name).init_std) {
      BOOST_TEST((other == values));
    } else {
      Doubles scaled = other;
      for (double& v : scaled) v *= residual;
      BOOST_TEST(relative_difference(scaled, values) < 1e-14);
    }
    if (p.init_std == 0) {
      for (const double v : values) BOOST_REQUIRE_EQUAL(v, 1);
      continue;
    }
    const Doubles another = seed.model.parameters().find(p.name).value.to_vector<double>();
    const std::vector<float> narrow = single.model.parameters().find(p.name).value.to_vector<float>();
    double squares = 0;
    int equal = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      equal += values[i] == another[i];
      BOOST_REQUIRE_EQUAL(narrow[i], static_cast<float>(values[i]));
      squares += values[i] * values[i];
    }
    BOOST_TEST(equal == 0);
    BOOST_TEST(std::abs(std::sqrt(squares / static_cast<double>(values.size())) / p.init_std - 1) < 0.25);
  }
  // Two parameters of one shape have nothing in common.
  BOOST_TEST((a.model.parameters().find("layers.0.ffn.gate.weight").value.to_vector<double>() !=
              a.model.parameters().find("layers.0.ffn.up.weight").value.to_vector<double>()));
}

BOOST_AUTO_TEST_CASE(a_model_for_evaluation_computes_the_same_without_gradients) {
  std::mt19937_64 random(10);
  const ModelConfig config = small_config();
  const Batch batch = random_batch(random, several, config.vocab_size);
  Built trained(config, DType::f32);
  Rank rank(on_device());
  Model evaluated(rank, config, DType::f32, false);
  evaluated.initialize(rank, 1);
  BOOST_TEST(rank.allocator().counters(Category::gradients).current == 0);
  BOOST_TEST((logits_of(rank, evaluated, batch.on(rank)) == logits_of(trained.rank, trained.model, batch.on(trained.rank))));
}

BOOST_AUTO_TEST_CASE(the_null_device_plans_a_large_model, *cpu_only()) {
  Rank rank(RankOptions{.device = {DeviceKind::null, 0}});
  ModelConfig config;
  config.dim = 4096;
  config.n_layers = 32;
  config.n_heads = 32;
  config.n_kv_heads = 8;
  config.vocab_size = 128'256;
  config.max_seq_len = 64;
  config.tie_embeddings = false;
  Model large(rank, config, DType::bf16);
  large.initialize(rank, 1);
  BOOST_TEST(large.parameters().elements() == config.parameter_count());
  BOOST_TEST(rank.allocator().counters(Category::parameters).current >= 2 * config.parameter_count());
  std::mt19937_64 random(11);
  Tape tape(rank);
  const Value loss = large.loss(tape, random_batch(random, {30, 34}, 1000).on(rank));
  const Tensor one = Tensor::empty(rank, {1}, DType::f64);
  tape.backward(std::span(&loss, 1), std::span(&one, 1));
  BOOST_TEST(rank.allocator().counters(Category::activations).peak > 0);
}

BOOST_AUTO_TEST_CASE(wrong_calls_are_refused) {
  std::mt19937_64 random(12);
  ModelConfig config = small_config();
  config.max_seq_len = 8;
  Built built(config, DType::f32);
  logits_of(built.rank, built.model, random_batch(random, {8, 8}, 23).on(built.rank));
  check_error<ConfigError>([&] { logits_of(built.rank, built.model, random_batch(random, {3, 9}, 23).on(built.rank)); },
                           {"[model]", "document 1", "9 tokens", "max_seq_len allows 8"});
  check_error<ShapeError>([&] { Microbatch::make(built.rank, std::vector<int32_t>{1, 2}, std::vector<int32_t>{1}, Documents()); },
                          {"[microbatch]", "2 tokens, 1 targets, boundaries for 0"});
  check_error<ConfigError>([] { recomputation_from("fulll"); }, {"[recomputation]", "'fulll'", "none, attention, full", "nearest: full"});
  check_error<ConfigError>([&] { built.model.parameters().find("layers.0.ffn.gat.weight"); }, {"no parameter", "nearest: layers.0.ffn.gate.weight"});
  ParameterSet set;
  set.add("a", {2, 3}, 0.1);
  check_error<StateError>([&] { set.add("a", {1}, 0); }, {"[parameters]", "'a' is declared twice"});
  set.allocate(built.rank, DType::f32);
  check_error<StateError>([&] { set.add("b", {1}, 0); }, {"[parameters]", "'b' declared after allocate"});
  check_error<StateError>([&] { set.allocate(built.rank, DType::f32); }, {"[parameters]", "twice"});
}

BOOST_AUTO_TEST_SUITE_END()
