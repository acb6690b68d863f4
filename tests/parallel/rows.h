// Rows of packed documents with heavy-tailed lengths, from fixed seeds.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <vector>

namespace quire::test {

/// Lognormal lengths of this mean before documents are cut to rows, at least 2 tokens. A sum of uniform numbers stands for a normal deviate,
/// as the standard's distributions differ between libraries.
class LognormalLengths {
 public:
  LognormalLengths(double mean, double sigma, uint64_t seed) : center_(std::log(mean) - sigma * sigma / 2), sigma_(sigma), random_(seed) {}
  int64_t operator()() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(random_() >> 11) * 0x1p-53;
    return std::max<int64_t>(2, std::llround(std::exp(center_ + sigma_ * sum)));
  }
  uint64_t below(uint64_t bound) { return random_() % bound; }

 private:
  double center_, sigma_;
  std::mt19937_64 random_;
};

/// Full rows by best-fit decreasing over a block of documents, at least nine tenths full; the rest of a row stays empty. Documents longer than a row are cut.
inline std::vector<std::vector<int64_t>> packed_rows(LognormalLengths& lengths, int64_t tokens, size_t rows) {
  std::vector<int64_t> pieces;
  const int64_t wanted = tokens * static_cast<int64_t>(2 * rows + 20);
  for (int64_t sum = 0; sum < wanted;) {
    int64_t length = lengths();
    sum += length;
    for (; length > tokens; length -= tokens) pieces.push_back(tokens);
    pieces.push_back(length);
  }
  std::stable_sort(pieces.begin(), pieces.end(), std::greater<>());
  std::vector<std::vector<int64_t>> packed;
  std::multimap<int64_t, size_t> room;
  for (const int64_t length : pieces) {
    const auto best = room.lower_bound(length);
    int64_t left = tokens;
    size_t row = packed.size();
    if (best == room.end()) {
      packed.emplace_back();
    } else {
      left = best->first;
      row = best->second;
      room.erase(best);
    }
    packed[row].push_back(length);
    if (left > length) room.insert({left - length, row});
  }
  const auto shuffle = [&](auto& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[lengths.below(i)]);
  };
  shuffle(packed);
  std::erase_if(packed, [&](const std::vector<int64_t>& row) { return 10 * std::accumulate(row.begin(), row.end(), int64_t{0}) < 9 * tokens; });
  packed.resize(std::min(packed.size(), rows));
  for (std::vector<int64_t>& row : packed) shuffle(row);
  return packed;
}

}  // namespace quire::test
