// Training of one model, by one rank or by many: gradients of microbatches, updates, evaluation.
#pragma once
#include <deque>
#include <optional>

#include "data/loader.h"
#include "model/model.h"
#include "model/optimizer.h"
#include "model/schedule.h"
#include "parallel/gradient_reducer.h"
#include "parallel/groups.h"
#include "parallel/pipeline.h"
#include "run/config.h"

namespace quire {

/// What a step did. Sums are over the whole global batch and all ranks; every rank has the same numbers.
struct StepResult {
  int64_t step = 0;              ///< the first is 1
  double loss = 0;               ///< nats per valid target (z-loss included)
  int64_t valid_tokens = 0;      ///< scored targets
  int64_t tokens = 0;            ///< inputs
  double gradient_norm = 0;      ///< before clipping
  double learning_rate = 0;
  bool skipped = false;          ///< nothing was changed: not finite, or no target to score
  int64_t useful_pairs = 0;      ///< query-key pairs that documents and windows need, summed over layers, per head, forward
  int64_t computed_pairs = 0;    ///< pairs whose score was computed, counted the same way
  int64_t causal_pairs = 0;      ///< pairs of a plain causal mask over whole rows, counted the same way
  int64_t padding = 0;           ///< places of the rows that hold no token
  int64_t bytes_sent = 0;        ///< to other ranks, until the step's last collective; all ranks together
  double balance = 1;            ///< of context-parallel ranks: the busiest one's cost over the mean, of all microbatches
  std::string non_finite;        ///< of a skipped step with targets: the gradients that were not finite, commas between; "loss" where it alone was not
};

/// A pass over held-out documents.
struct Evaluation {
  double loss = 0;                       ///< nats per scored target, without z-loss
  double nats = 0;                       ///< sum over scored targets
  int64_t valid_tokens = 0;
  std::optional<double> bits_per_byte;   ///< nats / ln 2 plus 8 bits for each unscored byte, per byte of text; where the bytes are known
};

/// This rank's part of model and optimizer, and the step counter. Not thread-safe; everything runs on `rank`. With several ranks each of them makes the
/// same calls in the same order.
class Trainer {
 public:
  /// Builds and initialises the model of a resolved config, as one of the ranks of `world` (which outlives it) or alone. `auto` of cp_layout and cp_exchange
  /// is decided by whoever has data and speeds (Session): here it means balanced and ring. Throws OutOfMemoryError, and ConfigError also where the
  /// config's layout has another number of ranks.
  Trainer(Rank& rank, const Config& config, Communicator* world = nullptr);
  ~Trainer();

  Rank& rank() { return rank_; }
  const Config& config() const { return config_; }
  Model& model() { return *model_; }
  AdamW& optimizer() { return *optimizer_; }
  Pipeline& pipeline() { return *pipeline_; }
  int64_t steps_done() const { return steps_done_; }
  void set_steps_done(int64_t steps) { steps_done_ = steps; }

  const Groups& groups() const { return groups_; }
  /// Where ranks share microbatches; else nullptr.
  ContextAttention* context() { return context_.get(); }
  const PipelineStages& stages() const { return pipeline_->stages(); }
  /// What this rank's loader has to read, and which part of each global batch. Reading plans context parallelism ahead.
  LoaderSettings loader_settings() const;
  BatchShare share() const { return {groups_.place.dp, groups_.mesh.shape().dp}; }

  /// One step: begin, the batch, update.
  void begin_step();
  /// Loss and gradients of this replica's microbatches, through the pipeline's schedule. `batch.plan.valid` counts the scored targets of the
  /// whole global batch: the loss's denominator.
  void forward_backward(const LoadedStep& batch);
  /// Sums gradients over uses and replicas; `update` does it where it was not done. Afterwards gradients[0] of each parameter is the step's.
  void reduce_gradients();
  /// Combines what the ranks have, clips and updates the weights: `submit`, then `collect`.
  StepResult update();
  /// All three.
  StepResult step(const LoadedStep& batch);

