#include "bench/rows.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "data/best_fit.h"
#include "runtime/error.h"
#include "runtime/file.h"
#include "runtime/random.h"

namespace quire::bench {

std::vector<Lengths> read_lengths(const std::string& folder) {
  std::vector<Lengths> all;
  for (const char* name : {"lognormal-128", "lognormal-512", "lognormal-2048", "lognormal-8192", "fortunes"}) {
    const std::string path = folder + "/" + name + ".txt";
    if (!disk().exists(path))
      fail<ConfigError>("bench", "there is no {}; start it from the root of a checkout, or name the folder of document lengths with --lengths", path);
    std::istringstream lines(read_text(disk(), path));
    Lengths lengths{name, {}};
    int64_t length = 0, count = 0;
    while (lines >> length >> count) {
      if (length < 1 || count < 1 || count > 1000000) fail<DataError>(path, "length {} with count {}; both are at least 1", length, count);
      lengths.lengths.insert(lengths.lengths.end(), static_cast<size_t>(count), length);
    }
    if (lengths.lengths.empty() || !lines.eof()) fail<DataError>(path, "lines of LENGTH COUNT are needed");
    all.push_back(std::move(lengths));
  }
  return all;
}

namespace {

int64_t draw(const Lengths& lengths, int64_t row, int64_t number) {
  const uint64_t bits = random_bits(1, stream_of(lengths.name), static_cast<uint64_t>(row), static_cast<uint64_t>(number));
  return lengths.lengths[bits % lengths.lengths.size()];
}

}  // namespace

std::vector<int64_t> draw_row(const Lengths& lengths, int64_t tokens, int64_t row) {
  std::vector<int64_t> drawn;
  for (int64_t left = tokens; left > 0; left -= drawn.back()) drawn.push_back(std::min(left, draw(lengths, row, static_cast<int64_t>(drawn.size()))));
  return drawn;
}

std::vector<std::vector<int64_t>> pack_rows(const Lengths& lengths, int64_t tokens, int64_t rows) {
  constexpr size_t taken = 60;  // of a block
  std::vector<std::vector<int64_t>> all;
  for (int64_t block = 0; static_cast<int64_t>(all.size()) < rows; ++block) {
    std::vector<int64_t> pieces;
    int64_t sum = 0;
    for (int64_t i = 0; sum < 100 * tokens || i < 1000; ++i)
      for (int64_t left = draw(lengths, -1 - block, i); left > 0; left -= pieces.back()) {
        pieces.push_back(std::min(left, tokens));
        sum += pieces.back();
      }
    const std::vector<std::vector<int64_t>> bins = best_fit_decreasing(pieces, tokens);
    const Permutation order(bins.size(), 1, stream_of(lengths.name) + static_cast<uint64_t>(block));
    for (size_t i = 0; i < std::min(taken, bins.size()) && static_cast<int64_t>(all.size()) < rows; ++i) {
      const std::vector<int64_t>& bin = bins[order(i)];
      const Permutation inside(bin.size(), 2, all.size());
      std::vector<int64_t> row;
      for (size_t k = 0; k < bin.size(); ++k) row.push_back(pieces[static_cast<size_t>(bin[inside(k)])]);
      if (10 * std::accumulate(row.begin(), row.end(), int64_t{0}) >= 9 * tokens) all.push_back(std::move(row));
    }
  }
  return all;
}

std::vector<int64_t> draw_documents(const Lengths& lengths, int64_t tokens, int64_t documents) {
  std::vector<int64_t> drawn;
  for (int64_t i = 0; i < documents; ++i) drawn.push_back(draw(lengths, 0, i));
  const int64_t sum = std::accumulate(drawn.begin(), drawn.end(), int64_t{0});
  for (int64_t& length : drawn) length = std::max<int64_t>(length * tokens / sum, 1);
  int64_t left = tokens - std::accumulate(drawn.begin(), drawn.end(), int64_t{0});
  for (size_t i = 0; left != 0; i = (i + 1) % drawn.size())  // what rounding took or gave
    if (left > 0 || drawn[i] > 1) {
      drawn[i] += left > 0 ? 1 : -1;
      left += left > 0 ? -1 : 1;
    }
  return drawn;
}

}  // namespace quire::bench
