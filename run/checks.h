// What is asked of a layout: that no document reaches another, that boundaries and targets arrive as they were planned; and what must be seen where one thing is broken.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "run/probes.h"

namespace quire {

class RanksLayout;

/// One line of the report.
struct CheckResult {
  std::string name;             ///< `leak probe, two equal documents`; controls begin with `control`
  std::string layout, backend;
  double changed_fraction = 0;  ///< of the rows: changed logits, gradients that are not 0, or differences beyond the tolerance; the most of all probes
  int64_t leaked_rows = 0;      ///< those of them that must not be
  double max_difference = 0;    ///< largest in a leaked row; packed against alone: in any row, of the largest logit's magnitude
  bool passed = false;          ///< controls pass when the leak is seen
  std::string words;            ///< what was found, for people
};

/// Leak probe: one input token is changed; the bits of logits before it and of all other documents must stay. `changes` are places in the row, each
/// with a pass of its own.
CheckResult leak_probe(ProbeLayout& layout, const ProbeRow& row, const ProbeMode& mode, std::span<const int64_t> changes, int64_t vocabulary);
/// Gradient probe: of the loss of one document alone; it must be exactly 0 at the embedding's output for all others. `documents` are numbers of runs.
CheckResult gradient_probe(ProbeLayout& layout, const ProbeRow& row, const ProbeMode& mode, std::span<const int64_t> documents);
/// Logits in the row against those of each document alone (of up to 32, evenly spread), which `reference` computes.
CheckResult alone_probe(ProbeLayout& layout, ProbeLayout& reference, const ProbeRow& row, const ProbeMode& mode);

/// Targets after the cut: every input token has the target that it has in the row, on whichever rank. `mode.broken` may be `labels`.
CheckResult target_check(RanksLayout& layout, const ProbeRow& row, const ProbeMode& mode);

/// Takes each result as soon as it is known.
using CheckSink = std::function<void(CheckResult)>;

/// All checks of one layout: every probe on every row with every backend, as the layout works with `broken` ("" for nothing) in force, then the
/// controls with each of the layout's breaks. No controls where no token's influence reaches another (all windows 1).
std::vector<CheckResult> check_layout(ProbeLayout& layout, ProbeLayout& reference, const ModelConfig& model, const std::vector<ProbeRow>& rows,
                                      const std::string& broken = {});
/// The same, each handed to `found` at once. What must hold comes first, then the controls. `backends`: those to try.
void check_layout(ProbeLayout& layout, ProbeLayout& reference, const ModelConfig& model, const std::vector<ProbeRow>& rows, const std::string& broken,
                  std::span<const AttentionBackend> backends, const CheckSink& found);

/// A check that ran with something broken, as a control: it passes when it failed.
CheckResult as_control(CheckResult result, const std::string& broken);

}  // namespace quire
