#include "parallel/pipeline.h"

#include <set>
#include <utility>

#include "parallel/device_boundaries.h"

namespace quire {

namespace {

/// What a stage holds of a microbatch between its first and last computation.
struct Passage {
  Documents shard;                     ///< where ranks share the microbatch: this rank's part of it
  const Documents* planned = nullptr;  ///< of this rank's tokens: the microbatch's, or `shard`
  Microbatch microbatch;
  std::unique_ptr<Tape> tape;
  Value input, output;
  Tensor output_gradient, input_gradient;
  Tensor record, activations;  ///< as received
  DeviceBoundaries boundaries; ///< on a device, where they came from another stage
  Request record_arrived, activations_arrived, gradient_arrived;
};

bool is_forward(const Action& action) { return action.kind == ActionKind::forward; }

/// Ordered pairs of ranks between which a pass, or a tied table's gradients, send.
std::vector<std::array<int, 2>> pairs_of(const PipelineStages& stages, bool tied) {
  std::set<std::array<int, 2>> pairs;
  const auto add = [&](int64_t a, int64_t b) {
    if (a == b) return;
    pairs.insert({static_cast<int>(a), static_cast<int>(b)});
    pairs.insert({static_cast<int>(b), static_cast<int>(a)});
  };
  for (size_t stage = 1; stage < stages.rank_of_stage.size(); ++stage) add(stages.rank_of_stage[stage - 1], stages.rank_of_stage[stage]);
  if (tied) add(stages.first_rank(), stages.last_rank());
  return {pairs.begin(), pairs.end()};
}

bool forwards_ascend(const PipelineSchedule& schedule, int64_t stage) {
  int64_t before = -1;
  for (const Action& action : schedule.actions[static_cast<size_t>(schedule.rank_of_stage[static_cast<size_t>(stage)])])
    if (is_forward(action) && action.stage == stage && std::exchange(before, action.microbatch) > action.microbatch) return false;
  return true;
}

}  // namespace

/// One walk through a program.
class PipelinePass {
 public:
  PipelinePass(Pipeline& pipeline, const PipelineWork& work, const PipelineProgram& program, bool training)
      : pipeline_(pipeline), rank_(pipeline.rank_), work_(work), program_(program), training_(training), last_stage_(program.schedule.stages - 1),
        forward_(pipeline.forward_) {
    // The head then adds to its weight's gradient in the order of forward passes, which must be the order of microbatches.
    if (training && forwards_ascend(program.schedule, last_stage_)) forward_.loss_gradient = work.loss_gradient;
    if (!training || !pipeline.records_) return;
    times_ = std::make_unique<PassTimes>();
    times_->schedule = program.schedule.name;
    pipeline.pass_ = this;
  }
  ~PipelinePass() { pipeline_.pass_ = nullptr; }

  /// Messages that have arrived since the last call, where times are noted; that for `awaited` has for the host, though a device may still wait for it.
  void note_arrivals(const Action* awaited = nullptr) {
    std::erase_if(under_way_, [this, awaited](const Arriving& message) {
      const Passage& p = *message.passage;
      if (!(awaited != nullptr && message.consumer == *awaited) && !(is_forward(message.consumer) ? p.record_arrived.done() && p.activations_arrived.done() : p.gradient_arrived.done())) return false;
      times_->received.push_back({message.consumer, message.peer, message.bytes, steady_nanoseconds()});
      return true;
    });
  }

  void run() {
    for (const Instruction& instruction : program_.instructions[static_cast<size_t>(pipeline_.group_.rank())]) {
      if (times_ != nullptr) note_arrivals();
      switch (instruction.kind) {
        case InstructionKind::compute: compute(instruction.action); break;
        case InstructionKind::post_receive: post_receive(instruction.action, static_cast<int>(instruction.peer)); break;
        case InstructionKind::await: await(instruction.action); break;
        case InstructionKind::send: send(instruction.action, static_cast<int>(instruction.peer)); break;
      }
    }
    for (const Request& sent : sends_) sent.wait();
    if (times_ != nullptr) {
      pipeline_.pass_ = nullptr;
      pipeline_.times_ = std::move(*times_);
    }
    if (pipeline_.context_ != nullptr) pipeline_.context_->finish();
  }

