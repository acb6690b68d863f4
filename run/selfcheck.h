// Whether documents are kept apart: on the user's own model, settings and data, in every layout and attention backend, with controls that must fail.
#pragma once
#include <string>
#include <vector>

#include "run/probes.h"

namespace quire {

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

/// All checks of one layout: every probe on every row with every backend, as the layout works with `broken` ("" for nothing) in force, then the
/// controls with each of the layout's breaks. No controls where no token's influence reaches another (all windows 1).
std::vector<CheckResult> check_layout(ProbeLayout& layout, ProbeLayout& reference, const ModelConfig& model, const std::vector<ProbeRow>& rows,
                                      const std::string& broken = {});

struct SelfcheckOptions {
  std::string broken;     ///< what to break on purpose
  int64_t tokens = 1024;  ///< most tokens of a probed row
};

struct SelfcheckReport {
  std::vector<std::string> notes;  ///< what was checked, a line each
  std::vector<CheckResult> checks;
  bool passed() const;
  std::string to_json() const;     ///< {"passed": ..., "checks": [...]}, nothing else
  std::string table() const;       ///< notes, a line per check, and the outcome
};

/// Checks the model and data of a resolved config: with the weights of its run folder's newest checkpoint, else of checkpoint.load_path, else the
/// initial ones. Throws ConfigError for an unknown break, and what opening data and weights throws.
SelfcheckReport selfcheck(const Config& config, const SelfcheckOptions& options = {}, FileSystem& fs = disk());

}  // namespace quire
