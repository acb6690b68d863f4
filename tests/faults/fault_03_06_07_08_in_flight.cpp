// FAULTS.md 3, 6, 7 and 8 under pipelines: with many microbatches in flight each is masked by its own boundaries, in forward, in backward and where a layer is
// computed again.
#include <set>

#include "layout_case.h"

using namespace quire;
using namespace quire::test;

namespace {

/// One pass over host microbatches through a pipeline: losses of the microbatches, gradients at the embedding's output, and of all parameters.
struct Pass {
  std::vector<double> losses;
  std::map<int64_t, std::vector<double>> embedding;
  std::map<std::string, std::vector<double>> gradients;
};

/// `executor` makes one for each rank; the pipeline's own where it is empty. `passes`: how often, one after the other, gradients added up.
Pass run(const Config& config, const std::vector<HostBatch>& batches, const std::function<std::unique_ptr<AttentionExecutor>(Rank&)>& executor = {}, int passes = 1) {
  Pass result;
  std::mutex mutex;
  const PipelineStages stages = pipeline_stages(config);
  run_local(static_cast<int>(stages.ranks), {}, [&](Communicator& group) {
    RankOptions options = rank_options(config);
    options.poison = true;
    Rank rank(options);
    Model model(rank, config.model, config.dtype(), true, stages.held_by(group.rank()));
    model.initialize(rank, 1);
    model.parameters().zero_gradients(rank);
    const std::unique_ptr<AttentionExecutor> attention = executor ? executor(rank) : nullptr;
    ForwardOptions forward;
    forward.recomputation = recomputation_from(config.train.activation_checkpointing);
    forward.attention = attention.get();
    Pipeline pipeline(rank, model, group, stages, forward);
    std::map<int64_t, std::vector<double>> embedding;
    PipelineWork work;
    work.microbatches = batches;
    const double one = 1;
    work.loss_gradient = Tensor::from<double>(rank, {1}, std::span(&one, 1));
    work.embedding_gradient = [&](int64_t number, const Tensor& gradient) { embedding[number] = as_doubles(gradient); };
    for (work.step = 0; work.step < passes; ++work.step) {
      work.losses = Tensor::zeros(rank, {static_cast<int64_t>(batches.size())}, DType::f64);
      pipeline.train(work);
    }
    if (pipeline.take_mismatch()) throw std::logic_error("a mismatch where there was none");
    const std::lock_guard lock(mutex);
    if (pipeline.holds_last()) result.losses = as_doubles(work.losses);
    if (pipeline.holds_first()) result.embedding = embedding;
    for (const Parameter& p : model.parameters()) result.gradients[p.name] = as_doubles(p.gradients[0]);
  });
  return result;
}

/// Microbatches of one size and other boundaries each, through the real loader.
std::vector<HostBatch> batches_of(const Config& config) {
  std::vector<HostBatch> batches = loaded_steps(config, layout_corpus(), 1)[0].microbatches;
  for (size_t i = 0; i < batches.size(); ++i) {
    BOOST_REQUIRE_EQUAL(batches[i].documents.tokens(), product_row);
    for (size_t j = 0; j < i; ++j) BOOST_REQUIRE(batches[i].documents != batches[j].documents);
  }
  return batches;
}

/// Everything is masked by the boundaries of the microbatch that this rank saw first: a mask kept outside of the microbatch it belongs to.
class FirstForAll final : public AttentionExecutor {
 public:
  Value attend(Tape& tape, int64_t, const Value& q, const Value& k, const Value& v, const Microbatch& microbatch, const AttentionOptions& options) override {
    if (!runs_) runs_ = microbatch.runs;
    return attention(tape, q, k, v, runs_, options);
  }

 private:
  DocumentRuns runs_;
};

/// What is computed again is masked by the boundaries of the microbatch that came last in forward.
class LatestWhenAgain final : public AttentionExecutor {
 public:
  Value attend(Tape& tape, int64_t layer, const Value& q, const Value& k, const Value& v, const Microbatch& microbatch, const AttentionOptions& options) override {
    if (seen_.emplace(layer, microbatch.runs.get()).second) latest_ = microbatch.runs;
    else again_ = true;
    return attention(tape, q, k, v, again_ ? latest_ : microbatch.runs, options);
  }

 private:
  std::set<std::pair<int64_t, const void*>> seen_;
  DocumentRuns latest_;
  bool again_ = false;
};

/// Two ranks, all forwards, all input gradients, all weight gradients; those of one kind from the last microbatch to the first.
PipelineSchedule turned_round(int64_t microbatches, ActionKind kind) {
  PipelineSchedule schedule{"turned round", 2, 2, microbatches, {0, 1}, {{}, {}}};
  for (int64_t rank = 0; rank < 2; ++rank)
    for (const ActionKind each : {ActionKind::forward, ActionKind::backward_input, ActionKind::backward_weight})
      for (int64_t i = 0; i < microbatches; ++i)
        schedule.actions[static_cast<size_t>(rank)].push_back({each, rank, each == kind && kind != ActionKind::forward ? microbatches - 1 - i : i});
  return schedule;
}

const std::vector<std::pair<int64_t, std::string>> in_flight_layouts = {{2, "1f1b"}, {4, "gpipe"}, {2, "interleaved_1f1b 3"}, {4, "interleaved_1f1b 2"}, {3, "zb_h1"}, {2, "zb_v"}, {4, "zb_v"}, {3, "file"}};

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_03_06_07_08)

