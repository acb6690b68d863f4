// cuDNN's attention as the list of attention's kernels calls it, and the kernels beside it. Free of cuDNN's headers.
#pragma once
#include "ops/kernels.h"

namespace quire {

struct AttentionOptions;
/// Throws UnsupportedError (found, needed, cuDNN's reason) where cuDNN can not compute attention of these heads on the rank's device, of kind cuda.
void check_cudnn_attention(Rank& rank, const AttentionOptions& options);
/// Bytes of its calls' workspace for documents of at most `longest` tokens in microbatches of `tokens`: of the plans that a run makes.
int64_t cudnn_attention_workspace(Rank& rank, const AttentionOptions& options, int64_t longest, int64_t tokens);

namespace cudnn_attention {

/// For calls with `batches`. bf16, on devices of compute capability 9.0. Throws UnsupportedError where this build, the library or the device can not (found,
/// needed, cuDNN's reason).
void forward(Rank& rank, const AttentionForwardArgs& args);
/// To the same bits each time.
void backward(Rank& rank, const AttentionBackwardArgs& args);
/// The gradients of queries are summed in the order in which blocks come: quicker, other bits each time.
void backward_unordered(Rank& rank, const AttentionBackwardArgs& args);

/// Elements between rows of the tensors that offsets are for.
constexpr int most_offset_rows = 6;
struct OffsetRows {
  int64_t row[most_offset_rows];
  int count;
};
/// offsets [rows.count, entries] = begins * row; lengths [entries] are those of the batches where the table says so, too: a place whose document is not there has
/// length 0. The host knows the batches from the plan, while a table may have come with a message.
void document_offsets(Rank& rank, const DocumentBatches& batches, const BoundaryTable& table, int64_t tokens, const OffsetRows& rows, int64_t* offsets, int32_t* lengths);
/// f32 rows from bf16 ones.
void widened_rows(Rank& rank, const void* from, int64_t from_row, float* to, int64_t to_row, int64_t rows, int64_t columns);

}  // namespace cudnn_attention

}  // namespace quire
