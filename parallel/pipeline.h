// Carries microbatches through a model's pipeline stages: walks a program of computations and messages, and holds no policy of its own.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "data/loader.h"
#include "model/model.h"
#include "parallel/boundary_record.h"
#include "parallel/communicator.h"
#include "parallel/context_attention.h"
#include "parallel/measured_times.h"
#include "parallel/schedule.h"
#include "parallel/stages.h"

namespace quire {

class PipelinePass;

/// Changes what a stage received, on purpose: controls of tests and of selfcheck. It may replace the documents and what is masked with.
class BoundaryTamper {
 public:
  virtual ~BoundaryTamper() = default;
  /// `number` counts the microbatches of this pass from 0.
  virtual void received(int64_t stage, int64_t number, Microbatch& microbatch) = 0;
};

/// One pass over a replica's microbatches. Where this rank holds no first (last) stage, their tokens (targets) may be empty.
struct PipelineWork {
  std::span<const HostBatch> microbatches;                    ///< ascending; may be none
  int64_t step = 0;                                           ///< for messages and errors
  Tensor loss_gradient;                                       ///< [1] f64, training only
  Tensor losses;                                              ///< [microbatches] f64, training only: filled where the last stage is held
  std::function<void(Parameter&, int use)> parameter_done;    ///< the tapes' hook
  std::function<void()> between;                              ///< after each computation
  /// What a stage is about to work on, boundaries as received: tokens on the first stage, targets on the last.
  std::function<void(int64_t stage, int64_t number, const Microbatch& microbatch)> begun;
  /// Instead of the loss in `Pipeline::forward`, on the last stage: hidden states after the final norm [T, dim] of this rank's tokens.
  std::function<void(int64_t number, const Tensor& hidden, const Microbatch& microbatch)> hidden;
  /// Training, on the first stage: gradient at the embedding's output [T, dim]; the embedding itself then gets none.
  std::function<void(int64_t number, const Tensor& gradient)> embedding_gradient;
};

/// One rank's part of a pipeline. Activations travel with their boundaries; a stage masks with what it received and compares it with the plan, on a device without the host
/// (parallel/device_boundaries.h). Where ranks share
/// microbatches, each of them carries its own tokens through the stages, to the ranks of the same place in the next one.
class Pipeline {
 public:
  /// `group`: the pipeline's ranks; rank() says which stages are held here, and `model` holds their layers. `context`: how the ranks that share microbatches
  /// attend, nullptr where each has its own; forward.attention, where given, calls it. All outlive this object. Collective over `group` where ranks have devices.
  Pipeline(Rank& rank, Model& model, Communicator& group, PipelineStages stages, const ForwardOptions& forward, ContextAttention* context = nullptr);

  const PipelineStages& stages() const { return stages_; }
  bool holds_first() const { return group_.rank() == stages_.first_rank(); }
  bool holds_last() const { return group_.rank() == stages_.last_rank(); }

  /// Forward and backward of every microbatch by the schedule.
  void train(const PipelineWork& work);
  /// Makes the schedules of `train` for a number of microbatches, instead of `training_schedule`: over these stages. `train` throws ScheduleError for one that is wrong.
  void set_schedule(std::function<PipelineSchedule(int64_t microbatches)> make);
  /// What `train` walks for so many microbatches.
  const PipelineProgram& training_program(int64_t microbatches);
  /// Forward only, nothing is kept.
  void forward(const PipelineWork& work);

  /// Whether passes of `train` from now on note when they compute, send and receive: a clock read for each of these, nothing where it is off.
  void record_times(bool on) { records_ = on; }
  /// Of the last pass that noted them; `gather_timeline` puts those of all ranks together.
  const PassTimes& times() const { return times_; }
  /// Lets messages progress, for the thread pool's `set_poll`; a message that has arrived is noted where times are.
  void poll();

  /// The first mismatch since the last call. On a device this waits for its work: a host read.
  std::optional<BoundaryMismatch> take_mismatch();
  /// On a device: [1] f64 there, `code_of` the first mismatch since the last `take_mismatch`, 0 for none, once the work before is done. Undefined elsewhere.
  Tensor mismatch_flag();
  /// Query-key pairs computed by forward passes of this rank since the last call, summed over heads.
  int64_t take_forward_pairs() { return std::exchange(forward_pairs_, 0); }
  void set_tamper(BoundaryTamper* tamper) { tamper_ = tamper; }

 private:
  friend class PipelinePass;
  Rank& rank_;
  Model& model_;
  Communicator& group_;
  PipelineStages stages_;
  ForwardOptions forward_;
  ContextAttention* context_;
  BoundaryTamper* tamper_ = nullptr;
  std::function<PipelineSchedule(int64_t)> make_schedule_;
  std::map<int64_t, PipelineProgram> train_programs_, forward_programs_;  ///< by microbatches
  std::optional<BoundaryMismatch> mismatch_;  ///< that the host knows of
  Tensor flag_;                               ///< of those that a device knows of; the context's, where there is one
  int64_t forward_pairs_ = 0;
  bool records_ = false;
  PassTimes times_;
  PipelinePass* pass_ = nullptr;  ///< under way, where times are noted
};

/// Sums the two gradients of a table that the first stage embeds with and the last one has as its head, on both of them: first + last, as one process adds them.
/// `reduce` is called in between, on the first stage: the sum over replicas. Nothing to do where one rank holds both.
void exchange_tied_gradients(Rank& rank, Model& model, Communicator& group, const PipelineStages& stages, const MessageLabel& label, const std::function<void(Parameter&)>& reduce);

}  // namespace quire
