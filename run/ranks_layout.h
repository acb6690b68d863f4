// The probes through pipeline stages and context-parallel ranks: ranks are threads of this process, with several microbatches of different boundaries in flight.
#pragma once
#include <functional>
#include <memory>
#include <utility>

#include "run/layout_breaks.h"
#include "run/probes.h"

namespace quire {

/// The stages of a model, with copies of its weights, each on as many ranks as share a microbatch. Breaks: `leaking_breaks`.
class RanksLayout final : public ProbeLayout {
 public:
  /// `options`: of each rank; where they name a device, each takes that of its number. `forward` says how training runs the model (recomputation, z-loss); its executor is not used.
  RanksLayout(const RankOptions& options, Model& model, PipelineStages stages, const ForwardOptions& forward, ContextSharing context = {});
  ~RanksLayout() override;
  std::string name() const override;  ///< `pp 2 1f1b x cp 2 balanced ring`
  std::vector<std::string> breaks() const override { return leaking_breaks(stages_, context_); }
  double tolerance() const override;
  std::vector<double> logits(const ProbeInput& input, const ProbeMode& mode) override;
  std::vector<double> embedding_gradient(const ProbeInput& input, const ProbeMode& mode) override;
  bool carries_records() const override { return true; }
  int64_t take_mismatches() override;
  std::optional<ProbeLeak> leak_of(const ProbeInput& input, const std::string& broken) override;

  /// Every input token with its target, as the ranks have them, sorted. `mode.broken` may be `labels`.
  std::vector<std::pair<int32_t, int32_t>> targets(const ProbeInput& input, const ProbeMode& mode);
  /// How microbatches are shared; nullptr where they are not.
  ContextPlanner* planner() { return planner_.get(); }
  /// Whether `labels` changes a target.
  bool labels_change(const ProbeInput& input);

 private:
  struct Member;
  struct Place;
  /// Runs `pass` on every rank, with the probed microbatch between two others.
  void run(const ProbeInput& input, const ProbeMode& mode, const std::function<void(Place&)>& pass);

  PipelineStages stages_;
  ContextSharing context_;
  ForwardOptions forward_;
  std::unique_ptr<ContextPlanner> planner_;       ///< where ranks share microbatches
  std::vector<std::unique_ptr<Member>> members_;  ///< by number in the world
  int64_t mismatches_ = 0;
};

/// A microbatch with the tokens of `input` and other boundaries: documents are joined in pairs, or where that is longer than `longest`, all but the first
/// and last ones are moved by half a document.
ProbeInput other_boundaries(const ProbeInput& input, int64_t longest);

}  // namespace quire
