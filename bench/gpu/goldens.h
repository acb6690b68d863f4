// Golden outputs: what each wrapper of an instruction gave for fixed inputs, as a small text file. The emulated device wrote the one that is kept
// (tests/golden); a real device's outputs are compared with it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace quire::gpu_report {

/// What a wrapper gave: 32-bit words. `tolerance` 0: the very bits; else words are f32, which may differ by that part of the output's largest magnitude.
struct Golden {
  std::string name;
  double tolerance = 0;
  std::vector<uint32_t> words;
  bool operator==(const Golden&) const = default;
};

struct Goldens {
  std::string made_on;  ///< one line: device, date
  std::vector<Golden> outputs;
  bool operator==(const Goldens&) const = default;
};

/// Exact outputs of more words than this are kept as digests of as many equal parts as fit, so that the file stays small.
constexpr size_t most_golden_words = 256, digests_of_long_output = 16;
/// The output as it is kept: as it is, or digests of its parts. Throws StateError for a long output with a tolerance.
Golden condensed(const Golden& output);

std::string goldens_text(const Goldens& goldens);
/// Throws DataError, with `where` (a path) and the line, for a text that is no golden file, of another version, cut short, or whose counts do not agree.
Goldens parse_goldens(const std::string& where, const std::string& text);
/// The same of a file. Throws FileError where it can not be read.
Goldens read_goldens(const std::string& path);

/// How an output differs from its golden one; "" where it does not. Both condensed.
std::string difference(const Golden& found, const Golden& expected);
/// One text for each output that differs, is missing, or is not known.
std::vector<std::string> differences(const Goldens& found, const Goldens& expected);

}  // namespace quire::gpu_report