 private:
  const HostBatch& host(const Action& action) const { return work_.microbatches[static_cast<size_t>(action.microbatch)]; }
  bool is_here(int64_t stage) const { return program_.schedule.rank_of_stage[static_cast<size_t>(stage)] == pipeline_.group_.rank(); }
  Passage& passage(int64_t stage, int64_t microbatch) {
    std::unique_ptr<Passage>& entry = passages_[{stage, microbatch}];
    if (!entry) {
      entry = std::make_unique<Passage>();
      const Documents& whole = work_.microbatches[static_cast<size_t>(microbatch)].documents;
      if (pipeline_.context_ != nullptr) entry->shard = pipeline_.context_->shard(whole);
      entry->planned = pipeline_.context_ != nullptr ? &entry->shard : &whole;
    }
    return *entry;
  }
  MessageLabel label(MessageKind kind, const Action& action) const { return {kind, work_.step, action.stage, host(action).index}; }
  Tensor stream(const Passage& p) const { return Tensor::empty(rank_, {p.planned->tokens(), pipeline_.model_.config().dim}, pipeline_.model_.dtype()); }

  void post_receive(const Action& action, int peer) {
    Passage& p = passage(action.stage, action.microbatch);
    Communicator& group = pipeline_.group_;
    if (is_forward(action)) {
      p.record = Tensor::empty(rank_, boundary_record_shape(*p.planned), DType::i32, Category::data);
      p.activations = stream(p);
      p.record_arrived = group.receive(p.record, peer, label(MessageKind::boundaries, action));
      p.activations_arrived = group.receive(p.activations, peer, label(MessageKind::activations, action));
    } else {
      p.output_gradient = stream(p);
      p.gradient_arrived = group.receive(p.output_gradient, peer, label(MessageKind::activation_gradients, action));
    }
    if (times_ != nullptr) under_way_.push_back({action, group.world_rank(peer), is_forward(action) ? p.record.bytes() + p.activations.bytes() : p.output_gradient.bytes(), &p});
  }

  void await(const Action& action) {
    Passage& p = passage(action.stage, action.microbatch);
    if (is_forward(action)) {
      p.record_arrived.wait();
      p.activations_arrived.wait();
    } else {
      p.gradient_arrived.wait();
    }
    if (times_ != nullptr) note_arrivals(&action);
  }

  /// `action` is the consumer's: what it needs was made by the stage before (a forward) or after (a backward), which is here.
  void send(const Action& action, int peer) {
    std::erase_if(sends_, [](const Request& sent) { return sent.done(); });
    Communicator& group = pipeline_.group_;
    if (is_forward(action)) {
      Passage& p = passage(action.stage - 1, action.microbatch);
      const Tensor record = record_for(action, p);
      note_sent(action, peer, record.bytes() + p.output.tensor.bytes());
      sends_.push_back(group.send(record, peer, label(MessageKind::boundaries, action)));
      sends_.push_back(group.send(p.output.tensor, peer, label(MessageKind::activations, action)));
      if (!training_) passages_.erase({action.stage - 1, action.microbatch});
    } else {
      Passage& p = passage(action.stage + 1, action.microbatch);
      note_sent(action, peer, p.input_gradient.bytes());
      sends_.push_back(group.send(p.input_gradient, peer, label(MessageKind::activation_gradients, action)));
      p.input_gradient = {};
    }
  }

  /// Of what the stage before `action`'s masked with.
  Tensor record_for(const Action& action, const Passage& before) const {
    const BoundaryHeader header{work_.step, action.stage, host(action).index};
    if (before.boundaries.defined()) return make_boundary_record(rank_, header, before.microbatch.documents, before.boundaries);
    return make_boundary_record(rank_, header, before.microbatch.documents);
  }

  void note_sent(const Action& consumer, int peer, int64_t bytes) {
    if (times_ != nullptr) times_->sent.push_back({consumer, pipeline_.group_.world_rank(peer), bytes, steady_nanoseconds()});
  }

  void compute(const Action& action) {
    const int64_t begin = times_ != nullptr ? steady_nanoseconds() : 0;
    switch (action.kind) {
      case ActionKind::forward: forward(action); break;
      case ActionKind::backward: backward(action, BackwardMode::full); break;
      case ActionKind::backward_input: backward(action, BackwardMode::input_only); break;
      case ActionKind::backward_weight: backward_weight(action); break;
    }
    if (times_ != nullptr) times_->spans.push_back({action, begin, steady_nanoseconds()});
    if (work_.between) work_.between();
  }

