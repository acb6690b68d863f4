// The kernel contract: what each operation asks of a device, as plain arguments. CPU and CUDA kernels take the same structs under the
// same names; the operations in ops/*.h turn tensors into them. Sizes are elements unless said; strides are elements between rows.
//
// Types: T below is the storage type (f64, f32, bf16); A is its accumulator (f64 for f64, else f32). Arithmetic is done in A.
// Everything is deterministic, and bits depend neither on the number of threads nor (for row-wise results) on the other rows.
#pragma once
#include <cstdint>
#include <span>

#include "ops/boundary_table.h"
#include "ops/document_batches.h"
#include "runtime/add.h"
#include "runtime/documents.h"
#include "runtime/dtype.h"
#include "runtime/kernel.h"

namespace quire {

/// C[m,n] (+)= A[m,k] B[k,n]. Element (i,p) of A is a[i * a_row + p * a_col]; of B (p,j) b[p * b_row + j * b_col]; C's rows are contiguous.
/// One of the two strides of A and of B is 1. (nn: x W; nt: x W^T; tn: x^T dy.) a_type and b_type are equal; c_type is theirs or the accumulator.
/// Row-invariant: the bits of C's row i depend on A's row i and B alone, not on m or on i. k = 0 gives zeros.
struct MatmulArgs {
  static constexpr const char* op = "matmul";
  DType type, c_type;
  int64_t m, n, k;
  const void* a; int64_t a_row, a_col;
  const void* b; int64_t b_row, b_col;
  void* c; int64_t c_row;
  bool accumulate = false;  ///< add to C (rounded once for a bf16 C)
  const char* profile_name() const {
    if (a_col == 1) return b_col == 1 ? (accumulate ? "matmul nn, added" : "matmul nn") : (accumulate ? "matmul nt, added" : "matmul nt");
    return b_col == 1 ? (accumulate ? "matmul tn, added" : "matmul tn") : (accumulate ? "matmul tt, added" : "matmul tt");
  }
};

/// Makes a table from runs that lie where the kernel works, ascending and apart. O(tokens) work, once per microbatch.
struct BoundaryTableArgs {
  static constexpr const char* op = "boundary_table";
  int64_t tokens_count, runs_count;
  const DocumentRun* runs;
  int32_t* global;
  int32_t* start;
  TileBoundaries* tiles;
};

/// Attention of some query tokens over some key tokens, inside documents.
/// q [query tokens, heads, head_dim], k and v [key tokens, kv_heads, head_dim], out like q, lse [query tokens, heads] (A), all of T with the
/// given row strides (elements between tokens); heads of one token are contiguous. heads is a multiple of kv_heads; query head h reads h / (heads / kv_heads).
/// Query token i reads key token j exactly when both are of one document (equal run.start) and global_j <= global_i and
/// (window == 0 or global_j > global_i - window). A query that reads no key gets out 0 and lse -infinity. scale multiplies scores.
/// Query tokens that no run covers are left out: neither their q is read nor their out and lse written.
struct AttentionForwardArgs {
  static constexpr const char* op = "attention_forward";
  DType type;
  int64_t heads, kv_heads, head_dim;
  int64_t query_tokens, key_tokens;
  std::span<const DocumentRun> query_runs, key_runs;
  int64_t window;
  double scale;
  const void* q; int64_t q_row;
  const void* k; int64_t k_row;
  const void* v; int64_t v_row;
  void* out; int64_t out_row;
  void* lse;
  bool dense = false;       ///< the backend asked for: materialised mask (reference) or tiles
  bool accumulate_out = false;  ///< `out` is of type A instead of T (partial results that will be merged)
  BoundaryTable query_table = {}, key_table = {};  ///< of the runs; devices alone get them
  /// Given where cuDNN is the backend asked for: the runs, which are whole documents that read themselves alone.
  const DocumentBatches* batches = nullptr;
};

/// Adds to dq, dk, dv (type A, [tokens, heads, head_dim] with the given row strides) the gradients of the above, given the *merged* lse and
/// delta[i, h] = sum_d out[i, h, d] * dout[i, h, d] (A). Rows of queries with lse = -infinity, or in no run, contribute nothing.
struct AttentionBackwardArgs {
  static constexpr const char* op = "attention_backward";
  DType type;
  int64_t heads, kv_heads, head_dim;
  int64_t query_tokens, key_tokens;
  std::span<const DocumentRun> query_runs, key_runs;
  int64_t window;
  double scale;
  const void* q; int64_t q_row;
  const void* k; int64_t k_row;
  const void* v; int64_t v_row;
  const void* dout; int64_t dout_row;
  const void* lse;
  const void* delta;
  void* dq; int64_t dq_row;
  void* dk; int64_t dk_row;
  void* dv; int64_t dv_row;
  bool dense = false;
  /// dq, dk and dv hold nothing yet and are written instead of added to. Only where query_runs and key_runs are the same and cover all tokens.
  bool overwrite = false;
  BoundaryTable query_table = {}, key_table = {};  ///< of the runs; devices alone get them
  const DocumentBatches* batches = nullptr;        ///< as in forward
  const void* out = nullptr; int64_t out_row = 0;  ///< given with batches: the output that lse belongs to
};

/// delta[i, h] = sum_d out[i, h, d] * dout[i, h, d]; rows contiguous.
struct AttentionDeltaArgs {
  static constexpr const char* op = "attention_delta";
  DType type;
  int64_t tokens, heads, head_dim;
  const void* out; const void* dout;
  void* delta;
};

/// Merges partial result 2 into 1 by log-sum-exp: out1 (A), lse1 (A) become those of the union of the key sets. Both -infinity stays so.
/// Rows that no run covers stay as they are and are not read.
struct AttentionMergeArgs {
  static constexpr const char* op = "attention_merge";
  DType type;  ///< T; buffers are of type A
  int64_t tokens, heads, head_dim;
  std::span<const DocumentRun> runs;  ///< of rows to merge, ascending in local storage
  void* out1; void* lse1;
  const void* out2; const void* lse2;
  BoundaryTable table = {};  ///< of the runs; devices alone get it
};

/// y = x * rstd * gain, rstd = 1 / sqrt(mean(x^2) + eps), per row of `width`. rstd [rows] (A) is written for backward.
/// Where `added` is given, x + added (of T) is written to `sum`, which may be `added`, and takes the place of x.
struct RmsNormForwardArgs {
  static constexpr const char* op = "rmsnorm_forward";
  DType type;
  int64_t rows, width;
  double eps;
  const void* x; const void* gain;
  void* y; void* rstd;
  const void* added = nullptr;
  void* sum = nullptr;
};

/// dx = gradient of the above by its (summed) input (T); dgain[width] (A) += its gradient, summed over fixed chunks of rows in fixed order.
/// Where `so_far` (T) is given, dx is that plus the gradient, rounded once. dx may be dy or so_far.
struct RmsNormBackwardArgs {
  static constexpr const char* op = "rmsnorm_backward";
  DType type;
  int64_t rows, width;
  const void* x; const void* gain; const void* rstd; const void* dy;
  void* dx; void* dgain;
  const void* so_far = nullptr;
};

/// Rotary embedding in the half-split convention of the Hugging Face layout: with d = head_dim / 2,
/// (x[i], x[i+d]) -> (x[i] c - x[i+d] s, x[i+d] c + x[i] s), c = cosine[position, i]. cosine and sine are tables [positions, d] of type A.
/// `inverse` rotates back (the gradient). x and y [tokens, heads, head_dim], contiguous; y may be x.
struct RotaryArgs {
  static constexpr const char* op = "rotary";
  DType type;
  int64_t tokens, heads, head_dim;
  const int32_t* positions;
  const void* cosine; const void* sine;
  const void* x; void* y;
  bool inverse = false;
};

/// y = silu(gate) * up, elementwise over `count`.
struct SwigluForwardArgs {
  static constexpr const char* op = "swiglu_forward";
  DType type;
  int64_t count;
  const void* gate; const void* up;
  void* y;
};
/// dgate may be gate, and dup may be up.
struct SwigluBackwardArgs {
  static constexpr const char* op = "swiglu_backward";
  DType type;
  int64_t count;
  const void* gate; const void* up; const void* dy;
  void* dgate; void* dup;
};

/// y[i] = table[tokens[i]], rows of `width`. Tokens are in [0, vocabulary) (checked where they enter).
struct EmbeddingForwardArgs {
  static constexpr const char* op = "embedding_forward";
  DType type;
  int64_t tokens_count, width, vocabulary;
  const int32_t* tokens;
  const void* table;
  void* y;
};
/// dtable[tokens[i]] (A) += dy[i], in ascending i for every row.
struct EmbeddingBackwardArgs {
  static constexpr const char* op = "embedding_backward";
  DType type;
  int64_t tokens_count, width, vocabulary;
  const int32_t* tokens;
  const void* dy;
  void* dtable;
};

/// For rows of logits (A, [rows, vocabulary], contiguous): lse[i] and nll[i] = lse[i] - logits[i, target] + z_weight * lse[i]^2; a target of -100
/// gives nll 0. lse and nll are A.
struct CrossEntropyForwardArgs {
  static constexpr const char* op = "cross_entropy_forward";
  DType type;
  int64_t rows, vocabulary;
  const void* logits;
  const int32_t* targets;
  double z_weight;
  void* lse; void* nll;
};
/// dlogits (T; may be the logits themselves where T is A) = scale[0] * (softmax * (1 + 2 z_weight lse) - onehot); exact zeros for ignored rows. scale is f64 on the device.
struct CrossEntropyBackwardArgs {
  static constexpr const char* op = "cross_entropy_backward";
  DType type;
  int64_t rows, vocabulary;
  const void* logits;
  const int32_t* targets;
  double z_weight;
  const void* lse;
  const double* scale;
  void* dlogits;
};

/// Converts between f64, f32 and bf16 (round to nearest even).
struct CastArgs {
  static constexpr const char* op = "cast";
  DType from_type, to_type;
  int64_t count;
  const void* from;
  void* to;
};

/// result[0] (f64) = sum of x[i] (power 1) or of x[i]^2 (power 2) in f64, over fixed chunks in fixed order.
struct ReduceArgs {
  static constexpr const char* op = "reduce";
  DType type;  ///< f64, f32 or bf16
  int64_t count;
  int power;
  const void* x;
  double* result;
};

/// One tensor's sum of squares.
struct SquaresTensor {
  int64_t count;
  const void* x;
  double* result;
};
/// For each tensor what `reduce` with power 2 gives, to the bit.
struct SquaresArgs {
  static constexpr const char* op = "squares";
  DType type;  ///< f64, f32 or bf16
  std::span<const SquaresTensor> tensors;  ///< taken before the call returns
};

/// Scalars of one optimizer step, on the device.
struct OptimizerScalars {
  double learning_rate;
  double clip;         ///< factor for gradients, 1 where not clipped
  double bias1, bias2; ///< 1 - beta^t of Adam's own step t
  int64_t skip;        ///< nonzero: change nothing
};
/// Fills the scalars of a step. norm[0] = sqrt of the sum of squares[0 .. count) in order; clip = min(1, clip_norm / norm), 1 where clip_norm is 0;
/// skip where the norm or loss[0] is not finite or any of `refusals` is not 0, else adam_step[0] grows by one and the bias corrections are those of the new step.
struct OptimizerScalarsArgs {
  static constexpr const char* op = "optimizer_scalars";
  int64_t count;
  const double* squares;
  const double* loss;
  double learning_rate, clip_norm, beta1, beta2;
  int64_t* adam_step;
  double* norm;
  OptimizerScalars* scalars;
  int64_t refusals_count = 0;
  const double* refusals = nullptr;
};
/// One parameter as AdamW sees it: master and moments of type A, gradient of type A; value (T) is the rounded master where it is another tensor.
struct AdamWTensor {
  int64_t count;
  double weight_decay;
  const void* gradient;
  void* master; void* moment1; void* moment2;
  void* value;  ///< nullptr where value is the master itself
};
/// AdamW (Loshchilov and Hutter, 2019) over all parameters of a step, which share no memory:
/// master -= lr * (m_hat / (sqrt(v_hat) + eps) + weight_decay * master).
struct AdamWArgs {
  static constexpr const char* op = "adamw";
  DType type;
  double beta1, beta2, eps;
  const OptimizerScalars* scalars;
  std::span<const AdamWTensor> tensors;  ///< taken before the call returns
};

/// starts[i] = index of the first token of token i's document, where a document ends after each `eos` token. [tokens]
struct StartsFromEosArgs {
  static constexpr const char* op = "starts_from_eos";
  int64_t tokens_count;
  const int32_t* tokens;
  int32_t eos;
  int32_t* starts;
};
/// document_ids[i] = number of documents that begin before token i's.
struct DocumentIdsArgs {
  static constexpr const char* op = "document_ids";
  int64_t tokens_count;
  const int32_t* starts;
  int32_t* document_ids;
};
/// Inverse of the above (ids ascending, not necessarily dense).
struct StartsFromIdsArgs {
  static constexpr const char* op = "starts_from_ids";
  int64_t tokens_count;
  const int32_t* document_ids;
  int32_t* starts;
};
/// positions[i] = indices[i] - starts[i].
struct PositionsArgs {
  static constexpr const char* op = "positions";
  int64_t tokens_count;
  const int32_t* indices;
  const int32_t* starts;
  int32_t* positions;
};
/// For each tile of `tile` consecutive queries (whole microbatch): first and one past the last key that any of its rows reads. O(tokens) work.
/// first, last [ceil(tokens / tile)].
struct TileRangesArgs {
  static constexpr const char* op = "tile_ranges";
  int64_t tokens_count, tile, window;
  const int32_t* starts;
  int32_t* first;
  int32_t* last;
};

/// flag[0] becomes `code` where it is 0 and any of the bytes differ. Nothing is read by the host: who looks at the flag, later, learns of the first
/// comparison that failed.
struct CompareRecordsArgs {
  static constexpr const char* op = "compare_records";
  int64_t bytes;
  const void* found;
  const void* expected;
  double* flag;
  double code;  ///< not 0
};
/// Boundaries of tokens that were received, as they are computed with: a token's index and start as they came where they can be (0 <= start <= index < microbatch_tokens,
/// index - start < most_positions), else those that were expected.
struct ReceivedBoundariesArgs {
  static constexpr const char* op = "received_boundaries";
  int64_t tokens_count, microbatch_tokens, most_positions;
  const int32_t* indices;  ///< null: 0, 1, ...; the same for those expected
  const int32_t* starts;
  const int32_t* expected_indices;
  const int32_t* expected_starts;
  int32_t* global;     ///< [tokens] index
  int32_t* start;      ///< [tokens]
  int32_t* positions;  ///< [tokens] index - start; null where nobody wants them
};
/// A table's tiles, of its tokens.
struct BoundaryTilesArgs {
  static constexpr const char* op = "boundary_tiles";
  int64_t tokens_count;
  const int32_t* global;
  const int32_t* start;
  TileBoundaries* tiles;
};
/// digest[0] = digest_of_documents (runtime/documents_digest.h) of these indices and starts.
struct DocumentsDigestArgs {
  static constexpr const char* op = "documents_digest";
  int64_t tokens_count;
  const int32_t* indices;
  const int32_t* starts;
  uint64_t* digest;
};

}  // namespace quire
