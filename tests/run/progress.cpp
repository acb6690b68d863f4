// What a person sees: on a terminal (a pseudo-terminal here, with an emulator that keeps the screen) and through a pipe.
#include "run/progress.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <regex>

#include "check.h"
#include "run/scratch.h"

using namespace quire;
using quire::test::Scratch;

namespace {

/// As much of a terminal as the progress may use: text, carriage return, newline, erase to the end of the line. Anything else is counted.
class Screen {
 public:
  explicit Screen(size_t columns) : columns_(columns) {}
  void write(const std::string& bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      const char c = bytes[i];
      if (c == '\r') column_ = 0;
      else if (c == '\n') lines.emplace_back();
      else if (c == '\x1b' && bytes.compare(i, 3, "\x1b[K") == 0) lines.back().resize(std::min(lines.back().size(), column_)), i += 2;
      else if (static_cast<unsigned char>(c) < 0x20) ++unknown;
      else {
        if (column_ >= columns_ - 1) ++wrapped;  // the last column makes terminals wrap
        if (lines.back().size() <= column_) lines.back().resize(column_ + 1, ' ');
        lines.back()[column_++] = c;
      }
    }
  }
  std::vector<std::string> lines{1};
  int wrapped = 0, unknown = 0;

 private:
  size_t columns_, column_ = 0;
};

class Pseudoterminal {
 public:
  explicit Pseudoterminal(unsigned short columns) : screen(columns) {
    master_ = ::posix_openpt(O_RDWR | O_NOCTTY);
    BOOST_REQUIRE(master_ >= 0 && ::grantpt(master_) == 0 && ::unlockpt(master_) == 0);
    slave = ::open(::ptsname(master_), O_RDWR | O_NOCTTY);
    BOOST_REQUIRE(slave >= 0);
    resize(columns);
    ::fcntl(master_, F_SETFL, O_NONBLOCK);
  }
  ~Pseudoterminal() {
    ::close(slave);
    ::close(master_);
  }
  void resize(unsigned short columns) {
    struct winsize size {};
    size.ws_col = columns;
    size.ws_row = 24;
    BOOST_REQUIRE_EQUAL(::ioctl(master_, TIOCSWINSZ, &size), 0);
  }
  /// Takes in what was written so far; returns it.
  std::string drain() {
    std::string all;
    char buffer[4096];
    for (ssize_t count; (count = ::read(master_, buffer, sizeof buffer)) > 0;) all.append(buffer, static_cast<size_t>(count));
    screen.write(all);
    return all;
  }
  int slave = -1;
  Screen screen;

 private:
  int master_ = -1;
};