  /// The update's first part: on a device it only says what is to be done, so that the next step may be begun before this one is over. Throws
  /// BoundaryError, on every rank and without an update, where a stage received other boundaries than the plan's; on a device `collect` does: steps that were submitted
  /// meanwhile change nothing either and are gone.
  void submit();
  /// What the oldest step did that was submitted and not collected; waits for it. Throws NonFiniteError after train.max_non_finite_steps skipped steps in
  /// a row, naming the tensors, and what the device's work threw; StateError where there is none.
  StepResult collect();
  /// Steps submitted and not collected. Before weights are saved or evaluated they are collected, so that they are known to be right.
  int64_t submitted() const { return static_cast<int64_t>(submitted_.size()); }

  /// Every document of `corpus` once, through the same packed path and layout. `steps` > 0 ends after that many global batches. Throws BoundaryError as
  /// `update` does.
  Evaluation evaluate(std::shared_ptr<const Corpus> corpus, int64_t steps = 0);

  /// Forward and backward passes on made-up tokens of the largest microbatches, as many as are in flight, in documents of at most `longest` tokens, leaving no
  /// trace in weights or gradients: afterwards the allocator's peaks are those of training.
  void rehearse(int64_t longest);

  int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  void set_skipped_in_a_row(int64_t count) { skipped_in_a_row_ = count; }

 private:
  int64_t bytes_sent() const;
  void count_microbatch(const HostBatch& host);
  /// This step's sums over all ranks, in place: one collective.
  void combine(const Tensor& squares);
  /// The same without the host: what it is to know of them it reads later. Returns every rank's mismatch [ranks], codes_of and counts [ranks + counts] in `report`.
  Tensor combine_on_device(const Tensor& squares, Readback& report);
  /// This rank's losses where they belong among those of the global batch, [microbatches].
  Tensor placed_losses(const Tensor& own, const LoadedStep& batch);
  /// What ranks add up in counts.
  std::vector<double> own_counts();
  void set_counts(StepResult& result, std::span<const double> counts) const;
  /// This rank's mismatch since the last call, as a code in its place of `codes` [ranks].
  void put_mismatch(std::span<double> codes);
  /// Throws BoundaryError for the one at the first stage.
  void refuse_mismatches(std::span<const double> codes, const std::string& where) const;

  Rank& rank_;
  Config config_;
  std::unique_ptr<Communicator> alone_;
  Groups groups_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<AdamW> optimizer_;
  std::shared_ptr<ContextPlanner> planner_;     ///< these two where ranks share microbatches
  std::unique_ptr<ContextAttention> context_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<GradientReducer> reducer_;
  Schedule schedule_;
  Tensor loss_sum_, loss_gradient_;  ///< [1] f64
  std::vector<double> losses_;       ///< of the step's microbatches, all replicas, in ascending order
  Tensor device_losses_;             ///< [microbatches] f64: instead of them on a device; undefined before the step's passes
  StepResult current_;
  struct Submitted {
    StepResult result;
    Readback loss, outcome;  ///< undefined where no target was scored
    Readback report;         ///< of a device: mismatches [ranks], then counts
  };
  std::deque<Submitted> submitted_;
  int64_t largest_cost_ = 0, total_cost_ = 0;  ///< of context ranks: sums over microbatches
  int64_t sent_before_ = 0;
  bool reduced_ = false;             ///< this step's gradients are
  int64_t steps_done_ = 0, skipped_in_a_row_ = 0;
};

/// Floating-point operations of one training step: 6 per weight of a matrix product and token, and 12 * head_dim per pair and head.
/// `pairs` are summed over layers, per head (StepResult's convention).
double step_flops(const ModelConfig& config, int64_t tokens, int64_t pairs);

/// Loader settings that a config asks for.
LoaderSettings loader_settings(const Config& config);

}  // namespace quire
