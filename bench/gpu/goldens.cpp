#include "bench/gpu/goldens.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include "runtime/error.h"

namespace quire::gpu_report {

namespace {

constexpr const char* magic = "quire-goldens";
constexpr const char* version = "1";
constexpr size_t words_of_line = 8;
constexpr size_t most_words = 1 << 20;  // of an output in a file

uint32_t digest_of(const uint32_t* words, size_t count) {
  uint32_t digest = 2166136261u;  // FNV-1a over words
  for (size_t i = 0; i < count; ++i) digest = (digest ^ words[i]) * 16777619u, digest ^= digest >> 15;
  return digest;
}

/// Lines of a golden file, one after the other.
class Lines {
 public:
  Lines(std::string where, const std::string& text) : where_(std::move(where)), text_(text) {}

  std::istringstream next(const char* needed) {
    std::string line;
    ++number_;
    if (!std::getline(text_, line)) refuse("the end of the file", needed);
    return std::istringstream(line);
  }
  [[noreturn]] void refuse(const std::string& found, const std::string& needed) const {
    fail<DataError>("goldens", "{} line {}: found: {}; needed: {}; way out: `gpu_report goldens --write FILE` writes one", where_, number_, found, needed);
  }
  bool more() { return text_.peek() != std::istringstream::traits_type::eof(); }

 private:
  std::string where_;
  std::istringstream text_;
  int64_t number_ = 0;
};

template <class T>
T read(Lines& lines, std::istringstream& line, const char* needed) {
  T value{};
  if (!(line >> value)) lines.refuse(fmt::format("'{}'", line.str()), needed);
  return value;
}

uint32_t word_from(Lines& lines, const std::string& text) {
  uint32_t word = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), word, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 8) lines.refuse(fmt::format("'{}'", text), "words of eight hexadecimal digits");
  return word;
}

}  // namespace

Golden condensed(const Golden& output) {
  if (output.words.size() <= most_golden_words) return output;
  if (output.tolerance != 0) fail<StateError>("goldens", "'{}' has {} words and a tolerance; allowed: {} words", output.name, output.words.size(), most_golden_words);
  Golden kept{output.name, 0, {}};
  const size_t count = output.words.size();
  for (size_t part = 0; part < digests_of_long_output; ++part) {
    const size_t begin = count * part / digests_of_long_output, end = count * (part + 1) / digests_of_long_output;
    kept.words.push_back(digest_of(output.words.data() + begin, end - begin));
  }
  return kept;
}

std::string goldens_text(const Goldens& goldens) {
  std::string text = fmt::format("{} {}\nmade on {}\noutputs {}\n", magic, version, goldens.made_on, goldens.outputs.size());
  for (const Golden& output : goldens.outputs) {
    text += fmt::format("output {} {} {}\n", output.name, output.tolerance, output.words.size());
    for (size_t i = 0; i < output.words.size(); ++i) text += fmt::format("{:08x}{}", output.words[i], (i + 1) % words_of_line == 0 || i + 1 == output.words.size() ? '\n' : ' ');
  }
  return text + "end\n";
}

