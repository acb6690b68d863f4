// Sums of tensors over ranks, several under way at once, each added in the order of ranks.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "parallel/communicator.h"

namespace quire {

/// Sums tensors in place over the ranks of a group: rank r gets everybody's part r, adds in the order of ranks 0..n-1 and gives the sum to all. So every
/// rank has the same bits, sends (n-1)/n of the tensor's bytes twice, and copies nothing of its own.
///
/// Every rank starts the same tensors (by size) in the same order; when it does so is its own affair. The two phases use a group each, so that
/// their messages match without tags however the sums of different ranks interleave. No rank waits for what another does later in its own order: no deadlock.
///
/// On a device nothing depends on what has arrived when, as its work is submitted in one order on all ranks: a sum moves on when memory for another one is
/// needed (so that `depth` sums are under way beside what the device computes), or at `wait`. `idle` then says that all are submitted; work that comes
/// later finds the sums.
class OrderedSum {
 public:
  /// Collective over `ranks`.
  OrderedSum(Rank& rank, Communicator& ranks);
  OrderedSum(const OrderedSum&) = delete;
  OrderedSum& operator=(const OrderedSum&) = delete;

  /// Memory for `depth` sums that collect parts at a time, of tensors of at most `elements`. Before the first start, nothing under way.
  void reserve(DType dtype, int64_t elements, int64_t depth);

  /// Whether memory for one more sum is free; `advance` frees it.
  bool can_start() const { return collecting_.size() < scratch_.size() || (on_device() && !scratch_.empty()); }
  /// Starts summing a contiguous tensor [n], which is not touched until `idle()`. Throws StateError unless `can_start()` and it fits.
  void start(const Tensor& values, const MessageLabel& label);
  /// Does what can be done without waiting. Adds on the rank's pool: not to be called from inside `parallel_for`.
  void advance();
  /// Waits until the oldest sum has moved on. Nothing to do when idle.
  void wait();
  bool idle() const { return collecting_.empty() && distributing_.empty(); }

  /// Of both groups.
  TrafficCounters traffic() const;

 private:
  struct Sum {
    Tensor values, scratch;  ///< scratch [n-1, own part]
    MessageLabel label;
    std::vector<Request> requests;
    size_t done = 0;         ///< requests known to be
    bool all_done();
    void wait_for_one();
  };
  Tensor part(const Tensor& values, int of) const;
  bool on_device() const { return rank_.accelerator() != nullptr; }
  Communicator& distributing() const { return distribute_ ? *distribute_ : *collect_; }
  void add_parts(const Sum& sum);
  void distribute(Sum sum);
  /// Adds the oldest sum's parts and gives it to all.
  void move_on();

  Rank& rank_;
  std::unique_ptr<Communicator> collect_, distribute_;  ///< on a device one for both: the order of messages is known
  std::vector<Tensor> scratch_;           ///< [depth], used in turn
  uint64_t started_ = 0;
  std::deque<Sum> collecting_, distributing_;
};

}  // namespace quire
