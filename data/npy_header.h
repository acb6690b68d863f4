// The header of NumPy's .npy files. Not installed.
#pragma once
#include <cstdint>
#include <string>

#include "data/corpus.h"

namespace quire {

struct NpyHeader {
  TokenType type;
  int64_t begin = 0;  ///< first byte of the data
  int64_t count = 0;  ///< ids
};

/// DataError unless the file is a one-dimensional array of little-endian u16, u32, i32 or i64 and has exactly its bytes.
NpyHeader read_npy_header(const File& file, const std::string& path);

}  // namespace quire
