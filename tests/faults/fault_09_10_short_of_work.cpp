// FAULTS.md 9 and 10: fewer microbatches than stages, microbatches of many sizes, replicas with more work than others and with none. Sends between threads are
// complete only once received, so whatever could wait forever does.
#include <set>

#include "layout_case.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(fault_09_10)

BOOST_AUTO_TEST_CASE(entry_9_fewer_microbatches_than_stages_train_as_one_process) {
  const auto corpus = layout_corpus();
  for (const char* packing : {"concat", "bfd"})
    for (const int64_t global : {1, 2, 3}) {
      const auto config_of = [&](int64_t pp, const std::string& schedule) {
        Config config = fault_layout(pp, schedule);
        set_parameter(config, "packing", packing);
        config.train.global_batch_size = global;
        return config;
      };
      const LayoutRun one = run_layout(config_of(1, "1f1b"), corpus);
      for (const char* schedule : {"1f1b", "gpipe", "interleaved_1f1b 3", "zb_h1", "zb_v"})
        BOOST_TEST(bit_difference(run_layout(config_of(4, schedule), corpus), one) == "", schedule << ", " << global << " microbatches");
    }
}

BOOST_AUTO_TEST_CASE(entry_9_microbatches_of_many_sizes_train_as_one_process) {
  // Documents each in a row of their own: microbatches of one token, of a whole row and of all between.
  const auto corpus = layout_corpus();
  const auto config_of = [&](int64_t pp, const std::string& schedule) {
    Config config = fault_layout(pp, schedule);
    set_parameter(config, "packing", "single");
    config.train.global_batch_size = 11;
    return config;
  };
  std::set<int64_t> sizes;
  for (const LoadedStep& step : loaded_steps(config_of(1, "1f1b"), corpus, 3))
    for (const HostBatch& host : step.microbatches) sizes.insert(host.documents.tokens());
  BOOST_TEST(sizes.size() > 6u);
  BOOST_TEST(sizes.contains(1));
  const LayoutRun one = run_layout(config_of(1, "1f1b"), corpus);
  for (const auto& [pp, schedule] : {std::pair<int64_t, const char*>{4, "1f1b"}, {3, "gpipe"}, {4, "interleaved_1f1b 3"}, {4, "zb_h1"}, {3, "zb_v"}}) {
    BOOST_TEST(bit_difference(run_layout(config_of(pp, schedule), corpus), one) == "", schedule);
    LayoutRunOptions options;
    options.prepare = split_backward_of;
    BOOST_TEST(bit_difference(run_layout(config_of(pp, schedule), corpus, options), one) == "", schedule << ", split");
  }
}

BOOST_AUTO_TEST_CASE(entry_9_a_message_that_never_comes_is_named_and_every_rank_ends) {
  // A rank that stops sending: what hung elsewhere ends with the message's name.
  const Config config = fault_layout(3);
  const auto corpus = layout_corpus();
  std::mutex mutex;
  std::vector<std::string> reports;
  CommunicatorOptions options;
  options.watchdog_seconds = 2;
  options.report = [&](const std::string& sentence) {
    const std::lock_guard lock(mutex);
    reports.push_back(sentence);
  };
  check_error<CommunicationError>(
      [&] {
        run_local(3, options, [&](Communicator& world) {
          Rank rank(rank_options(config));
          WireHooks hooks;
          hooks.sent = [&](int, const MessageLabel& label) {
            if (label.kind == MessageKind::activations && label.stage == 1 && label.microbatch == 2) world.receive(Tensor::zeros(rank, {1}, DType::f32), 2, {}).wait();
          };
          Wire wire(world, hooks);
          Trainer trainer(rank, config, &wire);
          Loader loader(corpus, trainer.loader_settings(), trainer.share());
          trainer.step(loader.next_step());
        });
      },
      {"rank"});
  std::string all;
  for (const std::string& report : reports) all += report + "\n";
  BOOST_TEST(all.find("stage 1, microbatch 3, step 1") != std::string::npos, all);
}

BOOST_AUTO_TEST_CASE(entry_10_replicas_short_of_work_join_every_collective_with_weight_zero) {
  const auto corpus = layout_corpus();
  for (const bool tied : {false, true}) {
    Config alone = fault_layout(1);
    alone.train.mixed_precision = "f64";
    alone.model.tie_embeddings = tied;
    const LayoutRun one = run_layout(alone, corpus);
    for (const int64_t pp : {1, 2})
      for (const int64_t dp : {4, 5, 8}) {  // six microbatches: of different numbers each, and for two replicas none
        Config config = fault_layout(pp, "1f1b", dp);
        config.train.mixed_precision = "f64";
        config.model.tie_embeddings = tied;
        std::mutex mutex;
        std::map<int64_t, size_t> work;
        LayoutRunOptions options;
        options.step = [&](Trainer& trainer, const LoadedStep& batch) {
          {
            const std::lock_guard lock(mutex);
            work[trainer.share().index] = batch.microbatches.size();
          }
          return trainer.step(batch);
        };
        const LayoutRun run = run_layout(config, corpus, options);
        std::set<size_t> numbers;
        size_t sum = 0;
        for (const auto& [replica, microbatches] : work) {
          numbers.insert(microbatches);
          sum += microbatches;
        }
        BOOST_TEST(numbers.size() == 2u);
        BOOST_TEST(sum == 6u);
        BOOST_TEST(largest_difference(run, one) <= 1e-11, "pp " << pp << ", dp " << dp);
        BOOST_TEST(run.disagreements.empty());
        BOOST_TEST(run.steps[0].valid_tokens == one.steps[0].valid_tokens);
        // The control: an empty replica that counts as one (the mean over replicas of their means) is another gradient.
        LayoutRunOptions mean;
        mean.step = [&](Trainer& trainer, const LoadedStep& batch) {
          LoadedStep other = batch;
          other.plan.valid = dp;
          for (const HostBatch& host : batch.microbatches) other.plan.valid += dp * host.valid;
          return trainer.step(other);
        };
        BOOST_TEST(largest_difference(run_layout(config, corpus, mean), one) > 1e-3);
      }
  }
}

BOOST_AUTO_TEST_SUITE_END()
