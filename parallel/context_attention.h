// Attention over context-parallel ranks: walks a ContextPlan. Keys and values travel with their boundaries, and the receiver masks with what it received.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "model/model.h"
#include "parallel/boundary_record.h"
#include "parallel/communicator.h"
#include "parallel/context_planner.h"

namespace quire {

/// Consecutive rows of local storage.
struct LocalRows {
  int64_t begin = 0, count = 0;
};

/// One message of a step, as one of its two ranks sees it.
struct KeyMessage {
  int peer = 0;
  std::vector<LocalRows> rows;  ///< sender: its tokens that go, in order
  int64_t first = 0;            ///< receiver: where the message's rows begin in the step's buffer
  int64_t count = 0;            ///< rows
  Documents documents;          ///< of these rows: what the sender sends, and what the receiver expects
  Tensor record;                ///< boundary record of them, made at the first use in a microbatch
};

/// A rank's part of one step. Every step of the plan has one, so that steps have the same numbers on all ranks; it may be empty.
struct ContextStepWork {
  std::vector<KeyMessage> sends, receives;  ///< in ascending order of the peer
  int64_t received = 0;                     ///< rows of all receives
  DocumentRuns query_runs;                  ///< local queries that read any received key, where keys are what is expected
  DocumentRuns key_runs;                    ///< of all received rows then, made at the first use in a microbatch
};
/// Runs of the rows of a step's buffer, as the receives expect them.
DocumentRuns received_key_runs(const ContextStepWork& step);
/// Those of `queries` that read any of `keys`, ascending in local storage as they are.
DocumentRuns queries_that_read(std::span<const DocumentRun> queries, std::span<const DocumentRun> keys, int64_t window);

/// What this rank does with one microbatch: made of a plan when the microbatch begins, kept with it (Microbatch::work), dropped with it.
struct ContextWork final : MicrobatchWork {
  int rank = 0;
  std::shared_ptr<const ContextPlan> plan;
  Documents whole, own;        ///< of the microbatch, and of this rank's tokens
  DocumentRuns own_runs;       ///< what local keys are masked with
  int64_t step = -1, stage = -1, microbatch = -1;      ///< for messages and errors
  std::map<int64_t, std::vector<ContextStepWork>> steps;  ///< by window; `heads`: empty
  ContextStepWork tokens;      ///< `heads`: all tokens, a receive for every rank, this one included (`own` is what it sends); else empty
};
/// `rank`'s part of `plan`. `own`: the documents of its tokens as they reached it (a pipeline stage's are received): it masks and sends with them. What it
/// expects to receive comes from `whole`.
std::shared_ptr<ContextWork> make_context_work(std::shared_ptr<const ContextPlan> plan, int rank, const Documents& whole, const Documents& own);

/// Changes what a rank is about to do, on purpose: controls of tests and of selfcheck.
class ContextTamper {
 public:
  virtual ~ContextTamper() = default;
  virtual void prepared(ContextWork& work) = 0;
  /// Whether an owner gives each returned gradient to the next row of its message instead of its own (a message of one row is dropped).
  virtual bool gives_gradients_to_wrong_owner() const { return false; }
};

/// Every rank of the group makes the same calls in the same order.
class ContextAttention final : public AttentionExecutor {
 public:
  /// `group`: the ranks that share a microbatch. Both outlive this object. Collective over it where ranks have devices.
  ContextAttention(Rank& rank, Communicator& group, ContextPlanner& planner);
  ~ContextAttention() override;

  /// The documents of this rank's tokens of a microbatch, as the plan has them.
  Documents shard(const Documents& whole);
  /// What it does with that microbatch; `own` as in make_context_work.
  std::shared_ptr<ContextWork> begin(const Documents& whole, const Documents& own, int64_t step, int64_t stage, int64_t microbatch);
  /// `microbatch.work` is what `begin` gave; q, k, v are of this rank's tokens.
  Value attend(Tape& tape, int64_t layer, const Value& q, const Value& k, const Value& v, const Microbatch& microbatch,
               const AttentionOptions& options) override;
  /// Waits until everything sent has been received: at a pass' end.
  void finish();

  /// The first message since the last call whose boundaries were not those of the plan. On a device this waits for its work: a host read.
  std::optional<BoundaryMismatch> take_mismatch();
  /// On a device: [1] f64 there, `code_of` the first of them, 0 for none. Undefined elsewhere.
  const Tensor& mismatch_flag() const { return flag_; }
  void set_tamper(ContextTamper* tamper) { tamper_ = tamper; }
  ContextPlanner& planner() { return planner_; }

 private:
  friend class ContextPass;
  Rank& rank_;
  Communicator& group_;
  ContextPlanner& planner_;
  ContextTamper* tamper_ = nullptr;
  std::optional<BoundaryMismatch> mismatch_;
  Tensor flag_;  ///< instead of it on a device
  std::vector<Request> sends_;  ///< under way
};

/// Throws ConfigError unless heads can be shared out for `heads`: a multiple of the ranks, and key/value heads a multiple or a divisor of them.
void check_head_exchange(int64_t heads, int64_t kv_heads, int64_t ranks);

}  // namespace quire
