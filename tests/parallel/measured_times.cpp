// Times that a pipeline notes: every computation and message of the program, each where it can be, gathered in one clock.
#include "parallel/measured_times.h"

#include <algorithm>
#include <set>

#include "products/layout_product.h"

using namespace quire;
using namespace quire::test;

namespace {

Config noted_config(int64_t pp, const std::string& schedule, int64_t dp = 1, int64_t cp = 1) {
  Config config = product_config();
  config.model.n_layers = 8;
  config.train.global_batch_size = 6;
  config.train.microbatch_size = 1;
  config.train.mixed_precision = "f32";
  set_layout_parameter(config, "schedule", schedule);
  config.distributed.pp = pp;
  config.distributed.dp_replicate = dp;
  config.distributed.cp = cp;
  return resolved(config);
}

struct Noted {
  std::vector<Timeline> timelines;         ///< of each step
  std::vector<PipelineProgram> programs;   ///< [world ranks]
  std::vector<int64_t> pipeline_rank;      ///< [world ranks]
  LayoutRun run;
};

/// `notes`: whether times are noted; two steps.
Noted train_noted(const Config& config, bool notes = true) {
  Noted noted;
  const auto ranks = static_cast<size_t>(mesh_shape(config).ranks());
  noted.programs.resize(ranks);
  noted.pipeline_rank.resize(ranks);
  std::mutex mutex;
  LayoutRunOptions options;
  options.steps = 2;
  options.prepare = [&](Trainer& trainer) { trainer.pipeline().record_times(notes); };
  options.step = [&](Trainer& trainer, const LoadedStep& batch) {
    const StepResult result = trainer.step(batch);
    trainer.evaluate(layout_corpus(), 1);  // evaluations leave no trace
    Communicator& world = *trainer.groups().world;
    const Timeline timeline = gather_timeline(trainer.rank(), world, trainer.pipeline().times(), measure_clocks(trainer.rank(), world));
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) noted.timelines.push_back(timeline);
    else BOOST_TEST(timeline.spans.empty());
    noted.programs[static_cast<size_t>(world.rank())] = trainer.pipeline().training_program(static_cast<int64_t>(batch.microbatches.size()));
    noted.pipeline_rank[static_cast<size_t>(world.rank())] = trainer.groups().place.pp;
    return result;
  };
  noted.run = run_layout(config, layout_corpus(), options);
  return noted;
}

const TimelineSpan* span_of(const Timeline& timeline, size_t rank, const Action& action) {
  for (const TimelineSpan& span : timeline.spans[rank])
    if (span.action == action) return &span;
  return nullptr;
}

/// The computation that makes what `consumer` takes, on the sending rank: a backward is a B or an I.
const TimelineSpan* maker_of(const Timeline& timeline, size_t rank, const Action& consumer) {
  if (consumer.kind == ActionKind::forward) return span_of(timeline, rank, {ActionKind::forward, consumer.stage - 1, consumer.microbatch});
  const TimelineSpan* whole = span_of(timeline, rank, {ActionKind::backward, consumer.stage + 1, consumer.microbatch});
  return whole != nullptr ? whole : span_of(timeline, rank, {ActionKind::backward_input, consumer.stage + 1, consumer.microbatch});
}

/// "" where a timeline is what the ranks' programs say.
std::string disagreement(const Timeline& timeline, const Noted& noted) {
  if (timeline.spans.size() != noted.programs.size()) return "number of ranks";
  size_t messages = 0;
  double first = HUGE_VAL;
  for (size_t rank = 0; rank < noted.programs.size(); ++rank) {
    std::vector<Action> computed;
    const size_t place = static_cast<size_t>(noted.pipeline_rank[rank]);
    for (const Instruction& instruction : noted.programs[rank].instructions[place]) messages += instruction.kind == InstructionKind::send;
    double before = 0;
    for (const TimelineSpan& span : timeline.spans[rank]) {
      computed.push_back(span.action);
      if (span.begin < before || span.end < span.begin) return "order of time on rank " + std::to_string(rank);
      before = span.end;
      first = std::min(first, span.begin);
    }
    if (computed != noted.programs[rank].schedule.actions[place]) return "computations of rank " + std::to_string(rank);
  }
  if (first != 0) return "begin";
  if (timeline.transfers.size() != messages) return "number of messages";
  for (const TimelineTransfer& transfer : timeline.transfers) {
    const TimelineSpan* maker = maker_of(timeline, static_cast<size_t>(transfer.from), transfer.consumer);
    const TimelineSpan* taker = span_of(timeline, static_cast<size_t>(transfer.to), transfer.consumer);
    if (maker == nullptr || taker == nullptr) return "ends of the message for " + to_string(transfer.consumer);
    if (transfer.begin < maker->end || transfer.end < transfer.begin || transfer.end > taker->begin) return "time of the message for " + to_string(transfer.consumer);
  }
  return {};
}

