// A call of attention as kernels on a CUDA device take it. Free of the runtime's headers, which nvcc reads slowly.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/boundary_table.h"

namespace quire::attention {

struct Sizes {
  BoundaryTable queries, keys;
  int32_t query_tokens, key_tokens, query_tiles, key_tiles;
  int32_t heads, group, head_dim, window;  ///< `group` query heads read one key/value head
  bool queries_ascend, keys_ascend;        ///< from tile to tile
  bool bf16;                               ///< q, k, v and dout; else they are f32
};

/// AttentionForwardArgs; out is of the inputs' type or f32.
struct Forward {
  Sizes sizes;
  const void *q, *k, *v;
  void* out;
  float* lse;
  int64_t q_row, k_row, v_row, out_row;
  float scale;
  bool out_f32;
};

/// AttentionBackwardArgs.
struct Backward {
  Sizes sizes;
  const void *q, *k, *v, *dout;
  const float *lse, *delta;
  float *dq, *dk, *dv;
  int64_t q_row, k_row, v_row, dout_row, dq_row, dk_row, dv_row;
  float scale;
  bool overwrite;
};

/// With tensor cores: bf16, head sizes 64 and 128, rows of inputs aligned to 16 bytes, pairs of outputs to their size.
void tensor_core_forward(const Forward& call, cudaStream_t stream);
void tensor_core_backward(const Backward& call, cudaStream_t stream);

/// In f32 arithmetic: f32 and bf16, head sizes up to this.
constexpr int32_t f32_largest_head = 256;
void f32_forward(const Forward& call, cudaStream_t stream);
void f32_backward(const Backward& call, cudaStream_t stream);

/// delta [tokens * heads] = sums of out * dout over a head's columns.
void row_products(const void* out, const void* dout, bool bf16, int64_t rows, int64_t head_dim, float* delta, cudaStream_t stream);
/// AttentionMergeArgs: rows of tokens that lie in runs.
void merge_rows(const int32_t* start, int64_t tokens, int64_t heads, int64_t head_dim, float* out1, float* lse1, const float* out2, const float* lse2, cudaStream_t stream);

}  // namespace quire::attention
