// Whether documents are kept apart: on the user's own model, settings and data, in every layout and attention backend, with controls that must fail.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "run/checks.h"

namespace quire {

struct SelfcheckOptions {
  std::string broken;     ///< what to break on purpose: one of `leaking_breaks` or `training_breaks`
  int64_t tokens = 1024;  ///< most tokens of a probed row
  std::function<void(const std::string&)> print = {};  ///< takes each line of the table but the last, without its end, as soon as it is known
};

struct SelfcheckReport {
  std::vector<std::string> notes;  ///< what was checked, a line each
  std::vector<CheckResult> checks;
  bool passed() const;
  std::string to_json() const;     ///< {"passed": ..., "checks": [...]}, nothing else
  size_t name_width = 0, layout_width = 0;         ///< of the table's columns
  std::string line(const CheckResult& check) const;  ///< of the table
  std::string outcome() const;                       ///< the table's last line
  std::string table() const;                         ///< notes, a line per check, and the outcome
};

/// Checks the model and data of a resolved config, in its layout (`auto` of cp_layout and cp_exchange: what the run folder says was chosen, else balanced and ring): with the weights of its run folder's newest checkpoint, else of checkpoint.load_path, else the
/// initial ones. Throws ConfigError for an unknown break and for one that changes nothing which is checked, and what opening data and weights throws.
SelfcheckReport selfcheck(const Config& config, const SelfcheckOptions& options = {}, FileSystem& fs = disk());

}  // namespace quire
