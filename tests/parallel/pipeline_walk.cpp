// What a pipeline does on the wire is its program: no send waits for another computation, and receives are posted before the computation they overlap.
#include "products/layout_product.h"

using namespace quire;
using namespace quire::test;

namespace {

using Events = std::vector<std::string>;

std::string event_of(const char* what, MessageKind kind, int64_t stage, int64_t microbatch, int64_t peer) {
  return fmt::format("{} {} for stage {}, microbatch {}, rank {}", what, name_of(kind), stage, microbatch, peer);
}

/// What one rank's instructions come to: a forward's message is a record and activations, a backward's a gradient.
Events expected(const std::vector<Instruction>& instructions) {
  Events events;
  for (const Instruction& instruction : instructions) {
    const Action& action = instruction.action;
    const bool forward = action.kind == ActionKind::forward;
    const auto message = [&](const char* what) {
      for (const MessageKind kind : forward ? std::vector{MessageKind::boundaries, MessageKind::activations} : std::vector{MessageKind::activation_gradients})
        events.push_back(event_of(what, kind, action.stage, action.microbatch, instruction.peer));
    };
    if (instruction.kind == InstructionKind::compute) events.push_back("compute");
    if (instruction.kind == InstructionKind::post_receive) message("receive");
    if (instruction.kind == InstructionKind::send) message("send");
  }
  return events;
}

/// Moves the first send that a computation follows behind that computation; false where there is none.
bool put_off_a_send(std::vector<Instruction>& instructions) {
  const auto send = std::find_if(instructions.begin(), instructions.end(), [](const Instruction& i) { return i.kind == InstructionKind::send; });
  const auto next = std::find_if(send, instructions.end(), [](const Instruction& i) { return i.kind == InstructionKind::compute; });
  if (next == instructions.end()) return false;
  std::rotate(send, send + 1, next + 1);
  return true;
}

struct Walk {
  std::vector<Events> events;              ///< of each rank
  std::vector<PipelineProgram> programs;   ///< as each rank made it
};

Walk walk(const Config& config, const std::vector<HostBatch>& batches, bool split) {
  const PipelineStages stages = cut_into_stages(config.model, config.distributed.pp_schedule, config.distributed.pp, config.distributed.pp_chunks);
  Walk result;
  result.events.resize(static_cast<size_t>(stages.ranks));
  result.programs.resize(static_cast<size_t>(stages.ranks));
  run_local(static_cast<int>(stages.ranks), {}, [&](Communicator& world) {
    const auto number = static_cast<size_t>(world.rank());
    Events& events = result.events[number];
    Rank rank(rank_options(config));
    WireHooks hooks;
    hooks.sent = [&](int other, const MessageLabel& label) { events.push_back(event_of("send", label.kind, label.stage, label.microbatch, other)); };
    hooks.posted = [&](int other, const MessageLabel& label) { events.push_back(event_of("receive", label.kind, label.stage, label.microbatch, other)); };
    Wire group(world, hooks);
    Model model(rank, config.model, config.dtype(), true, stages.held_by(world.rank()));
    model.initialize(rank, 1);
    Pipeline pipeline(rank, model, group, stages, {});
    if (split)
      pipeline.set_schedule([stages](int64_t microbatches) { return split_backward(make_schedule(stages.schedule, stages.ranks, stages.chunks, microbatches), 2); });
    PipelineWork work;
    work.microbatches = batches;
    const double one = 1;
    work.loss_gradient = Tensor::from<double>(rank, {1}, std::span(&one, 1));
    work.losses = Tensor::zeros(rank, {static_cast<int64_t>(batches.size())}, DType::f64);
    work.between = [&] { events.push_back("compute"); };
    pipeline.train(work);
    result.programs[number] = pipeline.training_program(static_cast<int64_t>(batches.size()));
  });
  return result;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(pipeline_walk)

BOOST_AUTO_TEST_CASE(what_is_walked_is_the_program_and_nothing_in_it_is_late) {
  const auto corpus = layout_corpus();
  for (const int64_t pp : {1, 2, 3, 4})
    for (const char* name : {"gpipe", "1f1b", "interleaved_1f1b 2", "interleaved_1f1b 3", "gpipe split", "1f1b split", "interleaved_1f1b 3 split", "zb_h1", "zb_v"})
      for (const int64_t microbatches : {1, 2, 3, 8}) {
        const ScheduleName schedule = schedule_from(name);
        Config config = product_config();
        config.model.n_layers = layers_for(pp * schedule.chunks);
        config.train.global_batch_size = microbatches;
        config.train.microbatch_size = 1;
        set_layout_parameter(config, "schedule", name);
        config.distributed.pp = pp;
        config = resolved(config);
        LoaderSettings settings = loader_settings(config);
        settings.prefetch = 0;
        const std::vector<HostBatch> batches = Loader(corpus, settings).next_step().microbatches;
        const Walk seen = walk(config, batches, schedule.split);
        BOOST_TEST_CONTEXT(name << ", pp " << pp << ", " << microbatches << " microbatches")
        for (size_t rank = 0; rank < seen.events.size(); ++rank) {
          const PipelineProgram& program = seen.programs[rank];
          BOOST_TEST((program.instructions == seen.programs[0].instructions));  // all ranks walk one program
          BOOST_TEST(late_sends(program) == 0);
          BOOST_TEST(unoverlapped_receives(program) == 0);
          BOOST_TEST((seen.events[rank] == expected(program.instructions[rank])));
          // The control: a program with one send put off past the next computation is counted late, and is not what was walked.
          PipelineProgram late = program;
          if (!put_off_a_send(late.instructions[rank])) continue;
          BOOST_TEST(late_sends(late) > 0);
          BOOST_TEST((seen.events[rank] != expected(late.instructions[rank])));
        }
      }
}

BOOST_AUTO_TEST_CASE(each_boundary_and_microbatch_carries_activations_four_bytes_per_token_and_64_bytes) {
  const auto corpus = layout_corpus();
  for (const auto& [pp, name] : {std::pair<int64_t, const char*>{2, "gpipe"}, {4, "1f1b"}, {3, "interleaved_1f1b 2"}})
    for (const char* packing : {"concat", "single"}) {
      Config config = product_config();
      config.model.n_layers = 12;
      config.train.global_batch_size = 6;
      config.train.microbatch_size = 1;
      set_parameter(config, "packing", packing);
      set_layout_parameter(config, "schedule", name);
      config.distributed.pp = pp;
      config = resolved(config);
      std::mutex mutex;
      std::map<std::pair<int64_t, int64_t>, std::map<MessageKind, int64_t>> bytes;  // by stage and microbatch
      LayoutRunOptions options;
      options.steps = 1;
      options.evaluate = false;
      options.wire = [&](Rank&, int) {
        WireHooks hooks;
        hooks.change = [&](const Tensor& message, int, const MessageLabel& label) {
          const std::lock_guard lock(mutex);
          if (label.kind <= MessageKind::activation_gradients) bytes[{label.stage, label.microbatch}][label.kind] += message.bytes();
          return message;
        };
        return hooks;
      };
      const LayoutRun run = run_layout(config, corpus, options);
      LoaderSettings settings = loader_settings(config);
      settings.prefetch = 0;
      const LoadedStep step = Loader(corpus, settings).next_step();
      const int64_t stages = pp * config.distributed.pp_chunks;
      std::map<std::pair<int64_t, int64_t>, std::map<MessageKind, int64_t>> due;
      for (const HostBatch& host : step.microbatches) {
        const int64_t tokens = host.documents.tokens(), stream = tokens * config.model.dim * 4;
        for (int64_t stage = 0; stage < stages; ++stage) {
          if (stage > 0) due[{stage, host.index}][MessageKind::boundaries] = 4 * tokens + 64;
          if (stage > 0) due[{stage, host.index}][MessageKind::activations] = stream;
          if (stage + 1 < stages) due[{stage, host.index}][MessageKind::activation_gradients] = stream;
        }
      }
      BOOST_TEST((bytes == due), name << ", pp " << pp << ", " << packing);
      int64_t counted = 0, expected_bytes = 0;
      for (const MessageKind kind : {MessageKind::boundaries, MessageKind::activations, MessageKind::activation_gradients}) counted += run.traffic[kind].bytes;
      for (const auto& [where, kinds] : due)
        for (const auto& [kind, size] : kinds) expected_bytes += size;
      BOOST_TEST(counted == expected_bytes);
    }
}

BOOST_AUTO_TEST_SUITE_END()
