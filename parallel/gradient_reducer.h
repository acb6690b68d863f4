// Gradients summed over data-parallel replicas, in buckets that start while backward still runs.
#pragma once
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "model/parameters.h"
#include "parallel/communicator.h"
#include "parallel/ordered_sum.h"

namespace quire {

struct ReductionOptions {
  int64_t bucket_bytes = int64_t{4} << 20;  ///< most that one sum covers; larger gradients are cut
  int64_t buckets_under_way = 4;            ///< that collect parts at a time: extra memory is (n-1)/n of so many buckets
};

/// What the last step did, or this one so far.
struct ReductionCounters {
  int64_t buckets = 0;
  int64_t started_before_finish = 0;  ///< overlapped with backward
  int64_t bytes_sent = 0;             ///< by this rank: 2(n-1)/n of the gradients where n divides every bucket
};

/// Sums gradients over replicas that hold the same parameters. Buckets are slices of the gradient arena (nothing is copied), in reverse canonical order, as
/// backward makes them; on every rank they start in that order, each as soon as it is ready and those before it have started. Sums are added
/// in the order of ranks: the same bits on every rank, whatever the buckets. With one replica uses are combined, and that is all.
///
/// A step: zero the gradients, `begin_step`, backward passes with `contributed` as the tape's parameter hook, `finish`. Every rank makes the same steps.
class GradientReducer {
 public:
  /// Collective over `replicas`. Throws ConfigError for options below 1, StateError for parameters without gradients.
  GradientReducer(Rank& rank, ParameterSet& parameters, Communicator& replicas, const ReductionOptions& options = {});
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Leaves a parameter out of buckets and of combining; on every replica, before the first step (StateError). The caller sums it with `reduce_now`.
  void exclude(Parameter& parameter);

  /// Each use of each parameter is going to get `contributions` (microbatches of this replica, may be 0: zeros are added). `step` is for
  /// messages to people. The first one compares the replicas' buckets (StateError where they differ).
  void begin_step(int64_t contributions, int64_t step = -1);
  /// That use of that parameter has got one. The last one combines the uses (ParameterSet::combine_uses, to the bit) and starts what is ready. Throws
  /// StateError for more than announced, and outside of a step. Not to be called from inside `parallel_for`.
  void contributed(Parameter& parameter, int use);
  /// Makes progress without waiting, within a step or outside of one. Not to be called from inside `parallel_for`.
  void advance();
  /// Starts what has not started (a hook does not come where nothing uses an operation's output) and waits. Then gradients[0] of every parameter that is
  /// not excluded is the sum over uses and replicas.
  void finish(const MessageLabel& label);

  /// Sums gradients[0] of one parameter over the replicas, between steps (StateError within one). Uses are not combined.
  void reduce_now(Parameter& parameter, const MessageLabel& label);

  const ReductionCounters& counters() const { return counters_; }
  /// Sizes in bytes, in the order in which they start; empty before the first step and with one replica.
  std::vector<int64_t> bucket_bytes() const;
  /// Sent since construction, `reduce_now` included.
  TrafficCounters traffic() const { return sum_ ? sum_->traffic() : TrafficCounters{}; }

 private:
  struct Bucket {
    Tensor values;            ///< [n]: a slice of the gradient arena
    int64_t parameters = 0;   ///< that it holds, whole or in part
    int64_t unready = 0;      ///< of them, in this step
  };
  struct State {              ///< of one parameter
    size_t first_bucket = 0, buckets = 0;
    std::vector<int64_t> contributions;  ///< per use, in this step
    bool ready = false;
  };
  bool excluded(const Parameter& parameter) const { return excluded_.contains(&parameter); }
  std::vector<Tensor> cut(const Tensor& gradients) const;
  void plan();
  void add_buckets(size_t first, size_t last);
  void compare_plans();
  void make_ready(size_t parameter);
  void start_ready(const MessageLabel& label);

  Rank& rank_;
  ParameterSet& parameters_;
  ReductionOptions options_;
  Communicator& replicas_;
  std::unique_ptr<OrderedSum> sum_;      ///< none with one replica
  std::unordered_set<const Parameter*> excluded_;
  std::unordered_map<const Parameter*, size_t> index_;
  std::vector<State> states_;            ///< per parameter, in canonical order
  std::vector<Bucket> buckets_;          ///< in the order of starting
  bool planned_ = false, in_step_ = false;
  int64_t contributions_ = 0, bytes_before_ = 0;
  size_t next_ = 0;                      ///< bucket to start
  MessageLabel label_;
  ReductionCounters counters_;
};

}  // namespace quire