  void forward(const Action& action) {
    Passage& p = passage(action.stage, action.microbatch);
    p.tape = std::make_unique<Tape>(rank_, training_);
    if (training_ && work_.parameter_done) p.tape->set_parameter_hook(work_.parameter_done);
    take_input(action, p);
    LayerRange layers = pipeline_.stages_.layers(action.stage);
    const bool last = action.stage == last_stage_;
    if (last && !training_) --layers.last;  // the head is the caller's
    const int64_t before = rank_.work().computed_pairs;
    if (action.stage == 0 && training_ && work_.embedding_gradient) {
      Tape apart(rank_, false);
      p.input = p.tape->leaf(pipeline_.model_.forward(apart, {}, p.microbatch, forward_, 0, 1).tensor);
      layers.first = 1;
    }
    p.output = pipeline_.model_.forward(*p.tape, p.input, p.microbatch, forward_, layers.first, layers.last);
    pipeline_.forward_pairs_ += rank_.work().computed_pairs - before;
    if (!last) return;
    if (training_) {
      accumulate(rank_, p.output.tensor, work_.losses.slice(0, action.microbatch, action.microbatch + 1));
    } else {
      work_.hidden(action.microbatch, p.output.tensor, p.microbatch);
      passages_.erase({action.stage, action.microbatch});
    }
  }

  /// Sets microbatch and input: from the loader, from the stage before on this rank, or from what was received.
  void take_input(const Action& action, Passage& p) {
    Documents documents;
    const bool received = action.stage > 0 && !is_here(action.stage - 1);
    if (action.stage == 0) {
      documents = *p.planned;
    } else if (received) {
      if (rank_.accelerator() != nullptr) p.boundaries = received_boundaries(action, p);
      documents = p.boundaries.defined() ? *p.planned : received_documents(action, p);
      p.input = p.tape->leaf(std::exchange(p.activations, {}));
    } else {
      Passage& before = passage(action.stage - 1, action.microbatch);
      documents = before.microbatch.documents;
      p.boundaries = before.boundaries;
      p.input = p.tape->leaf(before.output.tensor);
      if (!training_) passages_.erase({action.stage - 1, action.microbatch});
    }
    const HostBatch& batch = host(action);
    std::vector<int32_t> own_tokens, own_targets;
    std::span<const int32_t> tokens, targets;
    if (action.stage == 0) tokens = own_values("tokens", batch.tokens, action, own_tokens);
    if (action.stage == last_stage_) targets = own_values("targets", batch.targets, action, own_targets);
    p.microbatch = Microbatch::make_stage(rank_, tokens, targets, std::move(documents), p.boundaries.positions);
    if (p.boundaries.defined()) p.microbatch.runs = runs_of_boundaries(rank_, p.microbatch.documents.runs(), p.boundaries);
    if (received && pipeline_.tamper_ != nullptr) pipeline_.tamper_->received(action.stage, action.microbatch, p.microbatch);
    if (received && p.microbatch.documents != *p.planned) {
      p.boundaries = {};  // a tamper's are the host's
      note_mismatch(action);
    }
    if (pipeline_.context_ != nullptr) {
      const std::shared_ptr<ContextWork> work = pipeline_.context_->begin(batch.documents, p.microbatch.documents, work_.step, action.stage, batch.index);
      if (p.boundaries.defined() && work->own == p.microbatch.documents) work->own_runs = p.microbatch.runs;  // a tamper's stay
      p.microbatch.work = work;
    }
    if (work_.begun) work_.begun(action.stage, action.microbatch, p.microbatch);
  }

  /// Tokens or targets of a microbatch that are this rank's: all of them, or those gathered in `own`.
  std::span<const int32_t> own_values(const char* what, const std::vector<int32_t>& all, const Action& action, std::vector<int32_t>& own) {
    if (pipeline_.context_ == nullptr || all.empty()) return all;
    const Documents& whole = host(action).documents;
    if (static_cast<int64_t>(all.size()) != whole.tokens()) fail<ShapeError>("microbatch", "{} {}, boundaries for {}", all.size(), what, whole.tokens());
    const Documents& planned = *passage(action.stage, action.microbatch).planned;
    own.reserve(static_cast<size_t>(planned.tokens()));
    for (const int32_t index : planned.indices()) own.push_back(all[static_cast<size_t>(index)]);
    return own;
  }

