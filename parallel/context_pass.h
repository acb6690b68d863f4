// What the exchanges of context-parallel attention share: messages with their labels, boundary records, and what is noted of them.
#pragma once
#include "parallel/context_attention.h"

namespace quire {

/// One layer's attention of one microbatch, forward and backward.
class ContextPass {
 public:
  ContextPass(ContextAttention& executor, std::shared_ptr<ContextWork> work, int64_t layer, const AttentionOptions& options)
      : executor_(executor), work_(std::move(work)), layer_(layer), options_(options) {}

  Rank& rank() const { return executor_.rank_; }
  int own_rank() const { return executor_.group_.rank(); }
  int ranks() const { return executor_.group_.size(); }
  ContextWork& work() const { return *work_; }
  const AttentionOptions& options() const { return options_; }

  /// Starts sending; nothing is to be written to the tensor later. `purpose` is a literal.
  void send(const Tensor& from, int to, MessageKind kind, const char* purpose = "") const;
  Request receive(const Tensor& into, int from, MessageKind kind, const char* purpose = "") const;

  /// The record of a message's documents in this microbatch.
  Tensor record_of(const Documents& documents) const;
  /// The record of a message, made once.
  const Tensor& record_of(KeyMessage& message) const;
  /// An empty record like `expected`.
  Tensor empty_record(const Tensor& expected) const;
  /// The runs of a step's rows, of the records that came with them: records[i] for receives[i], undefined where nothing came. What is not as expected is noted,
  /// and computed with if it can be; nothing is thrown: all ranks refuse together at the step's end.
  struct ReceivedRuns {
    DocumentRuns runs;
    bool expected;
  };
  ReceivedRuns runs_of(ContextStepWork& step, const std::vector<Tensor>& records) const;
  /// The same where a device compares and looks up, and the host counts what is expected.
  DocumentRuns runs_on_device(ContextStepWork& step, const std::vector<Tensor>& records) const;

  /// Gradients that came back to their owner, in the order in which they are added to its rows.
  Tensor returned(const Tensor& gradients) const;

 private:
  ContextAttention& executor_;
  std::shared_ptr<ContextWork> work_;
  int64_t layer_;
  AttentionOptions options_;
};

/// `ring` and `gather`: keys and values come to the queries.
Value attend_by_keys(const ContextPass& pass, Tape& tape, const Value& q, const Value& k, const Value& v);
/// `heads`: tokens come to their heads.
Value attend_by_heads(const ContextPass& pass, Tape& tape, const Value& q, const Value& k, const Value& v);

}  // namespace quire
