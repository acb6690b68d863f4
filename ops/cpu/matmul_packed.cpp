// Cuts a matrix product into chunks for the rank's threads. Chunks follow from the shape, the instruction set and the
// number of threads; bits depend on none of them.
#include <algorithm>

#include "ops/cpu/matmul.h"
#include "ops/kernels.h"
#include "runtime/rank.h"

namespace quire {
namespace {

/// Elements and columns of B that are packed at once: 1 MiB of f32, which stays in the last level cache whoever else uses it.
constexpr int64_t slab_elements = 256 * 1024, slab_columns = 1024;
/// Steps of k that are multiplied at once where no panels are shared, and where sums that are not yet rounded would need memory of their own.
constexpr int64_t slab_depth = 2048;
/// Columns below which packing A once more for the next ones costs more than it saves.
constexpr int64_t least_slab_columns = 256;
/// Up to this many rows, packed rows are shared by the chunks of a slab that is one block of k deep, so that all of it stays near.
constexpr int64_t most_shared_rows = 1024;
/// Up to this many rows, reading and writing C once more costs less than panels of B that went to far memory and back.
constexpr int64_t few_rows = 256;
/// Rows of A that stay in the second level cache while they meet the panels of B, and most columns of one chunk.
constexpr int64_t block_rows = 96, block_columns = slab_columns;
/// Panels of B that one task packs: rows of B are then read in pieces of some cache lines.
constexpr int64_t packed_panels = 4;
/// Chunks wanted for each of several threads, where the matrix is large enough.
constexpr int64_t thread_chunks = 4;

constexpr int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

/// Rows and columns of one chunk of C.
struct ChunkShape {
  int64_t rows, columns;
};

/// One call of the kernel: its arguments, the parts for its type, and how it is cut.
struct Product {
  const MatmulArgs& args;
  const MatmulTiles tiles;
  const MatmulPacking packing;
  int64_t depth;           ///< steps of one block of k, from k alone
  int64_t storage_bytes, accumulator_bytes;
  bool read_in_place;      ///< A is read where it lies, not packed
  bool rounds;             ///< C is bf16: sums are kept in f32 elsewhere

