// Starts that several ranks must refuse together, and steps that they must skip or end together.
#include "run/training_run.h"
#include "runtime/faulty_file_system.h"

using namespace quire;
using namespace quire::test;

namespace {

/// Every rank says the one sentence, or that another one said it; run_local has it first hand from at least one.
void check_refused(const std::vector<RankEnd>& ends, const std::string& error, const std::vector<std::string>& words) {
  std::string sentence;
  for (const RankEnd& end : ends)
    if (end.error == error) sentence = end.text;
  BOOST_TEST_REQUIRE(sentence != "", "no rank ended with " << error << " but: " << ends[0].error << " " << ends[0].text);
  for (const std::string& word : words) BOOST_TEST(sentence.find(word) != std::string::npos, "'" << word << "' is not in: " << sentence);
  for (const RankEnd& end : ends) {
    BOOST_TEST((end.error == error || end.aborted()), end.error << " " << end.text);
    BOOST_TEST(end.text.find(sentence) != std::string::npos, end.text << " does not say: " << sentence);
  }
}

/// Starts a session on each rank with a config of its own.
std::vector<RankEnd> start(const std::vector<Config>& configs, const std::function<FileSystem&(int)>& file_system = {}) {
  return ends_of_ranks(static_cast<int>(configs.size()), [&](Communicator& world) {
    RankHooks hooks;
    hooks.file_system = file_system;
    train_as_rank(configs[static_cast<size_t>(world.rank())], world, 0, hooks);
  });
}

/// Puts a number in a weight of layer 2, on the ranks that hold it, and returns what was there.
float plant(Session& session, float value, const std::string& name = "layers.2.") {
  for (Parameter& p : session.trainer().model().parameters())
    if (p.name.starts_with(name) && p.shape.dims() == 2) return std::exchange(p.value.data<float>()[0], value);
  return 0;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(ranks_refused)

BOOST_AUTO_TEST_CASE(configs_that_differ_are_refused_by_all_naming_the_key_before_anything_is_made) {
  Scratch scratch;
  const Config config = ranks_config(scratch, "run", 2, 1);
  for (const auto& [other, word] : std::vector<std::pair<std::string, std::string>>{
           {"optimizer.lr=0.5", "lr = 0.5"}, {"model.n_layers=6", "n_layers = 6"}, {"train.seq_len=32", "seq_len = 32"}, {"data.separator=&", "separator = \"&\""}}) {
    const auto ends = start({config, ranks_config(scratch, "run", 2, 1, {other})});
    check_refused(ends, "ConfigError", {"[train]", "rank 1", "rank 0", word, "allowed: one config for all ranks"});
    BOOST_TEST(!std::filesystem::exists(config.run.dir));
  }
  // Of four ranks the third.
  const Config grid = ranks_config(scratch, "grid", 2, 2);
  check_refused(start({grid, grid, ranks_config(scratch, "grid", 2, 2, {"train.seed=1"}), grid}), "ConfigError", {"rank 2", "seed = 1", "seed = 42"});
  // Ranks that believe in meshes of different sizes.
  check_refused(start({config, ranks_config(scratch, "run", 1, 1)}), "ConfigError", {"pp = "});
}

BOOST_AUTO_TEST_CASE(ranks_may_differ_in_threads_and_in_where_their_data_lie) {
  Scratch scratch;
  const Config config = ranks_config(scratch, "run", 2, 1);
  std::filesystem::copy_file(scratch.path("text.txt"), scratch.path("copy.txt"));
  for (const RankEnd& end : start({config, ranks_config(scratch, "run", 2, 1, {"run.threads=2", "data.dataset_path=" + scratch.path("copy.txt")})}))
    BOOST_TEST(end.error == "", end.text);
}

BOOST_AUTO_TEST_CASE(a_world_that_the_mesh_does_not_fill_is_refused_by_all) {
  Scratch scratch;
  const Config config = ranks_config(scratch, "run", 2, 2);
  for (const size_t ranks : {1u, 2u, 3u, 5u}) {
    check_refused(start(std::vector<Config>(ranks, config)), "ConfigError", {"4 ranks", fmt::format("{}", ranks)});
    BOOST_TEST(!std::filesystem::exists(config.run.dir));
  }
  check_error<ConfigError>([&] { run_training(config); }, {"4 ranks"});
}

BOOST_AUTO_TEST_CASE(data_that_differ_are_refused_by_all) {
  Scratch scratch;
  const Config config = ranks_config(scratch, "run", 1, 2);
  const std::string text = read_text(disk(), config.data.dataset_path);
  std::array<FaultyFileSystem, 2> stores;
  for (size_t r = 0; r < 2; ++r) {
    stores[r].make_directories(scratch.path());
    stores[r].create(config.data.dataset_path)->write(std::as_bytes(std::span(text).subspan(r)));  // one letter less
  }
  check_refused(start({config, config}, [&](int rank) -> FileSystem& { return stores[static_cast<size_t>(rank)]; }), "ConfigError",
                {"rank 1 reads other data than rank 0", config.data.dataset_path, "the same data for all ranks"});
}

BOOST_AUTO_TEST_CASE(a_folder_in_use_or_of_another_model_is_refused_by_all) {
  Scratch scratch;
  const Config config = ranks_config(scratch, "run", 2, 1);
  {
    const RunFolder held(config.run.dir);
    check_refused(start({config, config}), "StateError", {"in use", config.run.dir});
  }
  run_training_ranks(config, 1);
  const Config wider = ranks_config(scratch, "run", 2, 1, {"model.dim=32"});
  check_refused(start({wider, wider}), "ConfigError", {"model.dim"});
}

BOOST_AUTO_TEST_CASE(a_kernel_for_an_operation_that_no_stage_has_is_refused_by_all) {
  Scratch scratch;
  const Config wrong = ranks_config(scratch, "run", 2, 1, {"run.kernels=[\"matmol=reference\"]"});
  check_refused(start({wrong, wrong}), "ConfigError", {"matmol", "nearest: matmul"});
  // Only the first stage embeds, only the last one has the loss: both are known to all.
  const Config right = ranks_config(scratch, "run", 2, 1, {"run.kernels=[\"embedding_forward=vector\", \"cross_entropy_forward=reference\"]"});
  for (const RankEnd& end : start({right, right})) BOOST_TEST(end.error == "", end.text);
}

BOOST_AUTO_TEST_CASE(a_step_that_is_not_finite_on_one_stage_is_skipped_by_all_ranks_and_named) {
  Scratch scratch;
  const float nan = std::nanf("");
  const auto train = [&](const std::string& run, int64_t pp, int64_t dp) {
    const Config config = ranks_config(scratch, run, pp, dp, {"train.max_steps=6", "metrics.log_interval=4"});
    std::vector<float> before(static_cast<size_t>(pp * dp));
    RankHooks hooks;
    hooks.before_step = [&](Session& session, Communicator& world, int64_t done) {
      if (done == 2) before[static_cast<size_t>(world.rank())] = plant(session, nan);
      if (done == 3) plant(session, before[static_cast<size_t>(world.rank())]);
    };
    run_training_ranks(config, -1, hooks);
    return config;
  };
  const Config one = train("one", 1, 1);
  const auto alone = metrics_of(one);
  BOOST_REQUIRE_EQUAL(alone.size(), 4u);  // 1, the skipped 3, 4 and 6
  BOOST_TEST(alone[1].step == 3);
  BOOST_TEST(alone[1].skipped);
  BOOST_TEST(alone[1].non_finite.find("layers.2.") != std::string::npos);
  BOOST_TEST(alone[1].non_finite.find("layers.0.") != std::string::npos);  // the gradient goes through all layers below
  BOOST_TEST(!alone[2].skipped);
  for (const int64_t dp : {1, 2}) {
    const Config many = train(fmt::format("many-{}", dp), 4, dp);
    const auto ours = metrics_of(many);
    BOOST_REQUIRE_EQUAL(ours.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      BOOST_TEST(ours[i].skipped == alone[i].skipped);
      BOOST_TEST(ours[i].non_finite == alone[i].non_finite);
      BOOST_TEST(std::isnan(ours[i].loss) == std::isnan(alone[i].loss));
      if (dp == 1 && !ours[i].skipped) BOOST_TEST((ours[i] == alone[i]), "step " << ours[i].step);
    }
    if (dp == 1) BOOST_TEST((checkpoint_of(many) == checkpoint_of(one)));
  }
}

BOOST_AUTO_TEST_CASE(too_many_steps_that_are_not_finite_end_all_ranks_with_one_sentence) {
  Scratch scratch;
  const Config config = ranks_config(scratch, "run", 2, 2, {"train.max_non_finite_steps=3"});
  RankHooks hooks;
  hooks.before_step = [&](Session& session, Communicator& world, int64_t done) {
    if (done == 2 && world.rank() >= 0) plant(session, HUGE_VALF, "layers.3.");
  };
  const auto ends = ends_of_ranks(4, [&](Communicator& world) { train_as_rank(config, world, -1, hooks); });
  check_refused(ends, "NonFiniteError", {"3 steps in a row", "step 5", "embedding.weight", " more;"});
  BOOST_TEST(metrics_of(config).back().step == 4);
  BOOST_TEST(!latest_checkpoint(disk(), config.run.dir).found());
}

BOOST_AUTO_TEST_SUITE_END()
