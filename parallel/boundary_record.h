// Documents as they travel with activations, and with keys and values: 64 bytes of header and 4 bytes per token; 8 where the tokens are not a whole microbatch.
#pragma once
#include "runtime/documents.h"
#include "runtime/tensor.h"

namespace quire {

/// What a record says of itself.
struct BoundaryHeader {
  int64_t step = 0, stage = 0, microbatch = 0;  ///< `stage`: the receiver
  uint64_t plan = 0;                            ///< digest of the context plan in force; 0: none
  bool operator==(const BoundaryHeader&) const = default;
};

constexpr int64_t boundary_header_words = 16;   ///< of 4 bytes
constexpr int64_t boundary_digest_offset = 40;  ///< bytes: where the documents' digest lies in a record

/// [boundary_header_words + tokens] i32 for whole microbatches (indices 0, 1, ...), [boundary_header_words + 2 * tokens] for other documents.
Shape boundary_record_shape(const Documents& documents);
/// Starts, and before them indices where these are not 0, 1, ...
Tensor make_boundary_record(Rank& rank, const BoundaryHeader& header, const Documents& documents);

struct BoundaryRecord {
  BoundaryHeader header;
  uint64_t digest = 0;   ///< of the documents, as the sender saw them
  Documents documents;
};
/// Throws BoundaryError for a record that is none, whose documents can not be, or which is no record of so many tokens (with what is wrong).
BoundaryRecord read_boundary_record(const Tensor& record, int64_t tokens);

/// A microbatch whose received boundaries were not those of the plan.
struct BoundaryMismatch {
  int64_t stage = 0, microbatch = 0;
  int64_t layer = -1;  ///< whose keys they came with; -1: they came with activations
  bool operator==(const BoundaryMismatch&) const = default;
};
/// As a number that f64 holds exactly, at least 1, and back: what ranks tell each other, and what a device's flag is raised to.
double code_of(const BoundaryMismatch& mismatch);
BoundaryMismatch mismatch_of(double code);

}  // namespace quire