  const char* a(int64_t row, int64_t step) const {
    return static_cast<const char*>(args.a) + (row * args.a_row + step * args.a_col) * storage_bytes;
  }
  const char* b(int64_t step, int64_t column) const {
    return static_cast<const char*>(args.b) + (step * args.b_row + column * args.b_col) * storage_bytes;
  }
  MatmulRows pack_a(int64_t row, int64_t row_end, int64_t step, int64_t steps, void* out) const {
    return packing.pack_a(a(row, step), args.a_row, args.a_col, row_end - row, args.m - row, steps, out);
  }
  char* c(int64_t row, int64_t column, int64_t element_bytes) const {
    return static_cast<char*>(args.c) + (row * args.c_row + column) * element_bytes;
  }
};

/// A part of the k and n axes that is packed at once, and where its sums go.
struct Slab {
  int64_t first_step, last_step, first_column, last_column;
  const char* panels;  ///< packed B, or null where each chunk packs its own (all rows in one chunk)
  std::span<const MatmulRows> rows;  ///< packed A by [chunk of rows][block of k], or empty where each chunk packs its own or reads it in place
  float* sums;         ///< [m, n] where C is rounded and k takes several slabs, else null
  int64_t steps() const { return last_step - first_step; }
  int64_t columns() const { return last_column - first_column; }
};

/// Scratch of one thread.
struct Scratch {
  char* rows;
  char* panel;
  float* sums;
};

int64_t block_depth(int64_t k) {
  const int64_t blocks = std::max<int64_t>(1, chunks_of(k, matmul_depth));
  return std::min(matmul_depth, round_up(chunks_of(k, blocks), 16));
}

ChunkShape chunk_shape(const Product& product, int64_t columns, int64_t threads) {
  const int64_t wanted_chunks = threads == 1 ? 1 : thread_chunks * threads;
  const int64_t tile_rows = product.tiles.tile_rows, panel = product.tiles.panel_columns, m = product.args.m;
  ChunkShape shape{round_up(block_rows, tile_rows), round_up(block_columns, panel)};
  const auto few = [&] { return chunks_of(m, shape.rows) * chunks_of(columns, shape.columns) < wanted_chunks; };
  const auto halve_columns = [&](int64_t least) {
    while (few() && shape.columns / 2 >= least) shape.columns = round_up(shape.columns / 2, panel);
  };
  if (m <= shape.rows) {
    halve_columns(product.read_in_place && product.args.b_row == 1 ? 2 * panel : 128);
    return shape;
  }
  // Narrow chunks would pack the same rows again and again, and low ones wait for each panel of B to come from memory.
  const bool rows_are_ready = product.read_in_place || m <= most_shared_rows;
  halve_columns(rows_are_ready ? 128 : 256);
  if (few()) shape.rows = round_up(block_rows / 2, tile_rows);
  if (rows_are_ready) halve_columns(64);
  return shape;
}

/// Where the packed panel of B for a block of k and some columns lies in the slab, in bytes.
int64_t panel_offset(const Product& product, const Slab& slab, int64_t step, int64_t depth, int64_t column) {
  const int64_t panel = product.tiles.panel_columns;
  return ((step - slab.first_step) * round_up(slab.columns(), panel) + (column - slab.first_column) * depth) * product.accumulator_bytes;
}

void pack_slab(Rank& rank, const Product& product, const Slab& slab, char* panels) {
  const int64_t width = packed_panels * product.tiles.panel_columns, across = chunks_of(slab.columns(), width);
  rank.pool().parallel_for(across * chunks_of(slab.steps(), product.depth), [&](int64_t chunk, int) {
    const int64_t step = slab.first_step + chunk / across * product.depth, column = slab.first_column + chunk % across * width;
    const int64_t depth = std::min(product.depth, slab.last_step - step);
    product.packing.pack_b(product.b(step, column), product.args.b_row, product.args.b_col, depth, std::min(width, slab.last_column - column),
                           panels + panel_offset(product, slab, step, depth, column));
  });
}

/// Packs A for chunks of `chunk_rows` rows into pieces of `piece_bytes`, where several chunks of columns will read them.
void pack_slab_rows(Rank& rank, const Product& product, const Slab& slab, int64_t chunk_rows, int64_t piece_bytes, char* out, std::span<MatmulRows> rows) {
  const int64_t blocks = chunks_of(slab.steps(), product.depth);
  rank.pool().parallel_for(static_cast<int64_t>(rows.size()), [&](int64_t piece, int) {
    const int64_t row = piece / blocks * chunk_rows, step = slab.first_step + piece % blocks * product.depth;
    rows[static_cast<size_t>(piece)] = product.pack_a(row, std::min(product.args.m, row + chunk_rows), step,
                                                      std::min(product.depth, slab.last_step - step), out + piece * piece_bytes);
  });
}

/// One chunk of C: rows [row, row_end), columns [column, column_end) over the slab's steps of k.
void multiply_chunk(const Product& product, const Slab& slab, const Scratch& scratch, std::span<const MatmulRows> packed_rows, int64_t row,
                    int64_t row_end, int64_t column, int64_t column_end) {
  const MatmulArgs& args = product.args;
  const MatmulTiles& tiles = product.tiles;
  const int64_t rows = row_end - row;
  char* sums = product.c(row, column, product.accumulator_bytes);
  int64_t sums_row = args.c_row;
  if (product.rounds) {
    sums_row = slab.sums ? args.n : round_up(column_end - column, tiles.panel_columns);
    sums = reinterpret_cast<char*>(slab.sums ? slab.sums + row * sums_row + column : scratch.sums);
  }
  for (int64_t step = slab.first_step; step < slab.last_step; step += product.depth) {
    const int64_t depth = std::min(product.depth, slab.last_step - step);
    const bool add = step > 0 || (args.accumulate && !product.rounds);
    const MatmulRows a = !packed_rows.empty()  ? packed_rows[static_cast<size_t>((step - slab.first_step) / product.depth)]
                         : product.read_in_place ? MatmulRows{product.a(row, step), tiles.tile_rows * args.a_row, args.a_row, 1}
                                                 : product.pack_a(row, row_end, step, depth, scratch.rows);
    for (int64_t j = column; j < column_end; j += tiles.panel_columns) {
      const int64_t columns = std::min(tiles.panel_columns, column_end - j);
      const char *panel = scratch.panel, *next = nullptr;
      if (slab.panels) {
        panel = slab.panels + panel_offset(product, slab, step, depth, j);
        if (j + tiles.panel_columns < column_end) next = panel + depth * tiles.panel_columns * product.accumulator_bytes;
        else if (step + 2 * depth <= slab.last_step) next = slab.panels + panel_offset(product, slab, step + depth, depth, column);
      } else {
        product.packing.pack_b(product.b(step, j), args.b_row, args.b_col, depth, columns, scratch.panel);
      }
      tiles.multiply(a, panel, next, depth, rows, columns, sums + (j - column) * product.accumulator_bytes, sums_row, add);
    }
  }
  if (product.rounds && slab.last_step == args.k)
    tiles.round(reinterpret_cast<const float*>(sums), sums_row, rows, column_end - column, product.c(row, column, 2), args.c_row, args.accumulate);
}

void multiply_slab(Rank& rank, const Product& product, const Slab& slab, const ChunkShape& shape, std::span<const Scratch> scratch) {
  const int64_t across = chunks_of(slab.columns(), shape.columns), down = chunks_of(product.args.m, shape.rows);
  const size_t pieces = slab.rows.size() / static_cast<size_t>(down);
  rank.pool().parallel_for(down * across, [&](int64_t chunk, int thread) {
    const int64_t row = chunk / across * shape.rows, column = slab.first_column + chunk % across * shape.columns;
    multiply_chunk(product, slab, scratch[static_cast<size_t>(thread)], slab.rows.subspan(static_cast<size_t>(chunk / across) * pieces, pieces), row,
                   std::min(product.args.m, row + shape.rows), column, std::min(slab.last_column, column + shape.columns));
  });
}

/// Few rows are not worth packing. Rows a multiple of a page apart would meet in the same cache sets.
bool reads_in_place(const MatmulArgs& args, const MatmulTiles& tiles) {
  if (args.type == DType::bf16 || args.a_col != 1) return false;
  return args.m <= tiles.tile_rows || (tiles.reads_in_place && args.a_row * size_of(args.type) % 4096 != 0);
}

/// Columns of a slab. Where C is rounded, slabs are rather narrow than shallow: sums of all of C would go to far memory and back.
int64_t columns_at_once(const Product& product) {
  const MatmulArgs& args = product.args;
  const int64_t panel = product.tiles.panel_columns;
  if (!product.rounds || args.m <= most_shared_rows) return std::min(args.n, round_up(slab_columns, panel));
  const int64_t fitting = slab_elements / std::min(round_up(args.k, product.depth), slab_depth);
  return std::min(args.n, std::clamp(fitting / panel * panel, least_slab_columns, slab_columns));
}

void clear(const MatmulArgs& args) {
  const int64_t bytes = size_of(args.c_type);
  for (int64_t i = 0; i < args.m; ++i)
    std::fill_n(static_cast<char*>(args.c) + i * args.c_row * bytes, args.n * bytes, char{0});
}

}  // namespace

bool matmul_can_run(const MatmulArgs& args) {
  const bool types = args.type == DType::bf16 ? args.c_type == DType::bf16 || args.c_type == DType::f32
                                              : (args.type == DType::f32 || args.type == DType::f64) && args.c_type == args.type;
  return types && args.m >= 0 && args.n >= 0 && args.k >= 0;
}

void matmul_packed(Rank& rank, const MatmulArgs& args) {
  rank.work().flops += 2 * args.m * args.n * args.k;
  if (args.m == 0 || args.n == 0) return;
  if (args.k == 0) return args.accumulate ? void() : clear(args);

  const int64_t accumulator_bytes = size_of(accumulator_of(args.type));
  const MatmulTiles tiles = matmul_tiles(rank, args.type);
  const Product product{args, tiles, matmul_packing(rank, args.type), block_depth(args.k), size_of(args.type), accumulator_bytes,
                        reads_in_place(args, tiles), args.c_type == DType::bf16};
  const int64_t panel = product.tiles.panel_columns;
  const int64_t columns = columns_at_once(product);
  const ChunkShape shape = chunk_shape(product, columns, rank.pool().threads());
  const int64_t down = chunks_of(args.m, shape.rows), across = chunks_of(columns, shape.columns);
  const bool share_panels = down > 1;
  const bool share_rows = !product.read_in_place && across > 1 && args.m <= most_shared_rows;
  const bool shallow = share_panels && (share_rows || args.m <= few_rows);
  const int64_t most_steps = shallow ? product.depth : share_panels && !product.rounds ? slab_elements / columns : slab_depth;
  const int64_t steps = std::min(std::max<int64_t>(1, most_steps / product.depth) * product.depth, args.k);
  const int64_t piece_bytes = packed_rows_size(std::min(args.m, shape.rows), product.tiles.tile_rows) * accumulator_bytes;

  Workspace workspace(rank.stack());
  char* panels = share_panels ? workspace.take<char>(steps * round_up(columns, panel) * accumulator_bytes) : nullptr;
  std::vector<MatmulRows> rows(static_cast<size_t>(share_rows ? down * chunks_of(steps, product.depth) : 0));
  char* packed_rows = share_rows ? workspace.take<char>(static_cast<int64_t>(rows.size()) * piece_bytes) : nullptr;
  float* sums = product.rounds && args.k > steps ? workspace.take<float>(args.m * args.n) : nullptr;
  std::vector<Scratch> scratch(static_cast<size_t>(rank.pool().threads()));
  for (Scratch& each : scratch) {
    each.rows = product.read_in_place || share_rows ? nullptr : workspace.take<char>(piece_bytes);
    each.panel = share_panels ? nullptr : workspace.take<char>(matmul_depth * panel * accumulator_bytes);
    each.sums = product.rounds && !sums ? workspace.take<float>(shape.rows * shape.columns) : nullptr;
  }
  for (int64_t step = 0; step < args.k; step += steps) {
    Slab slab{step, std::min(args.k, step + steps), 0, 0, panels, {}, sums};
    const std::span<MatmulRows> slab_rows = std::span(rows).first(static_cast<size_t>(share_rows ? down * chunks_of(slab.steps(), product.depth) : 0));
    if (share_rows) pack_slab_rows(rank, product, slab, shape.rows, piece_bytes, packed_rows, slab_rows);
    slab.rows = slab_rows;
    for (int64_t column = 0; column < args.n; column += columns) {
      slab.first_column = column;
      slab.last_column = std::min(args.n, column + columns);
      if (share_panels) pack_slab(rank, product, slab, panels);
      multiply_slab(rank, product, slab, shape, scratch);
    }
  }
}

template <>
KernelList<MatmulArgs> cpu_kernels<MatmulArgs>() {
  static constexpr Kernel<MatmulArgs> list[] = {{"packed", matmul_can_run, matmul_packed}, {"reference", matmul_can_run, matmul_reference}};
  return list;
}

}  // namespace quire
