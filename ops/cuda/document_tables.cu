// What cuDNN's attention needs beside cuDNN: where documents begin in each tensor, and gradients in the runtime's type.
#include "ops/cuda/attention_cudnn_calls.h"
#include "ops/cuda/elementwise.h"

namespace quire::cudnn_attention {
namespace {

using namespace cuda_kernel;

__device__ bool is_document(const BoundaryTable& table, int64_t tokens, int64_t begin, int64_t length) {
  const int64_t end = begin + length;
  if (length <= 0 || begin < 0 || end > tokens) return false;
  const int32_t start = table.start[begin];
  return start == table.global[begin] && table.start[end - 1] == start && (end == tokens || table.start[end] != start);
}

__global__ void fill_tables(const int32_t* begins, const int32_t* expected, int64_t entries, BoundaryTable table, int64_t tokens, OffsetRows rows, int64_t* offsets, int32_t* lengths) {
  for (int64_t i = first_of_grid<1>(); i < entries; i += stride_of_grid<1>()) {
    lengths[i] = is_document(table, tokens, begins[i], expected[i]) ? expected[i] : 0;
    const int64_t begin = begins[i] + (gpu::planted("cudnn.wrong_offsets") && i == 1 ? 1 : 0);
#pragma unroll
    for (int k = 0; k < most_offset_rows; ++k)
      if (k < rows.count) offsets[k * entries + i] = begin * rows.row[k];
  }
}

__global__ void widen_rows(const gpu::bf16* from, int64_t from_row, float* to, int64_t to_row, int64_t rows, int64_t columns, bool vectors) {
  constexpr int n = 8;
  const int64_t groups = divided_up(columns, n);
  for (int64_t i = first_of_grid<1>(); i < rows * groups; i += stride_of_grid<1>()) {
    const int64_t row = i / groups, column = i % groups * n;
    float values[n];
    load_wide(from + row * from_row + column, columns - column, vectors, values);
    store(values, to + row * to_row + column, columns - column, vectors);
  }
}

}  // namespace

void document_offsets(Rank& rank, const DocumentBatches& batches, const BoundaryTable& table, int64_t tokens, const OffsetRows& rows, int64_t* offsets, int32_t* lengths) {
  gpu::launch(fill_tables, dim3(blocks_of(rank, divided_up(batches.entries, block_threads))), dim3(block_threads), 0, stream_of(rank), batches.begins, batches.lengths,
              batches.entries, table, tokens, rows, offsets, lengths);
}

void widened_rows(Rank& rank, const void* from, int64_t from_row, float* to, int64_t to_row, int64_t rows, int64_t columns) {
  const bool vectors = in_vectors(from, to) && from_row % 8 == 0 && to_row % 4 == 0;
  gpu::launch(widen_rows, dim3(blocks_of(rank, divided_up(rows * divided_up(columns, 8), block_threads))), dim3(block_threads), 0, stream_of(rank),
              static_cast<const gpu::bf16*>(from), from_row, to, to_row, rows, columns, vectors);
}

}  // namespace quire::cudnn_attention
