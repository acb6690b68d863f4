// What can be broken on purpose in a layout: controls of selfcheck and of tests.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "data/loader.h"
#include "parallel/context_planner.h"
#include "parallel/stages.h"
#include "run/config.h"

namespace quire {

class BoundaryTamper;
class ContextAttention;
class ContextTamper;
class Pipeline;
class Rank;

/// How ranks share microbatches.
struct ContextSharing {
  int64_t ranks = 1;
  ContextOptions options;
};

/// That of a resolved config.
ContextSharing context_sharing(const Config& config);

/// Names of what can be broken between stages: `dropped` (attention takes a microbatch for one document, everywhere), `dropped@stageK` (stage K alone loses the
/// boundaries that it received; only stages with attention), `swapped` (stages that receive use the record of another microbatch in flight).
std::vector<std::string> pipeline_breaks(const PipelineStages& stages);
/// All that must make documents leak: those of the pipeline, and `ring_step` (received keys are masked as one document) where keys come in steps.
std::vector<std::string> leaking_breaks(const PipelineStages& stages, const ContextSharing& context);
/// Those that let nothing leak and make a training step another one, where ranks share microbatches: `dkv_owner` (gradients of received keys and values go to other tokens
/// than theirs), `labels` (each rank makes targets after the cut), `denominator` (each rank divides by its own targets alone).
std::vector<std::string> training_breaks(const ContextSharing& context);

/// The pipeline's part of `dropped@stageK` and `swapped`; nullptr for other names. `batches` are the microbatches of the pass; they outlive it.
std::unique_ptr<BoundaryTamper> make_tamper(Rank& rank, const std::string& broken, const std::vector<HostBatch>& batches);

/// What is broken of one rank, while this lives.
class LayoutBreak {
 public:
  /// `broken`: "" for nothing; `labels` and `denominator` have no part here. `batches` as in make_tamper. `context`: nullptr where ranks share nothing.
  LayoutBreak(Rank& rank, const std::string& broken, const std::vector<HostBatch>& batches, Pipeline& pipeline, ContextAttention* context);
  ~LayoutBreak();
  LayoutBreak(const LayoutBreak&) = delete;
  LayoutBreak& operator=(const LayoutBreak&) = delete;

 private:
  Pipeline& pipeline_;
  ContextAttention* context_;
  std::unique_ptr<BoundaryTamper> boundaries_;
  std::unique_ptr<ContextTamper> exchange_;
};

/// The boundaries of another microbatch, laid over one of `tokens` tokens: repeated or cut where it is longer or shorter.
Documents laid_over(const Documents& other, int64_t tokens);

/// `labels`: targets of the tokens `own`, made again after the cut: each token predicts the rank's next one, the last one nothing. Others are kept.
void shift_own_targets(std::vector<int32_t>& targets, const Documents& own);
/// `denominator`: the scored targets of the tokens `own`.
int64_t own_valid(const std::vector<int32_t>& targets, const Documents& own);

}  // namespace quire
