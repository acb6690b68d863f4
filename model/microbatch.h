// What one forward and backward pass works on: real tokens only, rows one after the other, with their document boundaries.
#pragma once
#include "ops/attention.h"

namespace quire {

/// What an attention executor that needs more than the documents keeps with a microbatch.
struct MicrobatchWork {
  virtual ~MicrobatchWork() = default;
};

struct Microbatch {
  Tensor tokens;         ///< [T] i32
  Tensor targets;        ///< [T] i32, ignored_target where nothing is scored
  Tensor positions;      ///< [T] i32, restarting in every document
  Documents documents;
  DocumentRuns runs;
  int64_t valid = 0;     ///< targets that are scored
  int64_t longest = 0;   ///< largest position + 1
  std::shared_ptr<MicrobatchWork> work;  ///< the executor's, if any

  /// Throws ShapeError unless all three have one length.
  static Microbatch make(Rank& rank, std::span<const int32_t> tokens, std::span<const int32_t> targets, Documents documents);
  /// What a pipeline stage works on: tokens only where it embeds, targets only where it scores (empty elsewhere); `valid` counts the targets given. `positions`
  /// where a device has them already.
  static Microbatch make_stage(Rank& rank, std::span<const int32_t> tokens, std::span<const int32_t> targets, Documents documents, Tensor positions = {});
  int64_t size() const { return documents.tokens(); }
};

}  // namespace quire
