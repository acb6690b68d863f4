#include "run/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>

namespace quire {
namespace {

constexpr double redraw_seconds = 0.1;
constexpr size_t recent_steps = 32;

double machine_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Field {
  std::string text;
  int importance;  ///< fields of the least go first where the line is too long
};

std::string share_text(const StepMetrics& m) {
  std::string text;
  if (m.peak_share_useful) text = fmt::format("{:.1f} % of peak", 100 * *m.peak_share_useful);
  if (m.peak_share_causal) text += fmt::format("{}{:.1f} % full-causal", text.empty() ? "" : ", ", 100 * *m.peak_share_causal);
  return text;
}

}  // namespace

std::string duration_text(std::optional<double> seconds) {
  if (!seconds || !std::isfinite(*seconds) || *seconds < 0 || *seconds > 1e11) return {};
  const int64_t total = std::llround(*seconds);
  const int64_t days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}", days, hours, minutes);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  return fmt::format("{}:{:02}", minutes, total % 60);
}

std::string count_text(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const char* const units[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(units)) value /= 1000, ++unit;
  if (unit == 0 || std::abs(value) >= 99.95) return fmt::format("{:.0f}{}", value, units[unit]);
  return std::abs(value) >= 9.995 ? fmt::format("{:.1f}{}", value, units[unit]) : fmt::format("{:.2f}{}", value, units[unit]);
}

std::string bar_text(double share, int width) {
  const int inner = std::max(width - 2, 0);
  const int full = std::isfinite(share) ? static_cast<int>(std::clamp(share, 0.0, 1.0) * inner) : 0;
  return fmt::format("[{}{}]", std::string(static_cast<size_t>(full), '#'), std::string(static_cast<size_t>(inner - full), '-'));
}

std::string step_line(const StepMetrics& m, int64_t max_steps, std::optional<double> seconds_left, int columns) {
  const std::string most = fmt::format("{}", max_steps);
  std::vector<Field> fields = {{fmt::format("step {:>{}}/{}", m.step, most.size(), most), 9}, {fmt::format("loss {:.4f}", m.loss), 9}};
  if (m.skipped) fields.push_back({m.non_finite.empty() ? "SKIPPED" : fmt::format("SKIPPED: {} not finite", few_names(m.non_finite)), 8});
  if (m.eval_loss)
    fields.push_back({m.eval_bits_per_byte ? fmt::format("held out {:.4f}, {:.4f} bits/byte", *m.eval_loss, *m.eval_bits_per_byte)
                                           : fmt::format("held out {:.4f}", *m.eval_loss), 7});
  fields.push_back({count_text(m.tokens_per_s) + " tokens/s", 6});
  if (std::string share = share_text(m); !share.empty()) fields.push_back({std::move(share), 3});
  fields.push_back({fmt::format("norm {:.3f}", m.grad_norm), 4});
  fields.push_back({fmt::format("lr {:.2e}", m.lr), 2});
  if (std::string left = duration_text(seconds_left); !left.empty()) fields.push_back({left + " left", 5});
  const auto joined = [&] {
    std::string line;
    for (const Field& field : fields) (line += line.empty() ? "" : "  ") += field.text;
    return line;
  };
  std::string line = joined();
  while (columns > 0 && static_cast<int>(line.size()) > columns && fields.size() > 1) {
    fields.erase(std::min_element(fields.begin() + 1, fields.end(), [](const Field& a, const Field& b) { return a.importance < b.importance; }));
    line = joined();
  }
  if (columns > 0) line.resize(std::min(line.size(), static_cast<size_t>(columns)));
  return line;
}

Progress::Progress(int64_t max_steps, int64_t first_step, Log* log, ProgressOptions options)
    : max_steps_(max_steps), log_(log), options_(std::move(options)),
      terminal_(options_.terminal ? *options_.terminal : ::isatty(options_.descriptor) == 1), done_(first_step) {
  if (!options_.seconds) options_.seconds = machine_seconds;
  recent_.emplace_back(first_step, options_.seconds());
}

Progress::~Progress() { finish(); }

void Progress::put(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t written = ::write(options_.descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

int Progress::width() const {
  if (options_.columns > 0) return options_.columns;
  struct winsize size {};
  if (::ioctl(options_.descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

void Progress::line(std::string_view text) {
  if (log_ != nullptr) log_->write(text);
  std::string out = shown_ ? "\r\x1b[K" : "";
  (out += text) += text.ends_with('\n') ? "" : "\n";
  put(out);
  if (!shown_) return;
  shown_ = false;
  draw();
}

void Progress::logged(const StepMetrics& metrics) {
  const std::string full = step_line(metrics, max_steps_, seconds_left());
  if (log_ != nullptr) log_->write(full);
  if (!terminal_) return put(full + "\n");
  // The last column stays free: a terminal that wraps there would scroll the bar.
  put((shown_ ? "\r\x1b[K" : "") + step_line(metrics, max_steps_, seconds_left(), width() - 1) + "\n");
  shown_ = false;
  draw();
}

void Progress::step(int64_t done) {
  done_ = done;
  task_.clear();
  recent_.emplace_back(done, options_.seconds());
  if (recent_.size() > recent_steps) recent_.erase(recent_.begin());
  if (terminal_ && recent_.back().second - drawn_ >= redraw_seconds) draw();
}

void Progress::task(std::string_view what, double share) {
  if (!terminal_) return;
  const bool same = task_ == what;
  task_ = what;
  task_share_ = share;
  if (!same || options_.seconds() - drawn_ >= redraw_seconds) draw();
}

std::optional<double> Progress::seconds_left() const {
  const auto& [first_done, first_seconds] = recent_.front();
  const auto& [last_done, last_seconds] = recent_.back();
  if (last_done <= first_done) return std::nullopt;
  return (last_seconds - first_seconds) / static_cast<double>(last_done - first_done) * static_cast<double>(std::max<int64_t>(max_steps_ - done_, 0));
}

void Progress::draw() {
  if (!terminal_) return;
  drawn_ = options_.seconds();
  shown_ = true;
  const double share = !task_.empty() ? task_share_ : max_steps_ > 0 ? static_cast<double>(done_) / static_cast<double>(max_steps_) : 1.0;
  const std::string left = duration_text(seconds_left());
  std::string text = fmt::format(" {:3.0f} %  ", 100 * std::clamp(share, 0.0, 1.0));
  text += task_.empty() ? fmt::format("{}/{}{}", done_, max_steps_, left.empty() ? "" : "  " + left + " left") : task_;
  const int room = width() - 1 - static_cast<int>(text.size());
  std::string line = room >= 4 ? bar_text(share, std::min(room, 60)) + text : text.substr(1);
  line.resize(std::min(line.size(), static_cast<size_t>(std::max(width() - 1, 0))));
  put("\r" + line + "\x1b[K");
}

void Progress::finish() {
  if (shown_) put("\r\x1b[K");
  shown_ = false;
}

}  // namespace quire
