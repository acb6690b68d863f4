// Whole runs of several ranks, threads of this process: the records, weights and checkpoints of one process, whatever the layout.
#include "run/session_layouts.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(session_ranks)

BOOST_AUTO_TEST_CASE(stages_write_the_records_and_weights_of_one_process_to_the_bit) {
  for (const std::vector<std::string>& kind : std::vector<std::vector<std::string>>{
           {"model.tie_embeddings=false"}, {"model.tie_embeddings=true", "train.mixed_precision=bf16", "train.activation_checkpointing=full"}}) {
    Scratch scratch;
    const Config one = ranks_config(scratch, "one", single, kind);
    run_training(one);
    BOOST_TEST(metrics_of(one).back().eval_loss.has_value());
    for (const Layout& layout : {single, two_stages, four_stages, interleaved, fill_and_drain, zero_bubble, there_and_back}) {
      const Config many = ranks_config(scratch, "many " + layout.name(), layout, kind);
      run_training_ranks(many);
      check_same_training(many, one, layout.name());
    }
    // Control: other rows in each microbatch make other roundings, so the comparison can fail.
    std::vector<std::string> rows = kind;
    rows.push_back("train.microbatch_size=4");
    const Config other = ranks_config(scratch, "other", two_stages, rows);
    run_training_ranks(other);
    BOOST_TEST((metrics_of(other) != metrics_of(one)));
  }
}

BOOST_AUTO_TEST_CASE(replicas_write_the_records_of_one_process_to_rounding) {
  for (const char* tied : {"model.tie_embeddings=false", "model.tie_embeddings=true"}) {
    Scratch scratch;
    const std::vector<std::string> kind{tied, "train.mixed_precision=f64", "train.microbatch_size=1"};
    const Config one = ranks_config(scratch, "one", single, kind);
    run_training(one);
    for (const int64_t dp : {2, 3, 5}) {  // five replicas for four microbatches: one has none
      const Config plain = ranks_config(scratch, fmt::format("plain-{}", dp), {1, dp}, kind), staged = ranks_config(scratch, fmt::format("staged-{}", dp), {2, dp}, kind);
      run_training_ranks(plain);
      BOOST_TEST(difference(metrics_of(plain), metrics_of(one)) < 1e-11, "dp " << dp << ": " << difference(metrics_of(plain), metrics_of(one)));
      if (dp == 3) continue;
      run_training_ranks(staged);
      check_same_training(staged, plain, fmt::format("two stages of {} replicas against one", dp));  // the replicas' sums have one order
    }
  }
}

BOOST_AUTO_TEST_CASE(replicas_round_no_worse_than_twice_one_process) {
  Scratch scratch;
  for (const char* dtype : {"f32", "bf16"}) {
    const std::vector<std::string> kind{"train.max_steps=1", "eval.interval=0"};
    const auto first_step = [&](const std::string& run, const Layout& layout, const std::string& precision) {
      std::vector<std::string> overrides = kind;
      overrides.push_back("train.mixed_precision=" + precision);
      const Config config = ranks_config(scratch, run + dtype, layout, overrides);
      run_training_ranks(config);
      return metrics_of(config).at(0);
    };
    const StepMetrics exact = first_step("exact", single, "f64"), one = first_step("one", single, dtype), many = first_step("many", grid, dtype);
    const auto check = [&](double truth, double alone, double in_layout, double ulp) {
      const double allowed = std::max(2 * std::abs(alone - truth), 4 * ulp * std::abs(truth));
      BOOST_TEST(std::abs(in_layout - truth) <= allowed, dtype << ": " << in_layout << " for " << truth);
    };
    const double ulp = std::string(dtype) == "f32" ? 0x1p-23 : 0x1p-7;
    check(exact.loss, one.loss, many.loss, ulp);
    check(exact.grad_norm, one.grad_norm, many.grad_norm, ulp);
    check(*exact.eval_loss, *one.eval_loss, *many.eval_loss, ulp);
  }
}

