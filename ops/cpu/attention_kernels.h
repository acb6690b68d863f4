// Attention's kernels for one instruction set and type, as plain functions.
#pragma once
#include "ops/cpu/attention.h"
#include "runtime/rank.h"

namespace quire {

/// Query-key pairs: whose score was computed, and those of them inside of the mask.
struct AttentionPairs { int64_t computed = 0, attended = 0; };

struct AttentionForwardKernels {
  /// Packs one tile of a document's keys and values for one key/value head in the memory all threads share.
  void (*pack)(const AttentionForwardArgs&, const AttentionPlan&, const AttentionDocument&, int64_t kv_head, int64_t tile, void* shared);
  /// Computes a unit with a thread's own memory.
  AttentionPairs (*run)(const AttentionForwardArgs&, const AttentionPlan&, const AttentionUnit&, void* shared, void* memory);
};
struct AttentionBackwardKernels {
  /// Computes a unit; parts after the first write dk and dv to `partial` [dk and dv, plan.partial_keys, kv_heads, head_dim] instead of adding them.
  AttentionPairs (*run)(const AttentionBackwardArgs&, const AttentionPlan&, const AttentionUnit&, void* partial, void* memory);
  /// Adds the partial sums of keys [begin, end) of a document to dk and dv.
  void (*add_parts)(const AttentionBackwardArgs&, const AttentionPlan&, const AttentionDocument&, const void* partial, int64_t begin, int64_t end);
};
/// Row loops: tokens [begin, end).
struct AttentionRowKernels {
  void (*delta)(const AttentionDeltaArgs&, int64_t begin, int64_t end);
  void (*merge)(const AttentionMergeArgs&, int64_t begin, int64_t end);
};

/// For the rank's instruction set.
AttentionForwardKernels attention_forward_kernels(const Rank& rank, DType type);
AttentionBackwardKernels attention_backward_kernels(const Rank& rank, DType type);
AttentionRowKernels attention_row_kernels(const Rank& rank, DType type);

/// The reference: every query against every key, with a mask.
void dense_attention_forward(Rank& rank, const AttentionForwardArgs& args);
void dense_attention_backward(Rank& rank, const AttentionBackwardArgs& args);

}  // namespace quire
