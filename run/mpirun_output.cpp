#include "run/mpirun_output.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace quire {
namespace {

bool holds(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// The number after `mark`, spaces passed over; -1 where there is none.
int number_after(std::string_view text, std::string_view mark) {
  size_t at = text.find(mark);
  if (at == std::string_view::npos) return -1;
  at = std::min(text.find_first_not_of(' ', at + mark.size()), text.size());
  int number = -1;
  return std::from_chars(text.data() + at, text.data() + text.size(), number).ec == std::errc() ? number : -1;
}

/// The line of dashes around Open MPI's banners, or of equals signs around Hydra's.
bool is_rule(std::string_view line, char mark) { return line.size() >= 40 && line.find_first_not_of(mark) == std::string_view::npos; }

}  // namespace

bool MpirunOutput::understand(std::string_view line) {
  // Open MPI: `mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).`
  if (holds(line, "noticed that process rank")) {
    if (dead_rank_ < 0) {
      dead_rank_ = number_after(line, "process rank");
      dead_signal_ = std::max(number_after(line, "on signal"), 0);
    }
    return true;
  }
  if (holds(line, "has exited due to process rank")) {  // `mpirun has exited due to process rank 2 with PID 0 on`: without ending MPI
    if (dead_rank_ < 0) dead_rank_ = number_after(line, "process rank");
    return true;
  }
  if (holds(line, "Process name: [[")) {  // `Process name: [[18705,1],1]`
    if (dead_rank_ < 0) dead_rank_ = number_after(line, "],");
    return true;
  }
  if (holds(line, "Exit code:") && !line.starts_with('=')) {
    if (dead_signal_ == 0 && dead_status_ == 0) dead_status_ = std::max(number_after(line, "Exit code:"), 0);
    return true;
  }
  // Hydra: `YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)`; it names no rank.
  if (holds(line, "TERMINATED WITH THE EXIT STRING")) {
    if (dead_signal_ == 0) dead_signal_ = std::max(number_after(line, "(signal"), 0);
    return true;
  }
  // A rank's Open MPI after another's death: `[vm:23267] Read -1, expected 16512, errno = 3`
  if (line.starts_with('[') && holds(line, ", expected ") && holds(line, ", errno = ")) return true;
  for (const std::string_view known : {"MPI_ABORT was invoked", "Primary job  terminated normally, but", "processes exited with non-zero status, thus causing",
                                       "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", "This typically refers to a problem with your application",
                                       "Please see the FAQ page for debugging suggestions", "sent help message help-",
                                       "orte_base_help_aggregate", "prte_base_help_aggregate", "show_help.c", "forwarding signal"})
    if (holds(line, known)) return true;
  return false;
}

std::string MpirunOutput::end_block() {
  const bool known = std::exchange(block_known_, false);
  in_block_ = false;
  std::string text = std::exchange(block_, {});
  return known ? std::string() : text;
}

std::string MpirunOutput::take_line(std::string_view line) {
  const bool rule = is_rule(line, '-') || is_rule(line, '=');
  if (rule || in_block_) {
    (block_ += line) += '\n';
    block_known_ = understand(line) || block_known_;
    if (!rule) return {};
    if (in_block_) return end_block();
    in_block_ = true;
    return {};
  }
  if (line.empty() || understand(line)) return {};  // empty lines stand around banners
  return std::string(line) + '\n';
}

std::string MpirunOutput::take(std::string_view piece) {
  std::string shown;
  for (size_t end; (end = piece.find('\n')) != std::string_view::npos; piece.remove_prefix(end + 1)) {
    partial_ += piece.substr(0, end);
    if (partial_.ends_with('\r')) partial_.pop_back();
    shown += take_line(partial_);
    partial_.clear();
  }
  partial_ += piece;
  return shown;
}

std::string MpirunOutput::finish() {
  std::string shown = partial_.empty() ? std::string() : take_line(std::exchange(partial_, {}));
  return in_block_ ? shown + end_block() : shown;
}

}  // namespace quire
