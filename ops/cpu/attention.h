// How attention's work is cut on the CPU: documents made of pieces, their keys packed in tiles, units of work for the threads.
// Everything here depends on the runs alone, never on the number of threads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include "ops/kernels.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace quire {

/// A run seen from its document: the tokens [offset, offset + length) of the document's queries (or keys) in ascending global order.
struct AttentionPiece {
  int32_t local, global, length;
  int64_t offset;
};

/// All queries and all keys of one document that are at hand, each in ascending global order. `queries` is never empty; `keys` may be.
/// Positions below are places in these lists: since both ascend, every query reads one contiguous range of key positions.
struct AttentionDocument {
  std::span<const AttentionPiece> queries, keys;
  int64_t query_count, key_count;
  int32_t start;
  int64_t shared_tile;   ///< first tile in memory shared by all threads where keys are packed once, -1 where each unit packs its own
  int64_t partial_keys;  ///< backward: place of its first key in the partial sums of dk and dv, [parts - 1, key_count] for this document
  int64_t part_queries;  ///< backward: queries of one part; a document of one part has no partial sums
  int64_t parts() const { return chunks_of(query_count, part_queries); }
};

/// The documents that have queries, most pairs first (equal ones in order of their start).
struct AttentionPlan {
  std::span<AttentionDocument> documents;
  int64_t shared_tiles = 0;   ///< tiles of keys packed in shared memory (forward)
  int64_t longest_private = 0;  ///< most keys among documents that each unit packs by itself
  int64_t partial_keys = 0;  ///< rows of partial sums (backward)
};

/// A unit of work: queries [row_begin, row_end) of one document, or all queries of several small documents, for heads [head_begin, head_end)
/// of one key/value head.
struct AttentionUnit {
  int32_t document, documents;
  int64_t kv_head, head_begin, head_end;
  int64_t row_begin, row_end;
};

/// Tiles are aligned on the document's first key. Keys in a tile (columns of scores), and queries handled together.
template <class A> constexpr int64_t attention_tile_keys = 256 / static_cast<int64_t>(sizeof(A));
constexpr int64_t attention_tile_queries = 48;
/// Keys of one block of the backward kernel: what is packed of them fits the second-level cache.
template <class A> constexpr int64_t attention_block_keys = 4 * attention_tile_keys<A>;
/// Documents with more keys than this have them packed once in shared memory, and their queries are cut into several units.
constexpr int64_t attention_shared_keys = 512;
constexpr int64_t attention_unit_queries = 8 * attention_tile_queries;
/// Backward, queries of long documents are cut into at most this many parts, none below this size. Each part but the first has its own sums of
/// dk and dv, which are added in order at the end.
constexpr int64_t attention_parts = 4, attention_least_part = 20 * attention_tile_queries;
/// Largest head size of the block kernels.
constexpr int64_t attention_largest_head = 256;

/// Elements between packed rows of `head_dim` values: whole vectors of the widest instruction set, an odd number of cache lines (so that columns
/// spread over all sets of the first-level cache).
template <class A> constexpr int64_t attention_padded(int64_t head_dim) {
  constexpr int64_t line = 64 / static_cast<int64_t>(sizeof(A));
  return (((head_dim + line - 1) / line) | 1) * line;
}
/// The same for rows of one tile's keys: scores, and transposed keys and values.
template <class A> constexpr int64_t attention_tile_stride = attention_padded<A>(attention_tile_keys<A>);
/// Elements of one tile of keys, transposed and by row.
template <class A> constexpr int64_t attention_transposed_tile(int64_t head_dim) { return head_dim * attention_tile_stride<A>; }
template <class A> constexpr int64_t attention_row_tile(int64_t head_dim) { return attention_tile_keys<A> * attention_padded<A>(head_dim); }

/// Groups runs by document. Runs of length zero are ignored. `tile_keys` is the size of a tile.
AttentionPlan plan_attention(Workspace& workspace, std::span<const DocumentRun> query_runs, std::span<const DocumentRun> key_runs,
                             int64_t tile_keys);

/// Units of the forward pass: small documents together, large ones cut by query head and by rows.
std::span<const AttentionUnit> forward_units(Workspace& workspace, const AttentionPlan& plan, int64_t heads, int64_t kv_heads);
/// Units of the backward pass: small documents together, large ones cut in their parts, per key/value head.
std::span<const AttentionUnit> backward_units(Workspace& workspace, const AttentionPlan& plan, int64_t heads, int64_t kv_heads);

/// Number of the document's keys at hand whose global index is below `global`.
int64_t keys_before(const AttentionDocument& document, int64_t global);

/// The key positions [first, last) outside of which no query in rows [begin, end) reads.
struct KeyRange { int64_t first, last; };
KeyRange key_range(const AttentionDocument& document, int64_t begin, int64_t end, int64_t window);

/// Local and global indices of the `count` tokens at positions from `begin` on.
void locate(std::span<const AttentionPiece> pieces, int64_t begin, int64_t count, int32_t* local, int32_t* global);

/// The queries of a tile: where they lie, and the key positions [first, last) that each reads.
struct AttentionRows {
  int64_t count;
  int32_t local[attention_tile_queries], global[attention_tile_queries];
  int64_t first[attention_tile_queries], last[attention_tile_queries];
  /// The union of the ranges of rows [begin, end); first >= last where none reads a key.
  void range(int64_t begin, int64_t end, int64_t& union_first, int64_t& union_last) const;
  /// Pairs of the rows with keys at positions [begin, end).
  int64_t pairs(int64_t begin, int64_t end) const;
};
AttentionRows attention_rows(const AttentionDocument& document, int64_t begin, int64_t count, int64_t window);

/// Elements of A that tiles of one key/value head take in the forward pass: keys transposed, values by row.
template <class A> constexpr int64_t forward_tile_memory(int64_t head_dim) {
  return attention_transposed_tile<A>(head_dim) + attention_row_tile<A>(head_dim);
}
/// Elements of A that one thread needs, as the kernels divide them.
template <class A> int64_t forward_scratch(const AttentionPlan& plan, int64_t head_dim) {
  return chunks_of(plan.longest_private, attention_tile_keys<A>) * forward_tile_memory<A>(head_dim) +
         attention_tile_queries * (2 * attention_padded<A>(head_dim) + attention_tile_stride<A>);
}
template <class A> int64_t backward_scratch(int64_t head_dim) {
  constexpr int64_t tiles = attention_block_keys<A> / attention_tile_keys<A>;
  return tiles * (2 * attention_transposed_tile<A>(head_dim) + 3 * attention_row_tile<A>(head_dim)) +
         attention_tile_queries * (3 * attention_padded<A>(head_dim) + 2 * attention_tile_stride<A>);
}

}  // namespace quire