BOOST_AUTO_TEST_CASE(checkpoints_move_between_layouts_with_the_bits_of_the_run_that_never_moved) {
  for (const std::vector<std::string>& kind : std::vector<std::vector<std::string>>{
           {"model.tie_embeddings=true"}, {"model.tie_embeddings=false", "train.mixed_precision=bf16"}}) {
    Scratch scratch;
    const Config whole = ranks_config(scratch, "whole", single, kind);
    run_training(whole);
    run_moving(scratch, "moved", {{four_stages, 3}, {single, 2}, {interleaved, 2}, {there_and_back, 1}, {fill_and_drain, 1}, {two_stages, 1}, {single, -1}}, kind);
    check_same_training(ranks_config(scratch, "moved", single, kind), whole, kind.back());
  }
}

BOOST_AUTO_TEST_CASE(checkpoints_move_to_replicas_and_back) {
  for (const char* tied : {"model.tie_embeddings=true", "model.tie_embeddings=false"}) {
    Scratch scratch;
    const std::vector<std::string> kind{tied, "train.mixed_precision=f64"};
    const Config whole = ranks_config(scratch, "whole", single, kind), moved = ranks_config(scratch, "moved", single, kind);
    run_training(whole);
    run_moving(scratch, "moved", {{four_stages, 4}, {single, 2}, {grid, 3}, {Layout{2, 2, "zb_v", 2}, 1}, {single, -1}}, kind);
    const auto theirs = metrics_of(moved), ours = metrics_of(whole);
    BOOST_TEST(difference(theirs, ours) < 1e-11, difference(theirs, ours));
    // Until replicas take part the bits are the same.
    BOOST_TEST((std::vector(theirs.begin(), theirs.begin() + 6) == std::vector(ours.begin(), ours.begin() + 6)));
  }
}

BOOST_AUTO_TEST_CASE(any_layout_saves_the_same_bytes_of_every_tensor) {
  Scratch scratch;
  std::map<std::string, std::vector<std::byte>> first;
  for (const Layout& layout : {single, four_stages, interleaved, there_and_back, grid}) {
    const Config config = ranks_config(scratch, layout.name(), layout, {"train.mixed_precision=bf16", "train.max_steps=1", "model.tie_embeddings=true", "train.global_batch_size=2"});
    run_training_ranks(config);
    const auto saved = checkpoint_of(config);
    if (first.empty()) first = saved;
    BOOST_TEST((saved == first), layout.name());  // one microbatch: even replicas have nothing to round
  }
}

BOOST_AUTO_TEST_CASE(resuming_after_every_step_gives_the_same_bits_in_stages_and_in_replicas) {
  for (const Layout& layout : {two_stages, grid, there_and_back}) {
    Scratch scratch;
    const std::vector<std::string> kind{"data.strategy=bfd", "train.max_steps=9"};
    const Config whole = ranks_config(scratch, "whole", layout, kind), often = ranks_config(scratch, "often", layout, kind);
    run_training_ranks(whole);
    BOOST_TEST(metrics_of(whole).back().epoch > 0);  // the run crosses an epoch's end
    RankHooks hooks;
    for (int i = 0; i < 10; ++i) {
      hooks.signalled = i % static_cast<int>(layout.pp * layout.dp);  // one rank alone knows of the signal: all stop after the same step
      run_training_ranks(often, 1, hooks);
    }
    check_same_training(often, whole, layout.name());
    if (layout.dp > 1) continue;
    const Config one = ranks_config(scratch, "one", single, kind);
    run_training(one);
    check_same_training(often, one, "one process");
  }
}

BOOST_AUTO_TEST_CASE(a_stop_signal_that_one_rank_knows_of_stops_all_after_the_same_step) {
  Scratch scratch;
  const Config config = ranks_config(scratch, "run", grid, {"eval.interval=0"});
  std::vector<int64_t> steps(4);
  const auto ends = ends_of_ranks(4, [&](Communicator& world) {
    Session session(config, disk(), quiet(), &world);
    int signal = 0;
    for (int64_t done = 0; signal == 0; ++done) {
      // Rank 3 gets one signal, rank 1 another at the same time: they agree on one.
      signal = session.agree_on_signal(done < 3 ? 0 : world.rank() == 3 ? SIGTERM : world.rank() == 1 ? SIGINT : 0);
      if (signal != 0) break;
      const LoadedStep batch = session.next_batch();
      session.record(batch, session.trainer().step(batch));
    }
    session.finish(signal);
    steps[static_cast<size_t>(world.rank())] = session.trainer().steps_done() * 100 + signal;
  });
  for (const RankEnd& end : ends) BOOST_TEST(end.error == "", end.text);
  BOOST_TEST(steps == std::vector<int64_t>(4, 3 * 100 + SIGTERM));
  BOOST_TEST(latest_checkpoint(disk(), config.run.dir).step == 3);
  BOOST_TEST(metrics_of(config).size() == 3u);
}

