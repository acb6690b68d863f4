#include "parallel/context_attention.h"

#include <cstring>
#include <utility>

#include "parallel/context_pass.h"
#include "parallel/device_boundaries.h"

namespace quire {

void ContextPass::send(const Tensor& from, int to, MessageKind kind, const char* purpose) const {
  std::vector<Request>& sends = executor_.sends_;
  std::erase_if(sends, [](const Request& sent) { return sent.done(); });
  sends.push_back(executor_.group_.send(from, to, {kind, work_->step, work_->stage, work_->microbatch, purpose}));
}

Request ContextPass::receive(const Tensor& into, int from, MessageKind kind, const char* purpose) const {
  return executor_.group_.receive(into, from, {kind, work_->step, work_->stage, work_->microbatch, purpose});
}

Tensor ContextPass::record_of(const Documents& documents) const {
  return make_boundary_record(rank(), {work_->step, work_->stage, work_->microbatch, work_->plan->digest}, documents);
}

const Tensor& ContextPass::record_of(KeyMessage& message) const {
  if (!message.record.defined()) message.record = record_of(message.documents);
  return message.record;
}

Tensor ContextPass::empty_record(const Tensor& expected) const { return Tensor::empty(rank(), expected.shape(), expected.dtype(), Category::data); }

ContextPass::ReceivedRuns ContextPass::runs_of(ContextStepWork& step, const std::vector<Tensor>& records) const {
  if (rank().accelerator() != nullptr) return {runs_on_device(step, records), true};
  std::optional<ContextStepWork> received;  // where it is not what is expected
  for (size_t i = 0; i < records.size(); ++i) {
    if (!records[i].defined()) continue;
    // Equal bytes are equal documents of the same step, stage, microbatch and plan: nothing is to be read from them again.
    const Tensor& expected = record_of(step.receives[i]);
    if (std::memcmp(records[i].raw(), expected.raw(), static_cast<size_t>(expected.bytes())) == 0) continue;
    if (!executor_.mismatch_) executor_.mismatch_ = BoundaryMismatch{work_->stage, work_->microbatch, layer_};
    if (!received) received = ContextStepWork{.receives = step.receives};
    Documents& documents = received->receives[i].documents;
    try {
      documents = read_boundary_record(records[i], documents.tokens()).documents;
    } catch (const BoundaryError&) {
      // No boundaries to compute with: the plan's.
    }
  }
  if (received) return {received_key_runs(*received), false};
  if (step.key_runs == nullptr) step.key_runs = received_key_runs(step);
  return {step.key_runs, true};
}

DocumentRuns ContextPass::runs_on_device(ContextStepWork& step, const std::vector<Tensor>& records) const {
  if (step.key_runs == nullptr) step.key_runs = received_key_runs(step);
  const DeviceBoundaries all = DeviceBoundaries::empty(rank(), step.received, false);
  for (size_t i = 0; i < step.receives.size(); ++i) {
    KeyMessage& message = step.receives[i];
    if (message.count == 0) continue;
    const Tensor& expected = record_of(message);
    const bool came = records[i].defined();  // else they are this rank's own
    if (came) compare_boundary_records(rank(), records[i], expected, executor_.flag_, code_of({work_->stage, work_->microbatch, layer_}));
    take_boundaries(rank(), came ? records[i] : expected, expected, message.count, {work_->whole.tokens(), work_->whole.tokens()}, all, message.first);
  }
  return runs_of_boundaries(rank(), *step.key_runs, all);
}

Tensor ContextPass::returned(const Tensor& gradients) const {
  if (executor_.tamper_ == nullptr || !executor_.tamper_->gives_gradients_to_wrong_owner()) return gradients;
  const int64_t rows = gradients.size(0);
  if (rows == 1) return Tensor::zeros(rank(), gradients.shape(), gradients.dtype());
  const Tensor shifted = Tensor::empty(rank(), gradients.shape(), gradients.dtype());
  copy(rank(), gradients.slice(0, 0, rows - 1), shifted.slice(0, 1, rows));
  copy(rank(), gradients.slice(0, rows - 1, rows), shifted.slice(0, 0, 1));
  return shifted;
}

ContextAttention::ContextAttention(Rank& rank, Communicator& group, ContextPlanner& planner) : rank_(rank), group_(group), planner_(planner) {
  if (planner.ranks() != group.size()) fail<StateError>("context", "plans for {} ranks in a group of {}", planner.ranks(), group.size());
  std::vector<std::array<int, 2>> pairs;  // plans are made later: anyone may need anyone's keys
  for (int from = 0; from < group.size(); ++from)
    for (int to = 0; to < group.size(); ++to)
      if (from != to) pairs.push_back({from, to});
  group.connect(rank, pairs);
  if (rank.accelerator() != nullptr) flag_ = Tensor::zeros(rank, {1}, DType::f64, Category::other);
}

ContextAttention::~ContextAttention() = default;

Documents ContextAttention::shard(const Documents& whole) {
  return documents_of(whole, planner_.plan(whole)->shards.at(static_cast<size_t>(group_.rank())));
}

std::shared_ptr<ContextWork> ContextAttention::begin(const Documents& whole, const Documents& own, int64_t step, int64_t stage, int64_t microbatch) {
  std::shared_ptr<ContextWork> work = make_context_work(planner_.plan(whole), group_.rank(), whole, own);
  work->step = step;
  work->stage = stage;
  work->microbatch = microbatch;
  if (tamper_ != nullptr) tamper_->prepared(*work);
  return work;
}

Value ContextAttention::attend(Tape& tape, int64_t layer, const Value& q, const Value& k, const Value& v, const Microbatch& microbatch,
                               const AttentionOptions& options) {
  auto work = std::dynamic_pointer_cast<ContextWork>(microbatch.work);
  if (work == nullptr) fail<StateError>("context", "attention of a microbatch that was not begun");
  if (q.tensor.size(0) != work->own.tokens() || k.tensor.size(0) != work->own.tokens())
    fail<ShapeError>("context", "q {} and k {} for a shard of {} tokens", describe(q.tensor), describe(k.tensor), work->own.tokens());
  if (group_.size() == 1) return attention(tape, q, k, v, work->own_runs, options);
  const ContextPass pass(*this, work, layer, options);
  return work->plan->exchange == ContextExchange::heads ? attend_by_heads(pass, tape, q, k, v) : attend_by_keys(pass, tape, q, k, v);
}

void ContextAttention::finish() {
  for (const Request& sent : sends_) sent.wait();
  sends_.clear();
}

std::optional<BoundaryMismatch> ContextAttention::take_mismatch() {
  if (flag_.defined())
    if (const std::optional<BoundaryMismatch> found = quire::take_mismatch(rank_, flag_); !mismatch_) mismatch_ = found;
  return std::exchange(mismatch_, std::nullopt);
}

}  // namespace quire
