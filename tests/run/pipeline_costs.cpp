// The cost model of pipelines: memory as a run's own counters have it, work as kernels count it.
#include "run/pipeline_costs.h"

#include <mutex>

#include "check.h"
#include "run/pipeline_stages.h"
#include "run/trainer.h"

using namespace quire;

namespace {

Config small(const std::string& schedule, int64_t ranks, int64_t chunks, const std::string& recomputation) {
  Config config;
  config.model.dim = 64;
  config.model.n_layers = 8;
  config.model.n_heads = 4;
  config.model.n_kv_heads = 2;
  config.model.vocab_size = 300;
  config.train.seq_len = 512;
  config.train.global_batch_size = 6;
  config.train.microbatch_size = 1;
  config.train.activation_checkpointing = recomputation;
  config.distributed.pp = ranks;
  config.distributed.pp_schedule = schedule;
  config.distributed.pp_chunks = chunks;
  config.run.threads = 1;
  return resolved(config);
}

LoadedStep made_step(const Config& config, const std::vector<int64_t>& lengths) {
  LoadedStep step;
  step.plan.rows.resize(static_cast<size_t>(config.train.global_batch_size));
  for (int64_t m = 0; m < config.microbatches(); ++m) {
    HostBatch host;
    host.documents = Documents::from_lengths(lengths);
    host.rows = 1;
    host.index = m;
    host.valid = host.documents.tokens();
    host.tokens.assign(static_cast<size_t>(host.documents.tokens()), 7);
    host.targets = host.tokens;
    step.plan.valid += host.valid;
    step.plan.tokens += host.valid;
    step.microbatches.push_back(std::move(host));
  }
  return step;
}

/// Bytes of a rank in its second step.
struct Measured {
  int64_t activations = 0, parameters = 0, gradients = 0, optimizer = 0;
};
std::vector<Measured> measured_ranks(const Config& config, const LoadedStep& batch) {
  std::vector<Measured> ranks(static_cast<size_t>(config.distributed.pp));
  run_local(static_cast<int>(config.distributed.pp), {}, [&](Communicator& world) {
    Rank rank;
    Trainer trainer(rank, config, &world);
    trainer.step(batch);
    rank.allocator().reset_peaks();
    trainer.step(batch);
    const auto peak = [&](Category category) { return rank.allocator().counters(category).peak; };
    ranks[static_cast<size_t>(world.rank())] = {peak(Category::activations), peak(Category::parameters), peak(Category::gradients), peak(Category::optimizer)};
  });
  return ranks;
}

constexpr PipelineRates any_rates{.product_flops = 1e9, .attention_flops = 1e9, .attention_backward_flops = 1e9};
const std::vector<std::pair<std::string, int64_t>> schedules{{"gpipe", 1}, {"1f1b", 1}, {"interleaved_1f1b", 2}, {"zb_h1", 1}, {"zb_v", 2}};

}  // namespace

BOOST_AUTO_TEST_SUITE(pipeline_costs)

/// The largest difference between what is predicted and what a run has, of the latter. `forget`: controls leave out that part of the prediction.
double worst_difference(const Config& config, const std::vector<int64_t>& lengths, int64_t RankActivations::*forget = nullptr) {
  const std::vector<Measured> measured = measured_ranks(config, made_step(config, lengths));
  const PipelineCostModel model(config);
  const PipelineStages stages = pipeline_stages(config);
  const std::vector<MicrobatchShape> microbatches(static_cast<size_t>(config.microbatches()), model.shape_of(Documents::from_lengths(lengths)));
  const PipelineSchedule schedule = training_schedule(stages, config.microbatches());
  std::vector<RankActivations> predicted = rank_activations(model, stages, microbatches, schedule);
  const Simulation simulation = simulate(schedule, model.costs(stages, microbatches, any_rates));
  double worst = 0;
  for (size_t rank = 0; rank < measured.size(); ++rank) {
    BOOST_TEST(std::abs(predicted[rank].kept - simulation.peak_bytes[rank]) < 100);
    if (forget) predicted[rank].*forget = 0;
    worst = std::max(worst, std::abs(static_cast<double>(predicted[rank].total()) / static_cast<double>(measured[rank].activations) - 1));
    const PipelineRankState state = rank_state(config.model, config.dtype(), stages, static_cast<int64_t>(rank));
    BOOST_TEST(state.parameters == measured[rank].parameters);
    BOOST_TEST(state.gradients == measured[rank].gradients);
    BOOST_TEST(state.optimizer == measured[rank].optimizer);
  }
  return worst;
}

