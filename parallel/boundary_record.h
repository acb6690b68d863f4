// A microbatch's documents as they travel with its activations: 64 bytes of header and 4 bytes per token.
#pragma once
#include "runtime/documents.h"
#include "runtime/tensor.h"

namespace quire {

/// What a record says of itself.
struct BoundaryHeader {
  int64_t step = 0, stage = 0, microbatch = 0;  ///< `stage`: the receiver
  bool operator==(const BoundaryHeader&) const = default;
};

constexpr int64_t boundary_header_words = 16;  ///< of 4 bytes

/// [boundary_header_words + tokens] i32.
Shape boundary_record_shape(int64_t tokens);
/// Throws UnsupportedError for documents that are a shard: a stage's microbatch is whole.
Tensor make_boundary_record(Rank& rank, const BoundaryHeader& header, const Documents& documents);

struct BoundaryRecord {
  BoundaryHeader header;
  uint64_t digest = 0;   ///< of the documents, as the sender saw them
  Documents documents;
};
/// Throws BoundaryError for a record that is none, or whose documents can not be (with what is wrong).
BoundaryRecord read_boundary_record(const Tensor& record);

}  // namespace quire
