// Exchanges in which keys and values come to the queries: step by step (ring), or once, kept for backward (gather).
//
// Order of a pair's messages, the same on both of its ranks. Forward: the keys and values of step 0, 1, ... Backward (K: keys and values, which only a
// ring sends again; G: their gradients): K0, K1, G0, K2, G1, ... Every rank walks all steps of the plan by their numbers, also those that it has no part in.
#include <utility>

#include "ops/elementwise.h"
#include "parallel/context_pass.h"

namespace quire {

namespace {

/// Keys and values of one step on their way to this rank.
struct Arrival {
  Tensor rows;  ///< [received, 2 * width]: of each row its keys, then its values
  std::vector<Tensor> records;
  std::vector<Request> requests;
  DocumentRuns key_runs, query_runs;  ///< what they are masked with, and for whom: once they are here
};

class KeyWalk {
 public:
  KeyWalk(ContextPass pass, const Tensor& q, const Tensor& k, const Tensor& v)
      : pass_(std::move(pass)), q_(q), k_(k), v_(v), width_(k.size(1)), accumulator_(accumulator_of(q.dtype())) {
    const auto found = pass_.work().steps.find(pass_.options().window);
    if (found == pass_.work().steps.end()) fail<StateError>("context", "the plan has no exchange for a window of {}", pass_.options().window);
    steps_ = &found->second;
  }

  size_t steps() const { return steps_->size(); }

  /// Posts what this rank receives in a step and sends what it gives.
  Arrival start(size_t number) const {
    ContextStepWork& step = (*steps_)[number];
    Arrival arrival;
    if (step.received > 0) arrival.rows = Tensor::empty(pass_.rank(), {step.received, 2 * width_}, k_.dtype());
    for (KeyMessage& message : step.receives) {
      arrival.records.push_back(pass_.empty_record(pass_.record_of(message)));
      arrival.requests.push_back(pass_.receive(arrival.records.back(), message.peer, MessageKind::boundaries, "keys and values"));
      arrival.requests.push_back(pass_.receive(rows_of(arrival.rows, message), message.peer, MessageKind::keys_values));
    }
    for (KeyMessage& message : step.sends) {
      pass_.send(pass_.record_of(message), message.peer, MessageKind::boundaries, "keys and values");
      pass_.send(pack(message), message.peer, MessageKind::keys_values);
    }
    return arrival;
  }

  /// Waits for a step's keys and values, and makes their runs of the boundaries that came with them.
  void finish(size_t number, Arrival& arrival) const {
    ContextStepWork& step = (*steps_)[number];
    for (const Request& request : arrival.requests) request.wait();
    const ContextPass::ReceivedRuns received = pass_.runs_of(step, arrival.records);
    arrival.key_runs = received.runs;
    arrival.query_runs = received.expected ? step.query_runs : pass_.work().own_runs;
    arrival.records.clear();
    arrival.requests.clear();
  }

  AttentionPartial own() const { return attention_partial(pass_.rank(), q_, k_, v_, pass_.work().own_runs, pass_.work().own_runs, pass_.options()); }

  /// Merges the attention over a step's keys into `result`.
  void attend(const Arrival& arrival, const AttentionPartial& result, AttentionPartial& scratch) const {
    if (!arrival.rows.defined() || arrival.query_runs->empty()) return;
    Rank& rank = pass_.rank();
    if (!scratch.out.defined()) scratch = {Tensor::empty(rank, result.out.shape(), accumulator_), Tensor::empty(rank, result.lse.shape(), accumulator_)};
    attention_partial(rank, q_, keys(arrival.rows), values(arrival.rows), arrival.query_runs, arrival.key_runs, pass_.options(), scratch);
    attention_merge(rank, result, scratch, arrival.query_runs, pass_.options());
  }

  /// Gradients of all that this rank's queries read. `kept`: what a gather received in forward; a ring receives it again.
  void backward(Tape& tape, const int (&slots)[3], const Tensor& out, const Tensor& lse, const Tensor& grad, const std::vector<Arrival>* kept) const {
    Rank& rank = pass_.rank();
    const Tensor delta = attention_delta(rank, out, grad, pass_.options());
    const Tensor dq = Tensor::zeros(rank, q_.shape(), accumulator_), own = Tensor::zeros(rank, {k_.size(0), 2 * width_}, accumulator_);
    const auto add = [&](const Tensor& k, const Tensor& v, const DocumentRuns& query_runs, const DocumentRuns& key_runs, const Tensor& both) {
      attention_backward(rank, q_, k, v, query_runs, key_runs, grad, lse, delta, pass_.options(), dq, keys(both), values(both));
    };
    Arrival next;
    if (kept == nullptr && steps() > 0) next = start(0);
    add(k_, v_, pass_.work().own_runs, pass_.work().own_runs, own);
    std::vector<Return> returns;
    for (size_t number = 0; number < steps(); ++number) {
      Arrival arrival = kept != nullptr ? (*kept)[number] : std::move(next);
      if (kept == nullptr && number + 1 < steps()) next = start(number + 1);
      await_returns(number, returns);
      if (kept == nullptr) finish(number, arrival);
      if (!arrival.rows.defined()) continue;
      const Tensor gradients = Tensor::zeros(rank, arrival.rows.shape(), accumulator_);
      if (!arrival.query_runs->empty()) add(keys(arrival.rows), values(arrival.rows), arrival.query_runs, arrival.key_runs, gradients);
      for (const KeyMessage& message : (*steps_)[number].receives) pass_.send(rows_of(gradients, message), message.peer, MessageKind::key_value_gradients);
    }
    add_returns(returns, own);
    tape.add_gradient(slots[0], cast(rank, dq, q_.dtype()));
    tape.add_gradient(slots[1], cast(rank, contiguous(rank, keys(own)), k_.dtype()));
    tape.add_gradient(slots[2], cast(rank, contiguous(rank, values(own)), v_.dtype()));
  }