/// A rank's clock that is an hour off for each rank.
int64_t other_clock(int rank) { return steady_nanoseconds() - 3'600'000'000'000 * rank; }

}  // namespace

BOOST_AUTO_TEST_SUITE(measured_times)

BOOST_AUTO_TEST_CASE(every_computation_and_message_of_a_step_is_noted_where_it_can_be) {
  for (const auto& [pp, schedule] : {std::pair<int64_t, const char*>{1, "1f1b"}, {2, "1f1b"}, {3, "gpipe"}, {2, "interleaved_1f1b 2"}, {3, "zb_h1"}, {2, "zb_v"}}) {
    const Noted noted = train_noted(noted_config(pp, schedule));
    BOOST_TEST(noted.timelines.size() == 2u);
    for (const Timeline& timeline : noted.timelines) {
      BOOST_TEST(disagreement(timeline, noted) == "", schedule);
      BOOST_TEST(timeline.name == schedule_from(schedule).name);
      BOOST_TEST(timeline.work() > 0);
      BOOST_TEST(timeline.bubble() < 1);
    }
    // The control: a timeline that lacks a message, or in which one comes too late, is seen.
    Timeline other = noted.timelines[0];
    if (other.transfers.empty()) continue;
    other.transfers.front().end += other.makespan();
    BOOST_TEST(disagreement(other, noted).starts_with("time of the message"));
    other.transfers.pop_back();
    BOOST_TEST(disagreement(other, noted) == "number of messages");
  }
}

BOOST_AUTO_TEST_CASE(a_message_has_the_bytes_of_its_activations_and_record) {
  const Config config = noted_config(2, "1f1b");
  const Noted noted = train_noted(config);
  int64_t forward = 0, backward = 0;
  for (const TimelineTransfer& transfer : noted.timelines[0].transfers) (transfer.consumer.kind == ActionKind::forward ? forward : backward) += transfer.bytes;
  const int64_t tokens = noted.run.steps[0].tokens, stream = tokens * config.model.dim * 4;
  BOOST_TEST(forward == stream + 4 * tokens + 64 * 6);
  BOOST_TEST(backward == stream);
}

BOOST_AUTO_TEST_CASE(replicas_and_context_ranks_stand_beside_each_other) {
  for (const auto& [dp, cp] : {std::pair<int64_t, int64_t>{2, 1}, {1, 2}, {4, 1}}) {  // of four replicas one has a microbatch fewer than another
    const Noted noted = train_noted(noted_config(2, "zb_v", dp, cp));
    for (const Timeline& timeline : noted.timelines) BOOST_TEST(disagreement(timeline, noted) == "", "dp " << dp << ", cp " << cp);
    BOOST_TEST(noted.timelines[0].ranks() == 2 * dp * cp);
  }
}

BOOST_AUTO_TEST_CASE(nothing_is_noted_where_it_is_off_and_no_bit_differs) {
  const Config config = noted_config(2, "zb_v");
  const Noted on = train_noted(config), off = train_noted(config, false);
  for (const Timeline& timeline : off.timelines) {
    BOOST_TEST(timeline.work() == 0);
    BOOST_TEST(timeline.transfers.empty());
  }
  BOOST_TEST(bit_difference(on.run, off.run) == "");
}

BOOST_AUTO_TEST_CASE(pings_find_how_far_clocks_are_apart) {
  std::vector<ClockOffsets> pinged(4), shared(4);
  run_local(4, {}, [&](Communicator& world) {
    Rank rank(RankOptions{});
    pinged[static_cast<size_t>(world.rank())] = ping_clocks(rank, world, 5, other_clock);
    shared[static_cast<size_t>(world.rank())] = measure_clocks(rank, world);
  });
  for (size_t r = 0; r < 4; ++r) {
    BOOST_TEST(!pinged[r].one_clock);
    BOOST_TEST((pinged[r].nanoseconds == pinged[0].nanoseconds));  // all ranks know all
    const int64_t off = pinged[0].nanoseconds[r] - 3'600'000'000'000 * static_cast<int64_t>(r);
    BOOST_TEST(std::abs(off) <= pinged[0].uncertainty + 1, "rank " << r << ": off by " << off);
    BOOST_TEST(shared[r].one_clock);
    BOOST_TEST((shared[r].nanoseconds == std::vector<int64_t>(4, 0)));
  }
  BOOST_TEST(pinged[0].uncertainty < 1'000'000'000);
}

BOOST_AUTO_TEST_SUITE_END()
