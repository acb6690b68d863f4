// Parts of the packed matrix product, per storage type and instruction set (internal to ops/cpu).
//
// C is cut into tiles of `tile_rows` x `panel_columns` that live in registers. B is copied ("packed") into panels, panel[p][j], of
// `panel_columns` columns and at most `matmul_depth` steps of k; A into panels a[p][i] of `tile_rows` rows, so that the tile reads two
// streams of memory from end to end. Values are widened to the accumulator type on the way.
// Each element of C is, within a block of k, one chain of multiply-adds in ascending k that starts at zero; the blocks' sums are then added
// in ascending order. Blocks depend on k alone, so the bits of an element depend on its row of A, its column of B and k, and on nothing else.
#pragma once
#include <cstdint>

#include "runtime/dtype.h"
#include "runtime/rank.h"

namespace quire {

/// Most steps of k in one block: a panel of B then takes at most 32 KiB, so that it stays in the first level cache.
constexpr int64_t matmul_depth = 256;

/// Rows of A in the accumulator type: row r of tile t at step p is data[t * tile + r * row + p * step].
struct MatmulRows {
  const void* data;
  int64_t tile, row, step;
};

/// The register tiles.
struct MatmulTiles {
  int64_t tile_rows, panel_columns;
  bool reads_in_place;  ///< rows of A that are contiguous in k are better read where they lie than packed

  /// c[rows, columns] (A) = or += rows of A times one panel. Meanwhile `next`, a panel of the same size (or null), is fetched.
  void (*multiply)(const MatmulRows& a, const void* panel, const void* next, int64_t depth, int64_t rows, int64_t columns, void* c, int64_t c_row, bool add);

  /// c[rows, columns] (bf16) = round(sum) or round(c + sum). Only for bf16, else null.
  void (*round)(const float* sum, int64_t sum_row, int64_t rows, int64_t columns, void* c, int64_t c_row, bool add);
};

/// Copies into the layouts that the tiles read.
struct MatmulPacking {
  /// Packs `columns` columns and `depth` steps of b (T) into 64-byte aligned panels (A) of depth * panel_columns elements each, one after the
  /// other; what the last one holds right of the columns does not matter.
  void (*pack_b)(const void* b, int64_t b_row, int64_t b_col, int64_t depth, int64_t columns, void* panels);

  /// Copies `rows` rows and `depth` steps of a (T) into `out` (A), which holds `packed_rows_size(rows, ...)` elements. `readable` >= rows says how many
  /// rows the matrix has from here on.
  MatmulRows (*pack_a)(const void* a, int64_t a_row, int64_t a_col, int64_t rows, int64_t readable, int64_t depth, void* out);
};

/// Elements that `pack_a` may write for `rows` rows.
constexpr int64_t packed_rows_size(int64_t rows, int64_t tile_rows) {
  return (rows + tile_rows) * (matmul_depth + 32);
}

/// The parts for storage type `type` (f64, f32 or bf16) in the rank's instruction set.
MatmulTiles matmul_tiles(const Rank& rank, DType type);
MatmulPacking matmul_packing(const Rank& rank, DType type);

/// The kernels themselves; `matmul_can_run` says whether types are ones that both take.
struct MatmulArgs;
bool matmul_can_run(const MatmulArgs& args);
void matmul_packed(Rank& rank, const MatmulArgs& args);
void matmul_reference(Rank& rank, const MatmulArgs& args);

}  // namespace quire
