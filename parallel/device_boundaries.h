// Boundaries that came to a device: compared, bounded and looked up there, because no step waits for the host to read them.
#pragma once
#include <optional>

#include "ops/attention.h"
#include "parallel/boundary_record.h"

namespace quire {

/// Where tokens lie, on a device. The host knows what is expected, not what came.
struct DeviceBoundaries {
  Tensor global, start;  ///< [tokens] i32: index in the microbatch, index of the document's first token
  Tensor positions;      ///< [tokens] i32; undefined where nobody wants them
  static DeviceBoundaries empty(Rank& rank, int64_t tokens, bool positions);
  bool defined() const { return global.defined(); }
};

/// What indices and positions stay below.
struct BoundaryLimits {
  int64_t microbatch_tokens = 0, positions = 0;
};

/// `flag` [1] f64 becomes `code` (not 0) where it is 0 and the records, of one size, differ in any byte.
void compare_boundary_records(Rank& rank, const Tensor& found, const Tensor& expected, const Tensor& flag, double code);
/// What the flag [1] f64 says, which is down again then. Waits for the device: between steps alone.
std::optional<BoundaryMismatch> take_mismatch(Rank& rank, const Tensor& flag);
/// Boundaries of a record of `tokens` tokens, into those at [first, first + tokens) of `into`. Where a token's can not be, the expected record's take their place.
void take_boundaries(Rank& rank, const Tensor& found, const Tensor& expected, int64_t tokens, const BoundaryLimits& limits, const DeviceBoundaries& into, int64_t first = 0);
/// Runs as they are expected, which count the work, with the table of what is there.
DocumentRuns runs_of_boundaries(Rank& rank, std::vector<DocumentRun> expected, const DeviceBoundaries& boundaries);
/// The record of what is there, which tokens of `expected` have; its digest is made on the device.
Tensor make_boundary_record(Rank& rank, const BoundaryHeader& header, const Documents& expected, const DeviceBoundaries& boundaries);

}  // namespace quire