StepMetrics metrics_of_step(int64_t step) {
  StepMetrics m;
  m.step = step;
  m.loss = 5.0 / static_cast<double>(step);
  m.grad_norm = 0.5;
  m.lr = 3e-3;
  m.tokens_per_s = 8123;
  m.peak_share_useful = 0.312;
  m.peak_share_causal = 0.398;
  return m;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

BOOST_AUTO_TEST_SUITE(progress)

BOOST_AUTO_TEST_CASE(durations_counts_and_bars_read_well) {
  BOOST_TEST(duration_text(0) == "0:00");
  BOOST_TEST(duration_text(59.6) == "1:00");
  BOOST_TEST(duration_text(252) == "4:12");
  BOOST_TEST(duration_text(3852) == "1:04:12");
  BOOST_TEST(duration_text(2 * 86400 + 3 * 3600 + 240) == "2d 03:04");
  BOOST_TEST(duration_text(std::nullopt) == "");
  BOOST_TEST(duration_text(NAN) == "");
  BOOST_TEST(duration_text(-1) == "");
  BOOST_TEST(duration_text(1e300) == "");
  BOOST_TEST(count_text(812) == "812");
  BOOST_TEST(count_text(999.4) == "999");
  BOOST_TEST(count_text(999.6) == "1.00k");
  BOOST_TEST(count_text(8123) == "8.12k");
  BOOST_TEST(count_text(81234) == "81.2k");
  BOOST_TEST(count_text(999600) == "1.00M");
  BOOST_TEST(count_text(0) == "0");
  BOOST_TEST(bar_text(0.4, 12) == "[####------]");
  BOOST_TEST(bar_text(0, 4) == "[--]");
  BOOST_TEST(bar_text(7, 4) == "[##]");
  BOOST_TEST(bar_text(NAN, 4) == "[--]");
}

BOOST_AUTO_TEST_CASE(the_line_holds_every_field_and_drops_the_least_first) {
  const StepMetrics m = metrics_of_step(20);
  const std::string full = step_line(m, 700, 252);
  for (const char* part : {"step  20/700", "loss 0.2500", "8.12k tokens/s", "31.2 % of peak", "39.8 % full-causal", "norm 0.500", "lr 3.00e-03", "4:12 left"})
    BOOST_TEST(contains(full, part), full << " lacks " << part);
  for (int columns = 1; columns < 160; ++columns) {
    const std::string line = step_line(m, 700, 252, columns);
    BOOST_TEST(static_cast<int>(line.size()) <= columns);
    BOOST_TEST((columns < 26 || (contains(line, "step  20/700") && contains(line, "loss 0.2500"))), line);
  }
  BOOST_TEST(step_line(m, 700, 252, 160) == full);
  const std::string narrow = step_line(m, 700, 252, 70);
  BOOST_TEST(contains(narrow, "tokens/s"));
  BOOST_TEST(contains(narrow, "4:12 left"));
  BOOST_TEST(!contains(narrow, "lr "));
}

BOOST_AUTO_TEST_CASE(evaluations_and_skipped_steps_stand_out) {
  StepMetrics m = metrics_of_step(3);
  m.eval_loss = 1.5;
  m.eval_bits_per_byte = 2.25;
  m.skipped = true;
  m.non_finite = "layers.2.feed_forward.up.weight";
  const std::string line = step_line(m, 10, std::nullopt);
  BOOST_TEST(contains(line, "held out 1.5000, 2.2500 bits/byte"));
  BOOST_TEST(contains(line, "SKIPPED: layers.2.feed_forward.up.weight not finite"));
  BOOST_TEST(!contains(line, "left"));
}

BOOST_AUTO_TEST_CASE(a_pipe_sees_plain_lines_only) {
  const Scratch scratch;
  int ends[2];
  BOOST_REQUIRE_EQUAL(::pipe(ends), 0);
  {
    Log log(disk(), scratch.path("log.txt"));
    double now = 0;
    Progress progress(5, 0, &log, {.descriptor = ends[1], .seconds = [&] { return now; }});
    progress.line("hello\nworld");
    for (int64_t step = 1; step <= 5; ++step) {
      now += 10;
      progress.step(step);
      progress.task("held out", 0.5);
      progress.logged(metrics_of_step(step));
    }
  }
  ::close(ends[1]);
  std::string seen;
  char buffer[4096];
  for (ssize_t count; (count = ::read(ends[0], buffer, sizeof buffer)) > 0;) seen.append(buffer, static_cast<size_t>(count));
  ::close(ends[0]);
  BOOST_TEST(seen.find_first_of("\r\x1b") == std::string::npos);
  BOOST_TEST(std::count(seen.begin(), seen.end(), '\n') == 7);
  BOOST_TEST(seen.ends_with("\n"));
  BOOST_TEST(contains(seen, "0:20 left"));  // 10 s a step, 2 to go
  BOOST_TEST(contains(seen, "full-causal"));
  const std::string log = read_text(disk(), scratch.path("log.txt"));
  std::string without_stamps;
  std::istringstream stream(log);
  for (std::string line; std::getline(stream, line);) {
    BOOST_TEST(std::regex_match(line, std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ .*)")), line);
    without_stamps += line.substr(21) + "\n";
  }
  BOOST_TEST(without_stamps == seen);
}

BOOST_AUTO_TEST_CASE(a_terminal_sees_lines_above_one_bar_redrawn_in_place) {
  Pseudoterminal terminal(100);
  double now = 0;
  {
    Progress progress(20, 0, nullptr, {.descriptor = terminal.slave, .seconds = [&] { return now; }});
    progress.line("first line");
    for (int64_t step = 1; step <= 20; ++step) {
      now += 2;
      progress.step(step);
      terminal.drain();
      BOOST_TEST(contains(terminal.screen.lines.back(), std::to_string(step) + "/20"));
      BOOST_TEST(contains(terminal.screen.lines.back(), "[#"));
      BOOST_TEST(contains(terminal.screen.lines.back(), duration_text(2.0 * static_cast<double>(20 - step)) + " left"));
      if (step % 5 == 0) progress.logged(metrics_of_step(step));
      terminal.drain();
    }
    BOOST_TEST(terminal.screen.lines.size() == 6u);  // one line, four steps, the bar
    progress.task("evaluating held-out documents", 0.5);
    terminal.drain();
    BOOST_TEST(contains(terminal.screen.lines.back(), "50 %  evaluating held-out documents"));
    progress.line("last line");
    terminal.drain();
    BOOST_TEST(contains(terminal.screen.lines.back(), "evaluating"));
  }
  terminal.drain();
  BOOST_TEST(terminal.screen.lines.back() == "");  // the bar is gone
  BOOST_TEST(terminal.screen.lines.size() == 7u);
  BOOST_TEST(terminal.screen.lines.front() == "first line");
  BOOST_TEST(terminal.screen.lines.at(5) == "last line");
  for (int i = 1; i <= 4; ++i) BOOST_TEST(contains(terminal.screen.lines.at(static_cast<size_t>(i)), "step " + std::string(i == 1 ? " 5" : std::to_string(5 * i))));
  BOOST_TEST(terminal.screen.wrapped == 0);
  BOOST_TEST(terminal.screen.unknown == 0);
}

BOOST_AUTO_TEST_CASE(every_width_fits_and_a_resized_terminal_is_followed) {
  for (unsigned short columns = 4; columns < 150; columns = static_cast<unsigned short>(columns + 7)) {
    Pseudoterminal terminal(columns);
    double now = 0;
    Progress progress(7, 2, nullptr, {.descriptor = terminal.slave, .seconds = [&] { return now += 1; }});
    progress.step(3);
    progress.logged(metrics_of_step(3));
    progress.task("evaluating held-out documents", 0.25);
    terminal.drain();
    BOOST_TEST(terminal.screen.wrapped == 0, "at " << columns << " columns");
  }
  Pseudoterminal terminal(120);
  double now = 0;
  Progress progress(7, 0, nullptr, {.descriptor = terminal.slave, .seconds = [&] { return now += 1; }});
  progress.step(1);
  BOOST_TEST(terminal.drain().size() > 60u);
  terminal.resize(30);
  progress.step(2);
  BOOST_TEST(terminal.drain().size() <= 1u + 29u + 3u);
}

BOOST_AUTO_TEST_CASE(the_bar_is_redrawn_ten_times_a_second_at_most) {
  Pseudoterminal terminal(100);
  double now = 0;
  Progress progress(100000, 0, nullptr, {.descriptor = terminal.slave, .seconds = [&] { return now; }});
  int64_t bars = 0;
  for (int64_t step = 1; step <= 2000; ++step) {
    now += 0.001;
    progress.step(step);
    const std::string seen = terminal.drain();
    bars += std::count(seen.begin(), seen.end(), '\r');
  }
  BOOST_TEST(bars >= 10);
  BOOST_TEST(bars <= 21);
}

BOOST_AUTO_TEST_CASE(time_left_counts_only_this_process_and_recent_steps) {
  double now = 1000;
  Progress progress(110, 50, nullptr, {.descriptor = -1, .terminal = false, .seconds = [&] { return now; }});
  BOOST_TEST(!progress.seconds_left().has_value());
  for (int64_t step = 51; step <= 60; ++step) {
    now += 4;
    progress.step(step);
  }
  BOOST_TEST(progress.seconds_left().value() == 4.0 * 50);
  for (int64_t step = 61; step <= 100; ++step) {
    now += 1;
    progress.step(step);
  }
  BOOST_TEST(progress.seconds_left().value() == 10.0);  // the slow steps are forgotten
  progress.logged(metrics_of_step(100));                     // a descriptor that can not be written ends nothing
}

BOOST_AUTO_TEST_SUITE_END()
