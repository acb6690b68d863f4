// How attention's work is cut on the CPU: documents made of pieces, their keys packed in tiles, units of work for the threads.
// Everything here depends on the runs alone, never on the number of threads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include "ops/kernels.h"
#include "runtime/memory.h"
#include "runtime/rank.h"
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

/// A unit of work: queries [begin, end) of one document, or all queries of several small documents, for all heads of one key/value head.
struct AttentionUnit {
  int32_t document, documents;
  int64_t kv_head, begin, end;
};

/// Tiles are aligned on the document's first key. Keys in a tile (columns of scores), and rows handled together: a row is a query of one head. Heads that
/// share a key/value head share tiles, token by token, so that short documents fill them and few pairs above the diagonal are computed.
template <class A> constexpr int64_t attention_tile_keys = 256 / static_cast<int64_t>(sizeof(A));
constexpr int64_t attention_tile_rows = 96;
/// Rows that go through registers together: groups of a tile. (Fewer in the last one.)
constexpr int64_t attention_group_rows = 6, attention_row_groups = attention_tile_rows / attention_group_rows;
/// Most heads of a tile.
constexpr int64_t attention_tile_heads = 16;
/// Keys of one block of the backward kernel: what is packed of them is about the second-level cache's size, and queries are packed again for each block.
template <class A> constexpr int64_t attention_block_keys = 6 * attention_tile_keys<A>;
/// Documents with more keys than this have them packed once in shared memory, and their queries are cut into several units.
constexpr int64_t attention_shared_keys = 512;
constexpr int64_t attention_unit_rows = 8 * attention_tile_rows;
/// Documents of at most so many queries share a unit.
constexpr int64_t attention_batch_queries = 48;
/// Backward, queries of long documents are cut into at most this many parts, none below this size. Each part but the first has its own sums of
/// dk and dv, which are added in order at the end.
constexpr int64_t attention_parts = 4, attention_least_part = 960;
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

/// Units of the forward pass: small documents together, large ones cut by queries.
std::span<const AttentionUnit> forward_units(Workspace& workspace, const AttentionPlan& plan, int64_t heads, int64_t kv_heads);
/// Units of the backward pass: small documents together, large ones cut in their parts, per key/value head.
std::span<const AttentionUnit> backward_units(Workspace& workspace, const AttentionPlan& plan, int64_t kv_heads);

/// Number of the document's keys at hand whose global index is below `global`.
int64_t keys_before(const AttentionDocument& document, int64_t global);

/// Key positions [first, last); first >= last where there are none.
struct KeyRange { int64_t first, last; };

/// The key positions outside of which no query in rows [begin, end) reads.
KeyRange key_range(const AttentionDocument& document, int64_t begin, int64_t end, int64_t window);

/// Local and global indices of the `count` tokens at positions from `begin` on.
void locate(std::span<const AttentionPiece> pieces, int64_t begin, int64_t count, int32_t* local, int32_t* global);

/// The rows of a tile, token by token: where their queries lie, their heads, and the key positions [first, last) that each reads.
struct AttentionRows {
  int64_t count, heads;
  int32_t local[attention_tile_rows], head[attention_tile_rows];
  int64_t first[attention_tile_rows], last[attention_tile_rows];
  KeyRange groups[attention_row_groups];  ///< what rows of a group read together
  KeyRange all;                           ///< what all rows read together
  /// Pairs of the rows with keys at positions [begin, end).
  int64_t pairs(int64_t begin, int64_t end) const;
};
/// Queries [begin, begin + count) for heads [head, head + heads).
AttentionRows attention_rows(const AttentionDocument& document, int64_t begin, int64_t count, int64_t head, int64_t heads, int64_t window);

/// Queries of each tile where `count` queries of `heads` heads are divided evenly: whole groups of 6 rows, so that only the last tile has less.
int64_t tile_queries(int64_t count, int64_t heads);

/// Calls `run(rows)` for the tiles of queries [begin, end) of `document` and heads [first, first + group).
template <class Run>
void for_each_tile(const AttentionDocument& document, int64_t begin, int64_t end, int64_t first, int64_t group, int64_t window, const Run& run) {
  for (int64_t head = 0; head < group; head += attention_tile_heads) {
    const int64_t heads = std::min(attention_tile_heads, group - head), each = tile_queries(end - begin, heads);
    for (int64_t at = begin; at < end; at += each) run(attention_rows(document, at, std::min(each, end - at), first + head, heads, window));
  }
}

/// Elements of A that tiles of one key/value head take in the forward pass: keys transposed, values by row.
template <class A> constexpr int64_t forward_tile_memory(int64_t head_dim) {
  return attention_transposed_tile<A>(head_dim) + attention_row_tile<A>(head_dim);
}
/// Elements of A that one thread needs, as the kernels divide them.
template <class A> int64_t forward_scratch(const AttentionPlan& plan, int64_t head_dim) {
  return chunks_of(plan.longest_private, attention_tile_keys<A>) * forward_tile_memory<A>(head_dim) +
         attention_tile_rows * (2 * attention_padded<A>(head_dim) + attention_tile_stride<A>);
}
template <class A> int64_t backward_scratch(int64_t head_dim) {
  constexpr int64_t tiles = attention_block_keys<A> / attention_tile_keys<A>;
  return tiles * (2 * attention_transposed_tile<A>(head_dim) + 3 * attention_row_tile<A>(head_dim)) +
         attention_tile_rows * (3 * attention_padded<A>(head_dim) + 2 * attention_tile_stride<A>);
}

}  // namespace quire
