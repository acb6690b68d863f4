// Whole runs: the same bits for any number of threads, any recomputation, and any stop and resume.
#include "run/session.h"

#include "run/training_run.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(session)

BOOST_AUTO_TEST_CASE(learns_and_evaluates) {
  Scratch scratch;
  const Config config = small_config(scratch, "run", {"train.max_steps=40"});
  run_training(config);
  const std::vector<StepMetrics> metrics = metrics_of(config);
  BOOST_REQUIRE_EQUAL(metrics.size(), 40u);
  BOOST_TEST(metrics.front().loss > 5.0);  // ln 257 = 5.55
  BOOST_TEST(metrics.back().loss < 3.5);
  BOOST_TEST(metrics[3].eval_loss.has_value());
  BOOST_TEST(metrics[4].eval_loss.has_value() == false);
  BOOST_TEST(*metrics.back().eval_loss < *metrics[3].eval_loss);
  BOOST_TEST(*metrics.back().eval_bits_per_byte > 0);
  for (const StepMetrics& m : metrics) {
    BOOST_TEST(m.computed_pairs >= m.useful_pairs);
    BOOST_TEST(m.valid_tokens < m.tokens);
    BOOST_TEST(m.tokens + m.padding <= 4 * 48);
  }
}

BOOST_AUTO_TEST_CASE(threads_and_recomputation_do_not_change_a_bit) {
  Scratch scratch;
  const Config one = small_config(scratch, "one");
  run_training(one);
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {"run.threads=2"}, {"run.threads=3"}, {"train.activation_checkpointing=attention"}, {"train.activation_checkpointing=full", "run.threads=2"}}) {
    const Config other = small_config(scratch, "other" + overrides[0], overrides);
    run_training(other);
    check_same_training(one, other, overrides[0]);
  }
  // Control: another seed is another training, so the comparison can fail.
  const Config seed = small_config(scratch, "seed", {"train.seed=43"});
  run_training(seed);
  BOOST_TEST((checkpoint_of(one) != checkpoint_of(seed)));
}

BOOST_AUTO_TEST_CASE(resuming_after_every_step_gives_the_same_bits) {
  for (const char* strategy : {"bfd", "concat"}) {
    Scratch scratch;
    const std::string choice = std::string("data.strategy=") + strategy;
    const Config whole = small_config(scratch, "whole", {choice});
    run_training(whole);
    BOOST_TEST(metrics_of(whole).back().epoch > 0);  // the run crosses an epoch's end
    for (int64_t stop = 0; stop <= 12; ++stop) {
      const Config config = small_config(scratch, fmt::format("stopped-{}", stop), {choice});
      run_training(config, stop);
      run_training(config);
      check_same_training(whole, config, fmt::format("{} stopped after {}", strategy, stop));
    }
    const Config often = small_config(scratch, "often", {choice});
    for (int i = 0; i < 13; ++i) run_training(often, 1);
    check_same_training(whole, often, "stopped after every step");
  }
}

BOOST_AUTO_TEST_CASE(a_run_ends_with_its_epochs_and_evaluates_then) {
  Scratch scratch;
  const Config config = small_config(scratch, "run", {"data.epochs=2", "train.max_steps=1000", "eval.interval=0"});
  run_training(config);
  const std::vector<StepMetrics> metrics = metrics_of(config);
  BOOST_TEST(metrics.size() < 1000u);
  BOOST_TEST(metrics.back().epoch == 1);
  BOOST_TEST(metrics.back().eval_loss.has_value());
  run_training(config);  // nothing is left to do
  BOOST_TEST((metrics_of(config) == metrics));
}

BOOST_AUTO_TEST_CASE(more_steps_than_before_go_on_where_the_run_ended) {
  Scratch scratch;
  const std::vector<std::string> constant{"scheduler.name=constant", "eval.interval=0", "data.eval_fraction=0"};
  std::vector<std::string> shorter = constant;
  shorter.push_back("train.max_steps=5");
  const Config whole = small_config(scratch, "whole", constant);
  run_training(whole);
  run_training(small_config(scratch, "grown", shorter));
  const Config grown = small_config(scratch, "grown", constant);
  run_training(grown);
  check_same_training(whole, grown, "5 steps, then 12");
}

BOOST_AUTO_TEST_CASE(a_run_folder_in_use_is_refused) {
  Scratch scratch;
  const Config config = small_config(scratch, "run");
  Session session(config, disk(), quiet());
  check_error<StateError>([&] { Session second(config, disk(), quiet()); }, {config.run.dir, std::to_string(::getpid())});
}

BOOST_AUTO_TEST_CASE(another_model_in_the_same_folder_is_refused) {
  Scratch scratch;
  run_training(small_config(scratch, "run"), 1);
  check_error<ConfigError>([&] { run_training(small_config(scratch, "run", {"model.dim=32"})); }, {"model.dim"});
}

BOOST_AUTO_TEST_CASE(weights_of_another_run_start_a_new_one) {
  Scratch scratch;
  const Config first = small_config(scratch, "first");
  run_training(first);
  const Config second = small_config(scratch, "second", {"checkpoint.load_path=" + first.run.dir});
  run_training(second, 1);
  BOOST_TEST(metrics_of(second).front().step == 1);
  BOOST_TEST(metrics_of(second).front().loss < metrics_of(first).front().loss - 1);
}

BOOST_AUTO_TEST_CASE(every_dtype_trains) {
  Scratch scratch;
  std::vector<double> losses;
  for (const char* dtype : {"f64", "f32", "bf16"}) {
    const Config config = small_config(scratch, dtype, {std::string("train.mixed_precision=") + dtype, "train.max_steps=20"});
    run_training(config, 7);
    run_training(config);
    losses.push_back(metrics_of(config).back().loss);
  }
  BOOST_TEST(std::abs(losses[1] - losses[0]) < 1e-3);
  BOOST_TEST(std::abs(losses[2] - losses[0]) < 0.1);
}

BOOST_AUTO_TEST_SUITE_END()