 private:
  /// Gradients of what this rank sent, on their way back.
  struct Return {
    const KeyMessage* message;
    Tensor gradients;
    Request request;
  };

  Tensor keys(const Tensor& both) const { return both.slice(1, 0, width_); }
  Tensor values(const Tensor& both) const { return both.slice(1, width_, 2 * width_); }
  static Tensor rows_of(const Tensor& buffer, const KeyMessage& message) { return buffer.slice(0, message.first, message.first + message.count); }

  Tensor pack(const KeyMessage& message) const {
    const Tensor packed = Tensor::empty(pass_.rank(), {message.count, 2 * width_}, k_.dtype());
    for (int64_t at = 0; const LocalRows& part : message.rows) {
      const Tensor to = packed.slice(0, at, at + part.count);
      copy(pass_.rank(), k_.slice(0, part.begin, part.begin + part.count), keys(to));
      copy(pass_.rank(), v_.slice(0, part.begin, part.begin + part.count), values(to));
      at += part.count;
    }
    return packed;
  }

  void await_returns(size_t number, std::vector<Return>& returns) const {
    for (const KeyMessage& message : (*steps_)[number].sends) {
      Return coming{&message, Tensor::empty(pass_.rank(), {message.count, 2 * width_}, accumulator_), {}};
      coming.request = pass_.receive(coming.gradients, message.peer, MessageKind::key_value_gradients);
      returns.push_back(std::move(coming));
    }
  }

  /// In the order of steps and peers, whatever came first.
  void add_returns(const std::vector<Return>& returns, const Tensor& own) const {
    for (const Return& coming : returns) {
      coming.request.wait();
      const Tensor gradients = pass_.returned(coming.gradients);
      for (int64_t at = 0; const LocalRows& part : coming.message->rows) {
        accumulate(pass_.rank(), gradients.slice(0, at, at + part.count), own.slice(0, part.begin, part.begin + part.count));
        at += part.count;
      }
    }
  }

  ContextPass pass_;
  Tensor q_, k_, v_;
  int64_t width_;
  DType accumulator_;
  std::vector<ContextStepWork>* steps_;
};

class KeyExchangeNode final : public Node {
 public:
  KeyExchangeNode(const ContextPass& pass, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionPartial& result, std::vector<Arrival> kept)
      : pass_(pass), q_(keep(q)), k_(keep(k)), v_(keep(v)), out_(keep(result.out)), lse_(keep(result.lse)), kept_(std::move(kept)) {
    for (Arrival& arrival : kept_) rows_.push_back(arrival.rows.defined() ? keep(std::exchange(arrival.rows, {})) : -1);
  }
  std::string_view name() const override { return "context_attention"; }

  void input_gradient(Tape& tape, const Tensor& grad) override {
    for (size_t i = 0; i < kept_.size(); ++i)
      if (rows_[i] >= 0) kept_[i].rows = saved(rows_[i]);
    const KeyWalk walk(pass_, saved(q_), saved(k_), saved(v_));
    walk.backward(tape, {input(0), input(1), input(2)}, saved(out_), saved(lse_), grad, kept_.empty() ? nullptr : &kept_);
    kept_.clear();
  }

 private:
  int keep(const Tensor& tensor) { return save(tensor, For::input_gradient); }

  ContextPass pass_;
  int q_, k_, v_, out_, lse_;
  std::vector<Arrival> kept_;  ///< their rows are saved tensors
  std::vector<int> rows_;
};

}  // namespace

Value attend_by_keys(const ContextPass& pass, Tape& tape, const Value& q, const Value& k, const Value& v) {
  const Value inputs[] = {q, k, v};
  const bool recording = tape.must_record(inputs, false), keeps = recording && pass.work().plan->exchange == ContextExchange::gather;
  const KeyWalk walk(pass, q.tensor, k.tensor, v.tensor);
  std::vector<Arrival> kept;
  Arrival next;
  if (walk.steps() > 0) next = walk.start(0);
  AttentionPartial result = walk.own(), scratch;
  for (size_t number = 0; number < walk.steps(); ++number) {
    Arrival arrival = std::move(next);
    if (number + 1 < walk.steps()) next = walk.start(number + 1);
    walk.finish(number, arrival);
    walk.attend(arrival, result, scratch);
    if (keeps) kept.push_back(std::move(arrival));
  }
  result.out = cast(pass.rank(), result.out, q.tensor.dtype());
  if (!recording) return tape.constant(result.out);
  return tape.record(std::make_unique<KeyExchangeNode>(pass, q.tensor, k.tensor, v.tensor, result, std::move(kept)), inputs, result.out);
}

}  // namespace quire