  /// Those of the record; the plan's where it holds none that could be computed with. Every mismatch is noted and refused at the step's end, on all ranks at
  /// once: an error here would leave the others waiting.
  Documents received_documents(const Action& action, Passage& p) {
    try {
      BoundaryRecord record = read_boundary_record(std::exchange(p.record, {}), p.planned->tokens());
      if (record.header != BoundaryHeader{work_.step, action.stage, host(action).index} || record.digest != record.documents.digest()) note_mismatch(action);
      if (record.documents == *p.planned || may_be_computed_with(record.documents, action)) return std::move(record.documents);
    } catch (const BoundaryError&) {
    }
    note_mismatch(action);
    return *p.planned;
  }

  /// On a device a mismatch raises its flag, which the optimizer looks at; the host takes the plan's boundaries for counting alone.
  DeviceBoundaries received_boundaries(const Action& action, Passage& p) const {
    const int64_t tokens = p.planned->tokens(), index = host(action).index;
    const Tensor found = std::exchange(p.record, {}), expected = make_boundary_record(rank_, {work_.step, action.stage, index}, *p.planned);
    compare_boundary_records(rank_, found, expected, pipeline_.flag_, code_of({action.stage, index}));
    DeviceBoundaries result = DeviceBoundaries::empty(rank_, tokens, true);
    take_boundaries(rank_, found, expected, tokens, {host(action).documents.tokens(), pipeline_.model_.config().max_seq_len}, result);
    return result;
  }

  /// Whether positions and indices of received documents are inside of what kernels take.
  bool may_be_computed_with(const Documents& documents, const Action& action) const {
    for (int64_t i = 0; i < documents.tokens(); ++i) {
      const int32_t index = documents.indices()[static_cast<size_t>(i)];
      if (index >= host(action).documents.tokens() || index - documents.starts()[static_cast<size_t>(i)] >= pipeline_.model_.config().max_seq_len) return false;
    }
    return true;
  }

  void note_mismatch(const Action& action) {
    if (!pipeline_.mismatch_) pipeline_.mismatch_ = {action.stage, host(action).index, -1};
  }

  void backward(const Action& action, BackwardMode mode) {
    Passage& p = passage(action.stage, action.microbatch);
    const Tensor gradient = action.stage == last_stage_ ? work_.loss_gradient : std::exchange(p.output_gradient, {});
    p.tape->backward(std::span(&p.output, 1), std::span(&gradient, 1), mode);
    if (p.input.needs_gradient()) {
      Tensor input_gradient = p.tape->take_gradient(p.input);
      if (!input_gradient.defined()) input_gradient = Tensor::zeros(rank_, p.input.tensor.shape(), p.input.tensor.dtype());
      if (action.stage == 0) work_.embedding_gradient(action.microbatch, input_gradient);
      else if (is_here(action.stage - 1)) passage(action.stage - 1, action.microbatch).output_gradient = std::move(input_gradient);
      else p.input_gradient = std::move(input_gradient);
    }
    release(p);
    if (mode == BackwardMode::full) p.tape.reset();
  }

  void backward_weight(const Action& action) {
    Passage& p = passage(action.stage, action.microbatch);
    p.tape->backward_weights();
    p.tape.reset();
  }

  /// Everything but a gradient that is still to be sent, and the tape: it keeps what weight gradients need that are still to come.
  void release(Passage& p) {
    p.input = p.output = {};
    p.microbatch = {};
    p.boundaries = {};
  }

