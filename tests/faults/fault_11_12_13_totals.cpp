// FAULTS.md 11, 12 and 13: what belongs to the whole model or the whole batch is not made of parts.
#include "layout_case.h"
#include "ops/elementwise.h"

using namespace quire;
using namespace quire::test;

namespace {

/// Scales the gradients that a rank holds, between reduction and update.
LayoutRunOptions scaled(const std::function<double(Trainer&, const LoadedStep&)>& factor) {
  LayoutRunOptions options;
  options.evaluate = false;
  options.step = [factor](Trainer& trainer, const LoadedStep& batch) {
    trainer.begin_step();
    trainer.forward_backward(batch);
    trainer.reduce_gradients();
    const double by = factor(trainer, batch);
    for (Parameter& p : trainer.model().parameters()) {
      const Tensor& gradient = p.gradients.at(0);
      for (int64_t i = 0; i < gradient.elements(); ++i) {
        if (gradient.dtype() == DType::f64) gradient.data<double>()[i] *= by;
        else gradient.data<float>()[i] *= static_cast<float>(by);
      }
    }
    return trainer.update();
  };
  return options;
}

/// Norm over the parameters of one rank.
double own_norm(Trainer& trainer) {
  double squares = 0;
  for (const Parameter& p : trainer.model().parameters()) {
    if (!p.counted) continue;
    for (const double g : as_doubles(p.gradients.at(0))) squares += g * g;
  }
  return std::sqrt(squares);
}

const std::vector<std::tuple<int64_t, int64_t, std::string>> total_layouts = {  // pp, dp, schedule
    {2, 1, "1f1b"}, {3, 1, "gpipe"}, {4, 1, "1f1b"}, {2, 1, "interleaved_1f1b 3"}, {3, 1, "zb_h1"}, {2, 1, "zb_v"}, {2, 2, "zb_v"}, {1, 2, "1f1b"}, {2, 3, "1f1b"}};

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_11_12_13)

BOOST_AUTO_TEST_CASE(entry_11_gradients_do_not_depend_on_the_number_of_microbatches) {
  const auto corpus = layout_corpus();
  const auto config_of = [](int64_t pp, int64_t dp, const std::string& schedule, int64_t rows) {
    Config config = fault_layout(pp, schedule, dp);
    config.train.mixed_precision = "f64";
    config.train.microbatch_size = rows;
    return config;
  };
  const LayoutRun whole = run_layout(config_of(1, 1, "1f1b", 6), corpus);
  for (const auto& [pp, dp, schedule] : total_layouts)
    for (const int64_t rows : {1, 2, 4, 6}) {
      const Config config = config_of(pp, dp, schedule, rows);
      const LayoutRun run = run_layout(config, corpus);
      BOOST_TEST(largest_difference(run, whole) <= 1e-11, schedule << ", pp " << pp << ", dp " << dp << ", rows " << rows);
      if (rows == 6) continue;
      // The control: averaged over the microbatches once more.
      const LayoutRun averaged = run_layout(config, corpus, scaled([](Trainer& trainer, const LoadedStep&) { return 1.0 / std::ceil(6.0 / static_cast<double>(trainer.config().train.microbatch_size)); }));
      BOOST_TEST(largest_difference(averaged, whole) > 0.1, "control: " << schedule << ", rows " << rows);
    }
}

BOOST_AUTO_TEST_CASE(entry_12_one_norm_over_all_stages_clips_the_gradient) {
  const auto corpus = layout_corpus();
  for (const bool tied : {false, true}) {
    const auto config_of = [&](int64_t pp, int64_t dp, const std::string& schedule, double clip) {
      Config config = fault_layout(pp, schedule, dp);
      config.train.grad_clip_norm = clip;
      config.train.mixed_precision = dp > 1 ? "f64" : "f32";
      config.model.tie_embeddings = tied;
      config.optimizer.eps = 1;  // an update then follows the gradient's length, not only its direction
      return config;
    };
    for (const auto& [pp, dp, schedule] : total_layouts) {
      const double free = run_layout(config_of(1, dp, "1f1b", 0), corpus).steps[0].gradient_norm;
      for (const double clip : {free / 10, 10 * free}) {
        Config alone = config_of(1, 1, "1f1b", clip), config = config_of(pp, dp, schedule, clip);
        alone.train.mixed_precision = config.train.mixed_precision;
        const LayoutRun one = run_layout(alone, corpus), run = run_layout(config, corpus);
        const std::string what = fmt::format("{}, pp {}, dp {}, clipped at {}", schedule, pp, dp, clip);
        if (dp == 1) BOOST_TEST(bit_difference(run, one) == "", what);
        else BOOST_TEST(largest_difference(run, one) <= 1e-11, what);
        if (clip > free || pp == 1) continue;
        BOOST_TEST(one.steps[0].gradient_norm > clip);
        // The control: each stage clips by its own norm, which is smaller.
        const LayoutRun own = run_layout(config, corpus, scaled([&](Trainer& trainer, const LoadedStep&) { return std::min(1.0, clip / own_norm(trainer)); }));
        double most = 0;
        for (const auto& [name, weights] : one.weights) most = std::max(most, relative_difference(own.weights.at(name), weights));
        BOOST_TEST(most > 1e-5, "control: " << what);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(entry_13_initial_weights_are_the_same_in_every_layout) {
  const auto corpus = layout_corpus();
  LayoutRunOptions options;
  options.steps = 0;
  options.evaluate = false;
  for (const char* precision : {"f32", "bf16"})
    for (const bool tied : {false, true}) {
      const auto config_of = [&](int64_t pp, int64_t dp, const std::string& schedule) {
        Config config = fault_layout(pp, schedule, dp);
        config.train.mixed_precision = precision;
        config.model.tie_embeddings = tied;
        return config;
      };
      const LayoutRun one = run_layout(config_of(1, 1, "1f1b"), corpus, options);
      for (const auto& [pp, dp, schedule] : total_layouts) {
        Config config = config_of(pp, dp, schedule);
        const LayoutRun run = run_layout(config, corpus, options);
        BOOST_TEST((run.weights == one.weights), schedule << ", pp " << pp << ", dp " << dp);
        BOOST_TEST(run.disagreements.empty());
        // Another cut of the layers changes nothing.
        const int64_t stages = pp * config.distributed.pp_chunks;
        config.distributed.pp_layers = layers_of_stages("first", stages, config.model.n_layers);
        BOOST_TEST((run_layout(config, corpus, options).weights == one.weights));
        // The control: seed + rank.
        LayoutRunOptions shifted = options;
        shifted.prepare = [](Trainer& trainer) {
          trainer.model().initialize(trainer.rank(), static_cast<uint64_t>(trainer.config().train.seed + trainer.groups().world->rank()));
        };
        const LayoutRun wrong = run_layout(config, corpus, shifted);
        BOOST_TEST((wrong.weights != one.weights || !wrong.disagreements.empty()));
      }
    }
}

BOOST_AUTO_TEST_SUITE_END()
