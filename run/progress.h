// What a person sees of a run: a line per logged step, and on a terminal a bar with the time left.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "run/log.h"
#include "run/metrics.h"

namespace quire {

struct ProgressOptions {
  int descriptor = 1;                  ///< where lines and bar go
  std::optional<bool> terminal;        ///< nothing = ask the system
  int columns = 0;                     ///< 0 = ask the terminal, each time
  std::function<double()> seconds;     ///< a monotonic clock; nothing = the machine's
};

/// "4:12", "1:04:12", "2d 03:04"; "" for nothing known.
std::string duration_text(std::optional<double> seconds);
/// "8.1k", "812", "1.25M": three digits or so.
std::string count_text(double value);
/// A bar of `width` characters in all, such as `[####------]`.
std::string bar_text(double share, int width);

/// The line of a logged step: fields in a fixed order, the least important left out until it fits `columns` (0 = all fields).
std::string step_line(const StepMetrics& metrics, int64_t max_steps, std::optional<double> seconds_left, int columns = 0);

/// Terminal: lines scroll above one bar that is redrawn in place. Anything else: plain lines, no carriage return, no bar. Every line
/// also goes to `log` in full. Not thread-safe; write errors are ignored (a closed pipe ends no training).
class Progress {
 public:
  /// `first_step`: steps done before this process started, for the time left. `log` may be null and must outlive this.
  Progress(int64_t max_steps, int64_t first_step = 0, Log* log = nullptr, ProgressOptions options = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// A line of text (or several).
  void line(std::string_view text);
  /// A step ended: moves the bar, at most ten times a second.
  void step(int64_t done);
  /// The line of a logged step. `step` of the same step comes first.
  void logged(const StepMetrics& metrics);
  /// Anything with a known end besides steps, such as an evaluation: shows `what` and its share in the bar.
  void task(std::string_view what, double share);
  /// Takes the bar away; the destructor does so too.
  void finish();

  /// Mean of the recent steps times the steps that are left; nothing before the second step.
  std::optional<double> seconds_left() const;

 private:
  int width() const;
  void draw();
  void put(std::string_view text) const;

  const int64_t max_steps_;
  Log* const log_;
  ProgressOptions options_;
  const bool terminal_;
  int64_t done_;
  std::vector<std::pair<int64_t, double>> recent_;  ///< (steps done, seconds), oldest first
  double drawn_ = -1e9;                             ///< when the bar was drawn last, seconds
  bool shown_ = false;
  std::string task_;
  double task_share_ = 0;
};

}  // namespace quire
