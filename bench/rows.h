// Packed rows of committed document lengths: the same on every machine.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace quire::bench {

struct Lengths {
  std::string name;
  std::vector<int64_t> lengths;  ///< ascending, each as often as it occurs
};

/// Files of a folder (bench/lengths), lines of `LENGTH COUNT`: lognormal of four means, and Debian's fortunes. Throws FileError, DataError.
std::vector<Lengths> read_lengths(const std::string& folder);

/// Documents drawn until the row is full, the last one cut. Integers alone: random_bits(1, name, row, number of the document).
std::vector<int64_t> draw_row(const Lengths& lengths, int64_t tokens, int64_t row);

/// Rows as best-fit packing makes them: blocks of drawn documents, longer ones cut, packed by best-fit decreasing; of each block some rows that are
/// at least 90 % full, in a drawn order, as are the documents in them.
std::vector<std::vector<int64_t>> pack_rows(const Lengths& lengths, int64_t tokens, int64_t rows);

/// So many documents, scaled to make so many tokens.
std::vector<int64_t> draw_documents(const Lengths& lengths, int64_t tokens, int64_t documents);

}  // namespace quire::bench
