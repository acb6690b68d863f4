// Training through pipeline stages against one process: the same bits, whatever the schedule; and what the messages hold.
#include <algorithm>

#include "layout_run.h"
#include "parallel/boundary_record.h"
#include "products/product_run.h"

using namespace quire;
using namespace quire::test;

namespace {

/// Twelve layers of width 16, rows of 29 tokens, six microbatches of one row with different boundaries each.
Config pipeline_config(int64_t pp, const std::string& schedule = "1f1b", int64_t chunks = 1) {
  Config config = product_config();
  config.model.n_layers = 12;
  config.train.global_batch_size = 6;
  config.train.microbatch_size = 1;
  config.train.mixed_precision = "f32";
  config.distributed.pp = pp;
  config.distributed.pp_schedule = schedule;
  config.distributed.pp_chunks = chunks;
  return resolved(config);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(pipeline)

BOOST_AUTO_TEST_CASE(every_schedule_gives_the_bits_of_one_process) {
  const auto corpus = product_corpus(true);
  for (const bool tied : {false, true}) {
    const auto config = [&](int64_t pp, const char* schedule, int64_t chunks) {
      Config result = pipeline_config(pp, schedule, chunks);
      result.model.tie_embeddings = tied;
      return result;
    };
    const LayoutRun one = run_layout(config(1, "1f1b", 1), corpus);
    for (const int64_t pp : {2, 3, 4}) {
      BOOST_TEST(bit_difference(run_layout(config(pp, "1f1b", 1), corpus), one) == "", "1f1b, pp " << pp);
      BOOST_TEST(bit_difference(run_layout(config(pp, "gpipe", 1), corpus), one) == "", "gpipe, pp " << pp);
      BOOST_TEST(bit_difference(run_layout(config(pp, "interleaved_1f1b", 3), corpus), one) == "", "interleaved, pp " << pp);
      BOOST_TEST(bit_difference(run_layout(config(pp, "zb_h1", 1), corpus), one) == "", "zb_h1, pp " << pp);
      BOOST_TEST(bit_difference(run_layout(config(pp, "zb_v", 2), corpus), one) == "", "zb_v, pp " << pp);
    }
  }
}

BOOST_AUTO_TEST_CASE(split_backward_gives_the_same_bits) {
  const auto corpus = product_corpus(false);
  for (const char* recomputation : {"none", "attention", "full"}) {
    Config config = pipeline_config(1), staged = pipeline_config(3);
    config.train.activation_checkpointing = staged.train.activation_checkpointing = recomputation;
    const LayoutRun one = run_layout(config, corpus, {.evaluate = false});
    for (const int64_t delay : {0, 2}) {
      // LayoutRunOptions::step walks a schedule of its own.
      LayoutRunOptions options;
      options.evaluate = false;
      options.prepare = [&](Trainer& trainer) {
        trainer.pipeline().set_schedule([delay](int64_t microbatches) { return split_backward(make_schedule("1f1b", 3, 1, microbatches), delay); });
      };
      BOOST_TEST(bit_difference(run_layout(staged, corpus, options), one) == "", recomputation << ", weight gradients kept back: " << delay);
    }
  }
}

BOOST_AUTO_TEST_CASE(forward_passes_of_the_last_stage_in_another_order_keep_the_bits) {
  // The head adds to its weight's gradient in forward only where forward passes ascend; backward passes do. All are turned round: two alone would commute.
  const auto corpus = product_corpus(false);
  const LayoutRun one = run_layout(pipeline_config(1), corpus, {.evaluate = false});
  LayoutRunOptions options;
  options.evaluate = false;
  options.prepare = [](Trainer& trainer) {
    trainer.pipeline().set_schedule([](int64_t microbatches) {
      PipelineSchedule schedule = make_schedule("gpipe", 2, 1, microbatches);
      for (std::vector<Action>& actions : schedule.actions) std::reverse(actions.begin(), actions.begin() + microbatches);
      return schedule;
    });
  };
  BOOST_TEST(bit_difference(run_layout(pipeline_config(2), corpus, options), one) == "");
}

BOOST_AUTO_TEST_CASE(replicas_agree_with_one_process) {
  const auto corpus = product_corpus(true);
  for (const bool tied : {false, true}) {
    Config config = pipeline_config(1);
    config.train.mixed_precision = "f64";
    config.model.tie_embeddings = tied;
    const LayoutRun one = run_layout(config, corpus);
    for (const int64_t pp : {1, 2})
      for (const int64_t dp : {2, 3, 4, 7}) {  // seven replicas for six microbatches: one has none
        Config layout = config;
        layout.distributed.pp = pp;
        layout.distributed.dp_replicate = dp;
        const LayoutRun run = run_layout(resolved(layout), corpus);
        BOOST_TEST(largest_difference(run, one) <= 1e-11, "pp " << pp << ", dp " << dp << ": " << largest_difference(run, one));
        BOOST_TEST(run.disagreements.empty());
        BOOST_TEST(std::abs(run.evaluation - one.evaluation) <= 1e-11 * one.evaluation);
        BOOST_TEST(run.steps.at(0).computed_pairs == one.steps.at(0).computed_pairs);
      }
  }
}

BOOST_AUTO_TEST_CASE(a_message_holds_activations_four_bytes_per_token_and_a_small_header) {
  const Config config = pipeline_config(3);
  const LayoutRun run = run_layout(config, product_corpus(false), {.steps = 1, .evaluate = false});
  const int64_t tokens = run.steps[0].tokens, boundaries = 2, microbatches = 6;
  BOOST_TEST(run.traffic[MessageKind::activations].bytes == boundaries * tokens * config.model.dim * 4);
  BOOST_TEST(run.traffic[MessageKind::activation_gradients].bytes == boundaries * tokens * config.model.dim * 4);
  BOOST_TEST(run.traffic[MessageKind::boundaries].bytes == boundaries * (4 * tokens + 64 * microbatches));
  BOOST_TEST(run.traffic[MessageKind::activations].messages == boundaries * microbatches);
}

BOOST_AUTO_TEST_CASE(a_shard_travels_with_eight_bytes_per_token) {
  Config config = pipeline_config(3);
  config.distributed.cp = 2;
  config.distributed.cp_layout = "zigzag";
  const LayoutRun run = run_layout(resolved(config), product_corpus(false), {.steps = 1, .evaluate = false});
  const int64_t tokens = run.steps[0].tokens, boundaries = 2, microbatches = 6, ranks = 2;
  BOOST_TEST(run.traffic[MessageKind::activations].bytes == boundaries * tokens * config.model.dim * 4);  // together as much as one rank's
  BOOST_TEST(run.traffic[MessageKind::boundaries].bytes == boundaries * (8 * tokens + 64 * microbatches * ranks));
}

BOOST_AUTO_TEST_CASE(boundaries_that_do_not_cover_the_row_are_refused_by_every_context_rank) {
  Config config = pipeline_config(1);
  config.distributed.cp = 3;
  config = resolved(config);
  for (const int64_t more : {-1, 1}) {
    LayoutRunOptions options;
    options.step = [more](Trainer& trainer, const LoadedStep& batch) {
      LoadedStep other = batch;
      const int64_t length = other.microbatches.at(0).documents.tokens() + more;
      other.microbatches.at(0).documents = Documents::from_lengths(std::span(&length, 1));
      return trainer.step(other);
    };
    check_error<ShapeError>([&] { run_layout(config, product_corpus(false), options); }, {"[microbatch]", "tokens, boundaries for"});
  }
}

BOOST_AUTO_TEST_SUITE_END()
