// The probes through pipeline stages: ranks are threads of this process, with several microbatches of different boundaries in flight.
#pragma once
#include <memory>

#include "parallel/stages.h"
#include "run/probes.h"

namespace quire {

class Pipeline;

/// The stages of a model, with copies of its weights. Breaks: `dropped` (attention takes a microbatch for one document, everywhere), `dropped@stageK`
/// (stage K alone loses the boundaries that it received; only stages with attention), `swapped` (stages that receive use the record of another
/// microbatch in flight).
class PipelineLayout final : public ProbeLayout {
 public:
  /// `options`: of each stage's rank. `forward` says how training runs the model (recomputation, z-loss); its executor is not used.
  PipelineLayout(const RankOptions& options, Model& model, PipelineStages stages, const ForwardOptions& forward);
  ~PipelineLayout() override;
  std::string name() const override;
  std::vector<std::string> breaks() const override;
  double tolerance() const override;
  std::vector<double> logits(const ProbeInput& input, const ProbeMode& mode) override;
  std::vector<double> embedding_gradient(const ProbeInput& input, const ProbeMode& mode) override;
  bool carries_records() const override { return true; }
  int64_t take_mismatches() override;

 private:
  struct Stage;
  /// Runs `pass` on every rank, with the probed microbatch between two others.
  void run(const ProbeInput& input, const ProbeMode& mode, const std::function<void(Stage&, Pipeline&, struct PipelineWork&)>& pass);

  PipelineStages stages_;
  ForwardOptions forward_;
  std::vector<std::unique_ptr<Stage>> ranks_;
  int64_t mismatches_ = 0;
};

/// Names of what can be broken in a pipeline of these stages.
std::vector<std::string> pipeline_breaks(const PipelineStages& stages);

/// The tamper for `dropped@stageK` and `swapped`; nullptr for other names. `batches` are the microbatches of the pass; they outlive it.
std::unique_ptr<class BoundaryTamper> make_tamper(Rank& rank, const std::string& broken, const std::vector<struct HostBatch>& batches);

/// The boundaries of another microbatch, laid over one of `tokens` tokens: repeated or cut where it is longer or shorter.
Documents laid_over(const Documents& other, int64_t tokens);

/// A microbatch with the tokens of `input` and other boundaries: documents are joined in pairs, or where that is longer than `longest`, all but the first
/// and last ones are moved by half a document.
ProbeInput other_boundaries(const ProbeInput& input, int64_t longest);

}  // namespace quire