BOOST_AUTO_TEST_CASE(entry_3_permuting_microbatches_permutes_losses_and_gradients) {
  const std::vector<size_t> order = {3, 0, 5, 4, 2, 1};
  for (const auto& [pp, schedule] : in_flight_layouts)
    for (const char* recomputation : {"none", "full"}) {
      Config config = fault_layout(pp, schedule);
      config.train.activation_checkpointing = recomputation;
      const std::vector<HostBatch> batches = batches_of(config);
      std::vector<HostBatch> permuted;
      for (const size_t i : order) permuted.push_back(batches[i]);
      const Pass straight = run(config, batches), crossed = run(config, permuted);
      for (size_t i = 0; i < order.size(); ++i) {
        BOOST_TEST(crossed.losses[i] == straight.losses[order[i]]);
        BOOST_TEST((crossed.embedding.at(static_cast<int64_t>(i)) == straight.embedding.at(static_cast<int64_t>(order[i]))));
      }
      BOOST_TEST(std::set<double>(straight.losses.begin(), straight.losses.end()).size() == order.size());
      // The control: a mask made once, before the split.
      const auto first = [](Rank&) { return std::make_unique<FirstForAll>(); };
      const Pass wrong = run(config, batches, first), wrong_crossed = run(config, permuted, first);
      size_t different = 0;
      for (size_t i = 0; i < order.size(); ++i) different += wrong_crossed.losses[i] != wrong.losses[order[i]];
      BOOST_TEST(different > 0);
    }
}

BOOST_AUTO_TEST_CASE(entry_6_split_backward_carries_the_boundaries_under_every_schedule) {
  const auto corpus = layout_corpus();
  for (const char* recomputation : {"none", "attention", "full"}) {
    Config alone = fault_layout(1);
    alone.train.activation_checkpointing = recomputation;
    const LayoutRun one = run_layout(alone, corpus, {.evaluate = false});
    for (const auto& [pp, schedule] : in_flight_layouts) {
      Config config = fault_layout(pp, schedule);
      config.train.activation_checkpointing = recomputation;
      LayoutRunOptions options;
      options.evaluate = false;
      options.prepare = split_backward_of;
      BOOST_TEST(bit_difference(run_layout(config, corpus, options), one) == "", schedule << ", pp " << pp << ", " << recomputation);
    }
    // The control: weight gradients, or those of norms, which come with input gradients, in another order. Bits tell, and the schedule says so beforehand.
    for (const ActionKind kind : {ActionKind::backward_weight, ActionKind::backward_input}) {
      Config config = fault_layout(2);
      config.train.activation_checkpointing = recomputation;
      LayoutRunOptions options;
      options.evaluate = false;
      options.prepare = [kind](Trainer& trainer) {
        trainer.pipeline().set_schedule([kind](int64_t microbatches) { return turned_round(microbatches, kind); });
      };
      const LayoutRun turned = run_layout(config, corpus, options);
      BOOST_TEST(bit_difference(turned, one) != "", recomputation);
      BOOST_TEST(largest_difference(turned, one) < 1e-4, recomputation);
      BOOST_TEST(!keeps_gradient_order(turned_round(6, kind)));
    }
    BOOST_TEST(keeps_gradient_order(turned_round(6, ActionKind::forward)));
  }
}

BOOST_AUTO_TEST_CASE(entry_7_several_chunks_and_steps_keep_their_records_apart) {
  for (const auto& [pp, schedule] : in_flight_layouts) {
    const Config alone = fault_layout(1), config = fault_layout(pp, schedule);
    const std::vector<HostBatch> batches = batches_of(alone);
    for (const int passes : {1, 2}) {
      const Pass one = run(alone, batches, {}, passes), many = run(config, batches, {}, passes);
      BOOST_TEST((many.losses == one.losses), schedule << ", pp " << pp);
      BOOST_TEST((many.embedding == one.embedding), schedule << ", pp " << pp);
      BOOST_TEST((many.gradients == one.gradients), schedule << ", pp " << pp);
    }
    // The control: boundaries in something that lasts.
    const Pass wrong = run(config, batches, [](Rank&) { return std::make_unique<FirstForAll>(); });
    const Pass one = run(alone, batches);
    BOOST_TEST(wrong.losses[0] == one.losses[0]);  // the first microbatch is right, as tests of one microbatch would see it
    for (size_t i = 1; i < batches.size(); ++i) BOOST_TEST(wrong.losses[i] != one.losses[i], schedule << ", pp " << pp << ", microbatch " << i);
  }
}

BOOST_AUTO_TEST_CASE(entry_8_what_is_computed_again_uses_its_own_record) {
  for (const auto& [pp, schedule] : in_flight_layouts) {
    Config config = fault_layout(pp, schedule);
    const std::vector<HostBatch> batches = batches_of(config);
    const Pass kept = run(config, batches);
    for (const char* recomputation : {"attention", "full"}) {
      config.train.activation_checkpointing = recomputation;
      const Pass again = run(config, batches);
      BOOST_TEST((again.losses == kept.losses), schedule << ", " << recomputation);
      BOOST_TEST((again.embedding == kept.embedding), schedule << ", " << recomputation);
      BOOST_TEST((again.gradients == kept.gradients), schedule << ", " << recomputation);
      // The control: the record that came last. Losses are right; only gradients show it.
      const Pass wrong = run(config, batches, [](Rank&) { return std::make_unique<LatestWhenAgain>(); });
      BOOST_TEST((wrong.embedding != kept.embedding), schedule << ", " << recomputation);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