BOOST_AUTO_TEST_CASE(weights_of_another_run_start_a_new_one_in_any_layout) {
  Scratch scratch;
  const std::vector<std::string> kind{"train.mixed_precision=bf16", "model.tie_embeddings=true"};
  const Config first = ranks_config(scratch, "first", four_stages, kind);
  run_training_ranks(first);
  std::vector<std::string> from = kind;
  from.push_back("checkpoint.load_path=" + first.run.dir);
  from.push_back("train.max_steps=3");
  const Config one = ranks_config(scratch, "one", single, from), two = ranks_config(scratch, "two", two_stages, from), replicas = ranks_config(scratch, "replicas", grid, from);
  run_training(one);
  run_training_ranks(two);
  run_training_ranks(replicas);
  check_same_training(two, one, "started from the weights of four stages");
  BOOST_TEST(metrics_of(one).front().step == 1);
  BOOST_TEST(metrics_of(one).front().loss < metrics_of(first).front().loss - 0.5);
  BOOST_TEST(difference(metrics_of(replicas), metrics_of(one)) < 1e-2);
}

BOOST_AUTO_TEST_CASE(epochs_end_alike_though_the_last_batch_has_fewer_rows_than_there_are_replicas) {
  Scratch scratch;
  write_text(scratch.path("text.txt"), 21);
  const std::vector<std::string> kind{"train.mixed_precision=f64", "train.microbatch_size=1", "train.max_steps=1000", "data.epochs=2", "eval.interval=0", "metrics.log_interval=3"};
  const Config one = ranks_config(scratch, "one", single, kind);
  run_training(one);
  const auto alone = metrics_of(one);
  BOOST_TEST(alone.back().epoch == 1);
  BOOST_TEST(alone.back().tokens + alone.back().padding < 4 * 48);  // three rows are left
  for (const Layout& layout : {two_stages, Layout{1, 4}, Layout{2, 5}}) {
    const Config config = ranks_config(scratch, layout.name(), layout, kind);
    run_training_ranks(config);
    BOOST_TEST(difference(metrics_of(config), alone) <= (layout.dp == 1 ? 0 : 1e-11), layout.name());
    run_training_ranks(config);  // nothing is left to do
    BOOST_TEST(metrics_of(config).size() == alone.size());
  }
}

BOOST_AUTO_TEST_CASE(evaluation_of_some_steps_only_is_the_same_in_every_layout) {
  Scratch scratch;
  write_text(scratch.path("text.txt"), 60);
  const std::vector<std::string> kind{"train.mixed_precision=f64", "train.microbatch_size=1", "train.max_steps=2", "eval.steps=2", "eval.interval=1", "data.eval_fraction=0.6"};
  const Config one = ranks_config(scratch, "one", single, kind);
  run_training(one);
  BOOST_TEST(metrics_of(one).back().eval_loss.has_value());
  BOOST_TEST(!metrics_of(one).back().eval_bits_per_byte.has_value());  // not of the whole text
  for (const Layout& layout : {interleaved, Layout{2, 3}}) {
    const Config config = ranks_config(scratch, layout.name(), layout, kind);
    run_training_ranks(config);
    const auto ours = metrics_of(config), alone = metrics_of(one);
    for (size_t i = 0; i < alone.size(); ++i) {
      const double off = std::abs(*ours.at(i).eval_loss - *alone[i].eval_loss) / *alone[i].eval_loss;
      BOOST_TEST(off <= (layout.dp == 1 ? 0 : 1e-11), layout.name() << ": " << off);
      BOOST_TEST(ours[i].eval_bits_per_byte.has_value() == false);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
