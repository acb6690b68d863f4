// Whole runs whose ranks share each row's tokens, threads of this process: the records of one process to rounding, checkpoints that move, and what `auto` decides.
#include "run/context_decision.h"
#include "run/session_layouts.h"

using namespace quire;
using namespace quire::test;

namespace {

Layout contexts(int64_t cp, const std::string& context = "balanced ring", int64_t pp = 1, int64_t dp = 1) {
  Layout layout{pp, dp};
  layout.cp = cp;
  layout.context = context;
  return layout;
}

void check_close(const Config& many, const Config& one, const std::string& name) {
  const double off = difference(metrics_of(many), metrics_of(one));
  BOOST_TEST(off < 1e-11, name << ": " << off);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(session_contexts)

BOOST_AUTO_TEST_CASE(context_ranks_write_the_records_of_one_process_to_rounding) {
  Scratch scratch;
  const std::vector<std::string> kind{"train.mixed_precision=f64", "model.tie_embeddings=true"};
  const Config one = ranks_config(scratch, "one", single, kind);
  run_training(one);
  for (const Layout& layout : {contexts(2), contexts(3, "zigzag gather"), contexts(2, "contiguous heads"), contexts(2, "contiguous ring", 2), contexts(2, "balanced gather", 2, 2)}) {
    const Config many = ranks_config(scratch, layout.name(), layout, kind);
    run_training_ranks(many);
    check_close(many, one, layout.name());
  }
  // Stages change no bit of what context ranks compute.
  const Config plain = ranks_config(scratch, "plain", contexts(2, "zigzag ring"), kind), staged = ranks_config(scratch, "staged", contexts(2, "zigzag ring", 4), kind);
  run_training_ranks(plain);
  run_training_ranks(staged);
  check_same_training(staged, plain, "four stages of two context ranks");
  // Control: other first weights.
  const Config other = ranks_config(scratch, "other", contexts(2), {"train.mixed_precision=f64", "model.tie_embeddings=true", "train.seed=5"});
  run_training_ranks(other);
  BOOST_TEST(difference(metrics_of(other), metrics_of(one)) > 1e-6);
}

BOOST_AUTO_TEST_CASE(checkpoints_move_to_context_ranks_and_back) {
  Scratch scratch;
  const std::vector<std::string> kind{"train.mixed_precision=f64"};
  const Config whole = ranks_config(scratch, "whole", single, kind), moved = ranks_config(scratch, "moved", single, kind);
  run_training(whole);
  run_moving(scratch, "moved", {{contexts(2), 3}, {single, 2}, {contexts(2, "zigzag ring", 2), 3}, {contexts(3, "contiguous gather"), 1}, {grid, 1}, {single, -1}}, kind);
  check_close(moved, whole, "moved");
}

BOOST_AUTO_TEST_CASE(resuming_after_every_step_gives_the_same_bits_over_context_ranks) {
  for (const Layout& layout : {contexts(3), contexts(2, "contiguous heads", 2)}) {
    Scratch scratch;
    const std::vector<std::string> kind{"data.strategy=bfd", "train.max_steps=7"};
    const Config whole = ranks_config(scratch, "whole", layout, kind), often = ranks_config(scratch, "often", layout, kind);
    run_training_ranks(whole);
    RankHooks hooks;
    for (int i = 0; i < 8; ++i) {
      hooks.signalled = i % static_cast<int>(layout.pp * layout.cp);  // one rank alone knows of the signal: all stop after the same step
      run_training_ranks(often, 1, hooks);
    }
    check_same_training(often, whole, layout.name());
  }
}

BOOST_AUTO_TEST_CASE(an_epochs_last_rows_may_hold_fewer_tokens_than_there_are_ranks) {
  Scratch scratch;
  write_text(scratch.path("text.txt"), 3);  // a handful of tokens
  const std::vector<std::string> kind{"train.mixed_precision=f64", "train.microbatch_size=1", "train.seq_len=20", "train.max_steps=1000", "data.epochs=2", "eval.interval=0", "data.eval_fraction=0",
                                      "data.strategy=concat", "data.overflow=split"};
  const Config one = ranks_config(scratch, "one", single, kind);
  run_training(one);
  for (const Layout& layout : {contexts(16), contexts(16, "zigzag gather"), contexts(8, "contiguous ring", 2, 2)}) {
    const Config many = ranks_config(scratch, layout.name(), layout, kind);
    run_training_ranks(many);
    check_close(many, one, layout.name());
  }
}

BOOST_AUTO_TEST_CASE(what_auto_decides_is_kept_replayed_and_decided_anew_for_another_number_of_ranks) {
  Scratch scratch;
  const Config config = ranks_config(scratch, "run", contexts(2, "auto auto"), {"train.mixed_precision=f64"}), one = ranks_config(scratch, "one", single, {"train.mixed_precision=f64"});
  run_training(one);
  run_training_ranks(config, 3);
  const auto choices = [&] { return RunFolder(config.run.dir).choices(); };
  const auto first = choices();
  BOOST_TEST(first.at("context.ranks") == "2");
  BOOST_TEST(!first.at("context.speeds").empty());
  // What is recorded is in force: another layout than the one that speeds would give.
  const std::string other = first.at("context.layout") == "zigzag" ? "contiguous" : "zigzag";
  {
    auto changed = first;
    changed["context.layout"] = other;
    changed["context.exchange"] = "gather";
    RunFolder(config.run.dir).store_choices(changed);
  }
  run_training_ranks(config, 3);
  BOOST_TEST(choices().at("context.layout") == other);
  BOOST_TEST(choices().at("context.exchange") == "gather");
  // A key that is given is kept, and decides what is left.
  run_training_ranks(ranks_config(scratch, "run", contexts(2, "contiguous auto"), {"train.mixed_precision=f64"}), 2);
  BOOST_TEST(choices().at("context.layout") == "contiguous");
  run_training_ranks(ranks_config(scratch, "run", contexts(3, "auto ring"), {"train.mixed_precision=f64"}));
  BOOST_TEST(choices().at("context.ranks") == "3");
  BOOST_TEST(choices().at("context.exchange") == "ring");
  check_close(config, one, "run");
}

BOOST_AUTO_TEST_CASE(a_recorded_decision_is_taken_only_where_it_fits) {
  const std::map<std::string, std::string> recorded{{"context.layout", "zigzag"}, {"context.exchange", "ring"}, {"context.ranks", "4"}, {"kernel.add", "vector"}};
  const auto taken = [&](int64_t cp, const char* layout, const char* exchange) {
    Config config;
    config.distributed.cp = cp;
    config.distributed.cp_layout = layout;
    config.distributed.cp_exchange = exchange;
    ContextDecision decision;
    if (!recorded_decision(config, recorded, decision)) return false;
    BOOST_TEST(decision.layout == "zigzag");
    BOOST_TEST(decision.exchange == "ring");
    BOOST_TEST(decision.choices.size() == 3u);
    return true;
  };
  BOOST_TEST(taken(4, "auto", "auto"));
  BOOST_TEST(taken(4, "zigzag", "auto"));
  BOOST_TEST(!taken(2, "auto", "auto"));
  BOOST_TEST(!taken(4, "balanced", "auto"));
  BOOST_TEST(!taken(4, "auto", "gather"));
}

BOOST_AUTO_TEST_CASE(a_record_that_can_not_be_in_force_is_refused_by_file_and_key) {
  Config config;
  config.run.dir = "runs/mine";
  config.model.n_heads = 4;
  config.model.n_kv_heads = 4;
  config.distributed.cp = 2;
  config.distributed.cp_layout = config.distributed.cp_exchange = "auto";
  const auto refuse = [&](const char* layout, const char* exchange, std::initializer_list<std::string> words) {
    ContextDecision decision;
    check_error<DataError>([&] { recorded_decision(config, {{"context.layout", layout}, {"context.exchange", exchange}, {"context.ranks", "2"}}, decision); }, words);
  };
  refuse("spiral", "ring", {"[runs/mine/choices.json]", "context.layout is \"spiral\"", "contiguous, zigzag, balanced"});
  refuse("auto", "ring", {"context.layout is \"auto\""});
  refuse("balanced", "auto", {"context.exchange is \"auto\"", "ring, gather"});
  refuse("balanced", "heads", {"context.exchange is \"heads\"", "ring, gather", "decided anew"});
  config.model.n_heads = config.model.n_kv_heads = 3;
  refuse("contiguous", "heads", {"context.exchange is \"heads\""});
}

BOOST_AUTO_TEST_CASE(what_was_decided_outlives_a_run_with_other_keys) {
  Scratch scratch;
  const Config open = ranks_config(scratch, "run", contexts(2, "auto auto")), given = ranks_config(scratch, "run", contexts(2, "zigzag gather"));
  run_training_ranks(open, 2);
  const auto first = RunFolder(open.run.dir).choices();
  run_training_ranks(given, 2);
  run_training_ranks(ranks_config(scratch, "run", single), 2);
  run_training_ranks(open, 2);
  const auto last = RunFolder(open.run.dir).choices();
  for (const char* key : {"context.layout", "context.exchange", "context.ranks", "context.speeds"}) BOOST_TEST(last.at(key) == first.at(key));
}

BOOST_AUTO_TEST_SUITE_END()
