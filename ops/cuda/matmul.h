// Matrix products on CUDA: the kernels behind the list, and what they share (internal to ops/cuda).
#pragma once
#include "ops/kernels.h"

namespace quire {

/// f32, or bf16 with C of bf16 or f32.
bool matmul_type_can_run(const MatmulArgs& args);

/// cuBLASLt, with one algorithm per form, types, n and k whatever the rows (matmul_cublaslt.cpp). Any sizes, strides and alignments.
void matmul_cublaslt(Rank& rank, const MatmulArgs& args);

/// Tensor cores by wgmma, fed by TMA: devices of compute capability 9.0 (matmul_wgmma.cu). bf16; A, B and their rows lie on multiples of 16 bytes.
bool matmul_wgmma_can_run(const MatmulArgs& args);
void matmul_wgmma(Rank& rank, const MatmulArgs& args);

/// Tensor cores by mma.sync (matmul_mma.cu). bf16; any sizes, strides and alignments.
bool matmul_mma_can_run(const MatmulArgs& args);
void matmul_mma(Rank& rank, const MatmulArgs& args);

/// Multiply-adds in f32 from tiles in shared memory: the device's reference (matmul_tiles.cu). Any sizes, strides and alignments.
void matmul_tiles(Rank& rank, const MatmulArgs& args);

/// A matrix as it lies in memory: `lines` runs of `columns` contiguous elements, their beginnings `stride` elements apart.
struct MatmulOperand {
  const void* data;
  int64_t lines, columns, stride;
};
/// A: lines are its rows where it is contiguous in k, else steps of k. Any stride goes with one line: it is given one that no line overlaps.
inline MatmulOperand left_operand(const MatmulArgs& args) {
  MatmulOperand a = args.a_col == 1 ? MatmulOperand{args.a, args.m, args.k, args.a_row} : MatmulOperand{args.a, args.k, args.m, args.a_col};
  if (a.lines <= 1 && a.stride < a.columns) a.stride = a.columns;
  return a;
}
/// B: lines are steps of k where it is contiguous in n, else its columns.
inline MatmulOperand right_operand(const MatmulArgs& args) {
  MatmulOperand b = args.b_col == 1 ? MatmulOperand{args.b, args.k, args.n, args.b_row} : MatmulOperand{args.b, args.n, args.k, args.b_col};
  if (b.lines <= 1 && b.stride < b.columns) b.stride = b.columns;
  return b;
}
/// Whether every line begins on a multiple of `bytes`.
inline bool is_aligned(const void* data, int64_t stride, DType type, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0 && stride * size_of(type) % bytes == 0;
}

}  // namespace quire
