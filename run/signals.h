// SIGTERM, SIGINT and SIGHUP as a flag that the training loop reads between steps.
#pragma once

namespace quire {

/// Catches SIGTERM, SIGINT and, unless it is ignored (nohup), SIGHUP for its lifetime, those included that have come while they were blocked, and restores handlers and mask. The first one sets a flag; a second SIGINT ends
/// the process at once with status 130. Signals belong to the process, so there is one such object at a time (StateError for a second).
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool stop_requested() const { return signal() != 0; }
  /// The one that came first; 0 for none.
  int signal() const;
};

}  // namespace quire