  Pipeline& pipeline_;
  Rank& rank_;
  const PipelineWork& work_;
  const PipelineProgram& program_;
  bool training_;
  int64_t last_stage_;
  ForwardOptions forward_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Passage>> passages_;
  std::vector<Request> sends_;
  struct Arriving {
    Action consumer;
    int64_t peer = 0, bytes = 0;
    const Passage* passage = nullptr;
  };
  std::unique_ptr<PassTimes> times_;  ///< nullptr: nothing is noted
  std::vector<Arriving> under_way_;   ///< receives that are posted
};

Pipeline::Pipeline(Rank& rank, Model& model, Communicator& group, PipelineStages stages, const ForwardOptions& forward, ContextAttention* context)
    : rank_(rank), model_(model), group_(group), stages_(std::move(stages)), forward_(forward), context_(context) {
  if (forward_.attention == nullptr) forward_.attention = context;
  if (group.size() != stages_.ranks) fail<StateError>("pipeline", "a group of {} ranks for a pipeline of {}", group.size(), stages_.ranks);
  group.connect(rank, pairs_of(stages_, model.config().tie_embeddings));
  if (rank.accelerator() != nullptr) flag_ = context != nullptr ? context->mismatch_flag() : Tensor::zeros(rank, {1}, DType::f64, Category::other);
}

void Pipeline::set_schedule(std::function<PipelineSchedule(int64_t)> make) {
  make_schedule_ = std::move(make);
  train_programs_.clear();
}

const PipelineProgram& Pipeline::training_program(int64_t microbatches) {
  auto entry = train_programs_.find(microbatches);
  if (entry == train_programs_.end()) {
    const PipelineSchedule schedule = make_schedule_ ? make_schedule_(microbatches) : training_schedule(stages_, microbatches);
    check_schedule(schedule);
    if (schedule.ranks != stages_.ranks || schedule.stages != stages_.stages() || schedule.microbatches != microbatches)
      fail<ScheduleError>("pipeline", "a schedule of {} ranks, {} stages and {} microbatches for {}, {} and {}", schedule.ranks, schedule.stages, schedule.microbatches,
                          stages_.ranks, stages_.stages(), microbatches);
    if (schedule.rank_of_stage != stages_.rank_of_stage) fail<ScheduleError>("pipeline", "{}: its stages lie on other ranks than the pipeline's", schedule.name);
    entry = train_programs_.emplace(microbatches, lower(schedule)).first;
  }
  return entry->second;
}

void Pipeline::train(const PipelineWork& work) {
  PipelinePass(*this, work, training_program(static_cast<int64_t>(work.microbatches.size())), true).run();
}

void Pipeline::forward(const PipelineWork& work) {
  const auto count = static_cast<int64_t>(work.microbatches.size());
  auto entry = forward_programs_.find(count);
  if (entry == forward_programs_.end()) entry = forward_programs_.emplace(count, lower(forward_schedule(stages_.rank_of_stage, stages_.ranks, count))).first;
  PipelinePass(*this, work, entry->second, false).run();
}

void Pipeline::poll() {
  group_.poll();
  if (pass_ != nullptr) pass_->note_arrivals();
}

std::optional<BoundaryMismatch> Pipeline::take_mismatch() {
  if (context_ != nullptr)
    if (const std::optional<BoundaryMismatch> found = context_->take_mismatch(); found && !mismatch_) mismatch_ = found;
  if (flag_.defined() && context_ == nullptr)
    if (const std::optional<BoundaryMismatch> found = quire::take_mismatch(rank_, flag_); !mismatch_) mismatch_ = found;
  return std::exchange(mismatch_, std::nullopt);
}

Tensor Pipeline::mismatch_flag() {
  if (flag_.defined() && mismatch_) {
    const double code = code_of(*mismatch_);
    write<double>(rank_, flag_, std::span(&code, 1));
  }
  return flag_;
}

void exchange_tied_gradients(Rank& rank, Model& model, Communicator& group, const PipelineStages& stages, const MessageLabel& label,
                             const std::function<void(Parameter&)>& reduce) {
  Parameter* table = model.tied_table();
  const int first = static_cast<int>(stages.first_rank()), last = static_cast<int>(stages.last_rank());
  if (table == nullptr || first == last) return;
  if (group.rank() == first) {
    group.receive(table->gradients[1], last, label).wait();
    accumulate(rank, table->gradients[1], table->gradients[0]);
    reduce(*table);
    group.send(table->gradients[0], last, label).wait();
  } else {
    const Request sum = group.receive(table->gradients[0], first, label);
    group.send(table->gradients[1], first, label).wait();
    sum.wait();
  }
}

}  // namespace quire
