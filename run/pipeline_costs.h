// What a pipeline's computations, messages and activations cost: from the model's shape, the documents of each microbatch, and speeds.
#pragma once
#include <span>

#include "parallel/simulation.h"
#include "parallel/stages.h"
#include "run/config.h"
#include "run/tape_memory.h"
#include "runtime/documents.h"

namespace quire {

/// How fast a rank computes and sends. 0 of `memory_bytes` and `link_bytes`: as fast as you like.
struct PipelineRates {
  double product_flops = 0;             ///< floating-point operations per second of matrix products
  double attention_flops = 0;           ///< of attention, forward: 4 per pair and element of a head
  double attention_backward_flops = 0;  ///< and backward: 10
  double memory_bytes = 0;              ///< that everything else reads and writes per second
  double latency = 0;                   ///< seconds of a message of no bytes
  double link_bytes = 0;                ///< per second
  bool measured = false;
  std::string describe() const;
};

/// Of this machine, two ranks computing and exchanging at once as a pipeline's do, with kernels and threads that the config asks for. Shapes are the config's, cut to what takes
/// some tens of milliseconds.
PipelineRates measure_pipeline_rates(const Config& config);

/// One microbatch as one rank sees it: tokens, and query-key pairs per head in a layer of each window.
struct MicrobatchShape {
  double tokens = 0;
  std::vector<double> pairs;  ///< [distinct windows]
};

/// Floating-point operations of one action on one stage.
struct ActionWork {
  double products = 0, attention = 0, attention_backward = 0;
  double memory_bytes = 0;  ///< read and written outside of products and attention
  ActionWork& operator+=(const ActionWork& other);
};

/// A model's costs on the ranks of a pipeline. Ranks that share microbatches are taken to have equal parts of them; their exchange of keys and values, and sums over replicas, are not in it.
///
/// Forward: products, attention over pairs of the documents. I: products by the weights and all of attention's backward, after what is computed again (recomputation). W: products alone.
/// B is I and W. The head does all its work in its forward (`linear_cross_entropy`).
class PipelineCostModel {
 public:
  /// `context`: ranks that share each microbatch.
  PipelineCostModel(const ModelConfig& model, DType dtype, Recomputation recomputation, int64_t context = 1);
  /// Of a resolved config.
  explicit PipelineCostModel(const Config& config);

  MicrobatchShape shape_of(const Documents& microbatch) const;
  ActionWork work(const PipelineStages& stages, int64_t stage, ActionKind kind, const MicrobatchShape& microbatch) const;
  double seconds(const ActionWork& work, const PipelineRates& rates) const;
  /// Of every action on these stages; bytes are those of activations.
  ScheduleCosts costs(const PipelineStages& stages, std::span<const MicrobatchShape> microbatches, const PipelineRates& rates) const;
  /// Per token of a rank's own.
  PassBytes bytes_of(const PipelineStages& stages, int64_t stage) const;
  /// Of a message of activations with its boundary record.
  int64_t message_bytes(const MicrobatchShape& microbatch) const;
  const ModelConfig& model() const { return model_; }
  DType dtype() const { return dtype_; }
  int64_t context() const { return context_; }

 private:
  /// Decoder layers of a stage by window, embedding and head.
  struct Held {
    std::vector<double> layers;  ///< [distinct windows]
    int64_t decoder_layers = 0;
    bool first = false, last = false;
  };
  Held held(const PipelineStages& stages, int64_t stage) const;
  ActionWork forward_again(const Held& held, const MicrobatchShape& microbatch) const;
  ActionWork decoder_forward(const Held& held, const MicrobatchShape& microbatch) const;

  ModelConfig model_;
  DType dtype_;
  Recomputation recomputation_;
  int64_t context_;
  std::vector<int64_t> windows_;       ///< distinct ones
  std::vector<size_t> window_of_;      ///< [layers]
  TapeMemory memory_;
};

/// Activations of a rank at their most, in bytes.
struct RankActivations {
  int64_t kept = 0;      ///< between computations: what `simulate` counts
  int64_t running = 0;   ///< besides, within the computation at which most is held
  int64_t messages = 0;  ///< received before they are needed: receives are posted one computation ahead
  int64_t total() const { return kept + running + messages; }
};
/// Of every rank of a schedule over these stages and microbatches.
std::vector<RankActivations> rank_activations(const PipelineCostModel& model, const PipelineStages& stages, std::span<const MicrobatchShape> microbatches,
                                              const PipelineSchedule& schedule);

/// Weights, gradients and the optimizer's state of a rank, in bytes, counted on the null device.
struct PipelineRankState {
  int64_t elements = 0, parameters = 0, gradients = 0, optimizer = 0;
};
PipelineRankState rank_state(const ModelConfig& model, DType dtype, const PipelineStages& stages, int64_t rank);

}  // namespace quire