Goldens parse_goldens(const std::string& where, const std::string& text) {
  Lines lines(where, text);
  Goldens goldens;
  {
    std::istringstream line = lines.next("a golden file");
    std::string word, number;
    line >> word >> number;
    if (word != magic) lines.refuse(fmt::format("'{}'", line.str().substr(0, 40)), fmt::format("'{} {}'", magic, version));
    if (number != version) lines.refuse(fmt::format("version '{}'", number), fmt::format("version {}", version));
  }
  {
    const std::string made = lines.next("where it was made").str();
    if (!made.starts_with("made on ") || made.size() == 8) lines.refuse(fmt::format("'{}'", made), "'made on DEVICE'");
    goldens.made_on = made.substr(8);
  }
  std::istringstream counts = lines.next("the number of outputs");
  if (read<std::string>(lines, counts, "'outputs N'") != "outputs") lines.refuse(fmt::format("'{}'", counts.str()), "'outputs N'");
  const auto outputs = read<size_t>(lines, counts, "'outputs N'");
  for (size_t i = 0; i < outputs; ++i) {
    std::istringstream line = lines.next(fmt::format("output {} of {}", i + 1, outputs).c_str());
    const char* const form = "'output NAME TOLERANCE WORDS'";
    if (read<std::string>(lines, line, form) != "output") lines.refuse(fmt::format("'{}'", line.str()), form);
    Golden output;
    output.name = read<std::string>(lines, line, form);
    output.tolerance = read<double>(lines, line, form);
    const auto count = read<size_t>(lines, line, form);
    if (!(output.tolerance >= 0) || count > most_words) lines.refuse(fmt::format("'{}'", line.str()), fmt::format("a tolerance of 0 or more, and {} words at most", most_words));
    for (const Golden& other : goldens.outputs)
      if (other.name == output.name) lines.refuse(fmt::format("a second '{}'", output.name), "each output once");
    while (output.words.size() < count) {
      std::istringstream row = lines.next(fmt::format("{} words of '{}'", count, output.name).c_str());
      const size_t before = output.words.size();
      for (std::string word; row >> word;) output.words.push_back(word_from(lines, word));
      if (output.words.size() > count || output.words.size() == before) lines.refuse(fmt::format("{} words of '{}' so far", output.words.size(), output.name), fmt::format("{}", count));
    }
    goldens.outputs.push_back(std::move(output));
  }
  if (const std::string end = lines.next("'end'").str(); end != "end") lines.refuse(fmt::format("'{}'", end.substr(0, 40)), fmt::format("'end' after {} outputs", outputs));
  if (lines.more()) lines.refuse("more after 'end'", "nothing");
  return goldens;
}

Goldens read_goldens(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) fail<FileError>("goldens", "{} can not be read; way out: `gpu_report goldens --write FILE` writes one", path);
  return parse_goldens(path, text.str());
}

std::string difference(const Golden& found, const Golden& expected) {
  if (found.words.size() != expected.words.size()) return fmt::format("{}: {} words; expected: {}", found.name, found.words.size(), expected.words.size());
  size_t wrong = 0, first = 0;
  double largest = 0, most = 0;
  for (const uint32_t word : expected.words)
    if (expected.tolerance > 0 && std::isfinite(std::bit_cast<float>(word))) largest = std::max(largest, std::abs(static_cast<double>(std::bit_cast<float>(word))));
  for (size_t i = 0; i < found.words.size(); ++i) {
    if (found.words[i] == expected.words[i]) continue;
    if (expected.tolerance > 0) {
      const double error = std::abs(static_cast<double>(std::bit_cast<float>(found.words[i])) - static_cast<double>(std::bit_cast<float>(expected.words[i])));
      most = error > most || std::isnan(error) ? error : most;
      if (error <= expected.tolerance * largest) continue;  // false for NaN
    }
    if (wrong++ == 0) first = i;
  }
  if (wrong == 0) return {};
  return fmt::format("{}: {} of {} words differ, the first is word {}: {:08x}; expected: {:08x}{}", found.name, wrong, found.words.size(), first, found.words[first], expected.words[first],
                     expected.tolerance > 0 ? fmt::format(" (largest error {:.3g}; allowed: {:.3g})", most, expected.tolerance * largest) : "");
}

std::vector<std::string> differences(const Goldens& found, const Goldens& expected) {
  std::vector<std::string> all;
  const auto named = [](const Goldens& in, const std::string& name) -> const Golden* {
    for (const Golden& output : in.outputs)
      if (output.name == name) return &output;
    return nullptr;
  };
  for (const Golden& output : found.outputs) {
    const Golden* const other = named(expected, output.name);
    const std::string text = other == nullptr ? fmt::format("{}: is not among the golden outputs", output.name) : difference(condensed(output), condensed(*other));
    if (!text.empty()) all.push_back(text);
  }
  for (const Golden& output : expected.outputs)
    if (named(found, output.name) == nullptr) all.push_back(fmt::format("{}: was not computed", output.name));
  return all;
}

}  // namespace quire::gpu_report
