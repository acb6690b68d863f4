// Attention over documents as graphs of operations for cuDNN.
#pragma once
#include <algorithm>
#include <compare>
#include <cstdint>
#include <vector>

#include "ops/cuda/cudnn_graph.h"

namespace quire::cudnn_attention {

/// What a graph is made for. Batches of documents have a fixed number of places, so that it says nothing of documents or tokens.
struct CudnnFamily {
  int64_t heads, kv_heads, head_dim;
  int64_t longest, places;
  int64_t q_row, k_row, v_row, out_row, dout_row;  ///< elements between tokens; dout_row is 0 in forward
  bool backward;
  bool unordered;  ///< backward: gradients of queries are summed in f32 in whatever order blocks come
  auto operator<=>(const CudnnFamily&) const = default;

  /// The sizes of rows for which tables of offsets are needed, each once.
  std::vector<int64_t> rows() const {
    std::vector<int64_t> all{q_row, k_row, v_row, out_row, heads};
    if (backward) all.push_back(dout_row);
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }
  /// bytes of `sums` (forward: 0) and of `query_sums` (0 unless unordered)
  int64_t sums_bytes() const { return backward ? places * heads * longest * 4 : 0; }
  int64_t query_sums_bytes() const { return backward && unordered ? places * heads * longest * head_dim * 4 : 0; }
};

/// Names of a graph's tensors in memory.
enum CudnnTensor : int64_t {
  q_id = 1, k_id, v_id, out_id, lse_id,
  dout_id, dq_id, dk_id, dv_id,
  sums_id,        ///< [places, heads, longest] f32, written
  query_sums_id,  ///< [places, heads, longest, head_dim] f32, must be zero
  scale_id, infinity_id, one_id,  ///< f32 in host memory: of scores, minus infinity, 1
  query_lengths_id, key_lengths_id,  ///< [places] i32: tokens of each document
  offsets_id,  ///< + the id of q, k, v, out, lse or dout: [places + 1] i64, where each document's first row lies in it, in elements
};

/// out = softmax(scale q k^T) v and lse, causal, for each document by itself. q, k, v, out bf16, lse f32 [tokens, heads].
cudnn_graph::Graph cudnn_forward_graph(const CudnnFamily& family);
/// dq, dk, dv (bf16, in rows as q, k and v) of the same, given out, lse and dout.
cudnn_graph::Graph cudnn_backward_graph(const CudnnFamily& family);

}  // namespace quire::cudnn_attention
