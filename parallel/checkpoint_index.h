// The index of a checkpoint: which slice of which tensor lies where.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/dtype.h"

namespace quire {

/// One slice: a hyper-rectangle of a global tensor, stored contiguously (last dimension fastest).
struct CheckpointPiece {
  std::string kind, name;
  DType dtype = DType::f32;
  std::vector<int64_t> global_shape;
  std::vector<int64_t> offset, shape;  ///< of the slice, in elements, one entry for each dimension
  std::string file;                    ///< in the checkpoint's folder
  int64_t file_offset = 0;             ///< first byte
  int64_t bytes = 0;
  uint64_t checksum = 0;               ///< XXH64 of the bytes
  bool operator==(const CheckpointPiece&) const = default;
};

struct CheckpointFile {
  std::string name;
  int64_t bytes = 0;
  uint64_t checksum = 0;  ///< XXH64 of the whole file
  bool operator==(const CheckpointFile&) const = default;
};

struct CheckpointIndex {
  int64_t step = 0;
  std::vector<CheckpointFile> files;  ///< all but the index itself
  std::vector<CheckpointPiece> pieces;
  bool operator==(const CheckpointIndex&) const = default;
};

/// JSON whose last line holds the checksum of all bytes before it.
std::string to_text(const CheckpointIndex& index);
/// Inverse; DataError naming `path` where the checksum or a value is wrong, or a piece does not lie in its file.
CheckpointIndex parse_checkpoint_index(const std::string& path, std::string_view text);

/// DataError unless the pieces of every tensor agree on dtype and shape and cover it exactly once.
void check_coverage(const std::string& path, const std::vector<CheckpointPiece>& pieces);

/// Product of sizes; DataError naming `path` where it does not fit in int64 or a size is negative.
int64_t checked_elements(const std::string& path, const std::vector<int64_t>& shape);

}  // namespace quire