BOOST_AUTO_TEST_CASE(memory_is_that_of_a_run) {
  const std::vector<int64_t> lengths{100, 212, 200};
  for (const std::string recomputation : {"none", "attention", "full"})
    for (const auto& [schedule, chunks] : schedules) {
      const double worst = worst_difference(small(schedule, 2, chunks, recomputation), lengths);
      BOOST_TEST(worst < 0.05, schedule << ", recomputation " << recomputation << ": " << worst);
    }
  Config wide = small("1f1b", 3, 1, "none");
  wide.train.mixed_precision = "bf16";
  wide.distributed.pp_layers = {0, 5, 3};
  BOOST_TEST(worst_difference(wide, lengths) < 0.05);
  // What the test would not see is not there: without any of the parts it fails.
  BOOST_TEST(worst_difference(small("gpipe", 2, 1, "full"), lengths, &RankActivations::running) > 0.05);
  BOOST_TEST(worst_difference(small("1f1b", 2, 1, "none"), lengths, &RankActivations::kept) > 0.05);
}

BOOST_AUTO_TEST_CASE(work_is_what_kernels_count) {
  const std::vector<int64_t> lengths{100, 212, 200};
  for (const std::string recomputation : {"none", "attention", "full"}) {
    Config config = small("1f1b", 1, 1, recomputation);
    config.model.sliding_window = {0, 0, 64, 64, 0, 0, 0, 7};
    config = resolved(config);
    const LoadedStep batch = made_step(config, lengths);
    Rank rank;
    Trainer trainer(rank, config);
    rank.work().flops = 0;
    trainer.step(batch);
    const PipelineCostModel model(config);
    const MicrobatchShape shape = model.shape_of(batch.microbatches.front().documents);
    double products = 0, forward_pairs = 0;
    for (const ActionKind kind : {ActionKind::forward, ActionKind::backward}) {
      const ActionWork work = model.work(pipeline_stages(config), 0, kind, shape);
      products += work.products;
      forward_pairs += kind == ActionKind::forward ? work.attention / (4.0 * static_cast<double>(config.model.n_heads * config.model.head_dim)) : 0;
    }
    BOOST_TEST(products * static_cast<double>(config.microbatches()) == static_cast<double>(rank.work().flops));
    int64_t pairs = 0;
    for (const int64_t window : config.model.sliding_window) pairs += batch.microbatches.front().documents.useful_pairs(window);
    BOOST_TEST(forward_pairs == static_cast<double>(pairs));
  }
}

BOOST_AUTO_TEST_CASE(a_full_backward_is_the_two_halves_and_stages_are_the_whole) {
  const Config config = small("1f1b", 4, 1, "attention"), one = small("1f1b", 1, 1, "attention");
  const PipelineCostModel model(config);
  const PipelineStages stages = pipeline_stages(config), alone = pipeline_stages(one);
  const MicrobatchShape shape = model.shape_of(Documents::from_lengths(std::vector<int64_t>{300, 11, 1, 88}));
  const auto seconds = [&](const PipelineStages& cut, int64_t stage, ActionKind kind) { return model.seconds(model.work(cut, stage, kind, shape), any_rates); };
  for (const ActionKind kind : {ActionKind::forward, ActionKind::backward, ActionKind::backward_input, ActionKind::backward_weight}) {
    double sum = 0;
    for (int64_t stage = 0; stage < stages.stages(); ++stage) sum += seconds(stages, stage, kind);
    BOOST_TEST(std::abs(sum - seconds(alone, 0, kind)) < 1e-12 * sum);
  }
  const double halves = seconds(alone, 0, ActionKind::backward_input) + seconds(alone, 0, ActionKind::backward_weight);
  BOOST_TEST(std::abs(seconds(alone, 0, ActionKind::backward) - halves) < 1e-12 * halves);
}

BOOST_AUTO_TEST_CASE(rows_of_other_documents_cost_another_time) {
  const Config config = small("1f1b", 2, 1, "none");
  const PipelineCostModel model(config);
  const PipelineStages stages = pipeline_stages(config);
  const std::vector<MicrobatchShape> microbatches{model.shape_of(Documents::from_lengths(std::vector<int64_t>{512})),
                                                  model.shape_of(Documents::from_lengths(std::vector<int64_t>(64, 8)))};
  const ScheduleCosts costs = model.costs(stages, microbatches, any_rates);
  BOOST_TEST(costs.of({ActionKind::forward, 0, 0}) > 1.1 * costs.of({ActionKind::forward, 0, 1}));
  BOOST_TEST(costs.of({ActionKind::backward_weight, 0, 0}) == costs.of({ActionKind::backward_weight, 0, 1}));  // products know no documents
  BOOST_TEST(costs.message_bytes[0] == 512 * 64 * 4 + 64 + 4 * 512);
}

BOOST_AUTO_TEST_SUITE_END()
