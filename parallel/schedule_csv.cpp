#include "parallel/schedule_csv.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <tuple>

#include "parallel/schedule_index.h"
#include "runtime/file.h"

namespace quire {
namespace {

constexpr std::string_view csv_place = "pipeline schedule";

/// A field as an error can show it: cut, and what no terminal prints as numbers.
std::string shown(std::string_view field) {
  constexpr size_t most = 40;
  std::string text;
  for (const char c : field.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte >= 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return field.size() > most ? text + "..." : text;
}

std::string_view without_blanks(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
  return first == std::string_view::npos ? std::string_view() : text.substr(first, last - first + 1);
}

/// `digits` to the end as a number of at least one digit; -1 for anything else, and for what fits no 64 bits.
int64_t number(std::string_view digits) {
  int64_t value = -1;
  if (digits.empty() || digits.front() == '-') return -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return error == std::errc() && end == digits.data() + digits.size() ? value : -1;
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& file) : file_(file) {
    schedule_.name = file;
    read_lines(text);
  }

  PipelineSchedule parse() {
    schedule_.ranks = static_cast<int64_t>(schedule_.actions.size());
    if (schedule_.ranks == 0) fail<ScheduleError>(csv_place, "'{}' holds no action; a line per rank is needed, such as 0F0,0F1,0B0,0B1", file_);
    count();
    place_stages();
    check();
    return std::move(schedule_);
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(size_t rank, fmt::format_string<Args...> format, Args&&... args) const {
    fail<ScheduleError>(csv_place, "'{}', line {}: {}", file_, rank + 1, fmt::vformat(format, fmt::make_format_args(args...)));
  }

  void read_lines(std::string_view text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      schedule_.actions.emplace_back();
      read_line(line);
      if (schedule_.actions.back().empty()) refuse(schedule_.actions.size() - 1, "no action; every rank holds a stage");
    }
  }

  void read_line(std::string_view line) {
    for (bool more = true; more;) {
      const size_t comma = line.find(',');
      more = comma != std::string_view::npos;
      const std::string_view field = without_blanks(line.substr(0, comma));
      if (!field.empty()) schedule_.actions.back().push_back(read_action(field));
      if (more) line.remove_prefix(comma + 1);
    }
  }

  Action read_action(std::string_view field) const {
    constexpr std::string_view kinds = "FBIW";
    const size_t letter = std::min(field.find_first_not_of("0123456789"), field.size());
    const size_t kind = letter < field.size() ? kinds.find(field[letter]) : std::string_view::npos;
    const int64_t stage = number(field.substr(0, letter)), microbatch = letter < field.size() ? number(field.substr(letter + 1)) : -1;
    if (kind == std::string_view::npos || stage < 0 || microbatch < 0)
      refuse(schedule_.actions.size() - 1, "action {} ('{}') is none; allowed: stage, one of F, B, I and W, microbatch, such as 2F0",
             schedule_.actions.back().size() + 1, shown(field));
    return {static_cast<ActionKind>(kind), stage, microbatch};
  }

  /// Stages and microbatches count from 0 without a gap, so no number is above that of the forwards. Tables by stage and microbatch are then no larger
  /// than the text.
  void count() {
    const auto is_forward = [](const Action& action) { return action.kind == ActionKind::forward; };
    int64_t forwards = 0;
    for (const std::vector<Action>& actions : schedule_.actions) forwards += std::count_if(actions.begin(), actions.end(), is_forward);
    schedule_.stages = 0;
    for (size_t rank = 0; rank < schedule_.actions.size(); ++rank)
      for (const Action& action : schedule_.actions[rank]) {
        if (action.stage >= forwards || action.microbatch >= forwards)
          refuse(rank, "{}: there are {} forward passes in all, but stages and microbatches count from 0 and each stage needs a forward of each microbatch",
                 to_string(action), forwards);
        schedule_.stages = std::max(schedule_.stages, action.stage + 1);
        schedule_.microbatches = std::max(schedule_.microbatches, action.microbatch + 1);
      }
    forwards_ = forwards;
  }

  void place_stages() {
    schedule_.rank_of_stage.assign(static_cast<size_t>(schedule_.stages), -1);
    for (size_t rank = 0; rank < schedule_.actions.size(); ++rank)
      for (const Action& action : schedule_.actions[rank]) {
        int64_t& holder = schedule_.rank_of_stage[static_cast<size_t>(action.stage)];
        if (holder == -1) holder = static_cast<int64_t>(rank);
        if (holder != static_cast<int64_t>(rank))
          refuse(rank, "{}: stage {} is on line {} already; a stage lies on one rank", to_string(action), action.stage, holder + 1);
      }
    const std::vector<int64_t>& ranks = schedule_.rank_of_stage;  // the last stage is on a line: the text names it
    for (size_t stage = ranks.size() - 1; stage > 0; --stage)
      if (ranks[stage - 1] == -1)
        refuse(static_cast<size_t>(ranks[stage]), "stage {} is here, but stage {} is on no line; stages count from 0 without a gap", stage, stage - 1);
  }

  void check() {
    if (schedule_.stages * schedule_.microbatches > forwards_) find_missing_forward();
    try {
      check_schedule(schedule_);
    } catch (const RankScheduleError& error) {
      refuse(static_cast<size_t>(error.rank()), "{}", error.reason());
    }
    for (size_t rank = 0; rank < schedule_.actions.size(); ++rank) {
      const auto is_backward = [](const Action& action) { return action.kind != ActionKind::forward; };
      const std::vector<Action>& actions = schedule_.actions[rank];
      if (std::none_of(actions.begin(), actions.end(), is_backward)) refuse(rank, "no backward pass; a schedule of training has one for every forward");
    }
  }

  /// Names the first forward that is not there, without a table of all.
  void find_missing_forward() const {
    std::vector<std::tuple<int64_t, int64_t>> there;
    for (const std::vector<Action>& actions : schedule_.actions)
      for (const Action& action : actions)
        if (action.kind == ActionKind::forward) there.emplace_back(action.stage, action.microbatch);
    std::sort(there.begin(), there.end());
    there.erase(std::unique(there.begin(), there.end()), there.end());
    for (size_t i = 0;; ++i) {
      const Action expected{ActionKind::forward, static_cast<int64_t>(i) / schedule_.microbatches, static_cast<int64_t>(i) % schedule_.microbatches};
      if (i < there.size() && there[i] == std::tuple(expected.stage, expected.microbatch)) continue;
      refuse(static_cast<size_t>(schedule_.rank_of_stage[static_cast<size_t>(expected.stage)]), "{} is missing: there are {} stages and {} microbatches",
             to_string(expected), schedule_.stages, schedule_.microbatches);
    }
  }

  const std::string& file_;
  PipelineSchedule schedule_;
  int64_t forwards_ = 0;
};

}  // namespace

PipelineSchedule parse_schedule(std::string_view text, const std::string& file) { return Parser(text, file).parse(); }

PipelineSchedule read_schedule(const std::string& file) {
  constexpr int64_t most = int64_t{64} << 20;
  std::error_code error;
  if (std::filesystem::is_other(file, error)) fail<ScheduleError>(csv_place, "'{}' is no regular file", file);  // reading a pipe would wait for its writer
  if (const int64_t size = disk().open(file)->size(); size > most)
    fail<ScheduleError>(csv_place, "'{}' has {} bytes, a schedule may have {}", file, size, most);
  return parse_schedule(read_text(disk(), file), file);
}

}  // namespace quire
