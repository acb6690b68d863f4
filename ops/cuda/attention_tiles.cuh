// What attention's kernels share: the tokens of a tile, the mask, the search for tiles that meet, and tiles of bf16 in shared memory.
#pragma once
#include <gpu.h>

#include "ops/cuda/attention_calls.h"

namespace quire::attention {

constexpr int tile = static_cast<int>(boundary_tile);
constexpr uint32_t all_lanes = 0xffffffffu;

/// A token as the mask sees it: its index in the microbatch and its document's start, -1 in no document.
struct Token { int32_t global, start; };

__device__ inline Token token_at(const BoundaryTable& table, int32_t index, int32_t tokens) {
  return index < tokens ? Token{table.global[index], table.start[index]} : Token{-1, -1};
}

/// The mask. A query in no document reads no key.
struct Mask {
  int32_t window;
  bool strict;  ///< planted: no query reads its own key
  __device__ explicit Mask(int32_t reach) : window(reach), strict(gpu::planted("attention.mask_off_by_one")) {}
  __device__ bool reads(const Token& query, const Token& key) const {
    return query.start >= 0 && key.start == query.start && key.global <= query.global - (strict ? 1 : 0) && (window == 0 || key.global > query.global - window);
  }
};

/// The tokens of some rows of a tile together: their document where it is one (else -1), and their least and largest index. Rows in no document do not
/// count for queries; among keys they make documents differ.
struct Span {
  int32_t start, first, last;
};

/// Of the tokens that lanes hold; all lanes of a warp call it and get the same.
__device__ inline Span span_of(const Token& token, bool skip_missing) {
  const bool missing = token.start < 0;
  int32_t least = missing && skip_missing ? 0x7fffffff : token.start, most = token.start;
  int32_t first = missing ? 0x7fffffff : token.global, last = token.global;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    least = min(least, __shfl_xor_sync(all_lanes, least, step));
    most = max(most, __shfl_xor_sync(all_lanes, most, step));
    first = min(first, __shfl_xor_sync(all_lanes, first, step));
    last = max(last, __shfl_xor_sync(all_lanes, last, step));
  }
  return {least == most ? most : -1, first, last};
}

/// Whether each of the queries reads this key, so that nothing needs to be masked.
__device__ inline bool all_read(const Span& queries, const Token& key, const Mask& mask) {
  return queries.start >= 0 && mask.reads({queries.first, queries.start}, key) && mask.reads({queries.last, queries.start}, key);
}
/// Whether this query reads each of the keys, or takes no part at all.
__device__ inline bool reads_all(const Token& query, const Span& keys, const Mask& mask) {
  return query.start < 0 || (keys.start >= 0 && mask.reads(query, {keys.first, keys.start}) && mask.reads(query, {keys.last, keys.start}));
}

constexpr float base2 = 1.44269504088896340736f;  ///< base-2 logarithms per natural one

/// A query token with what backward needs of one head's row; log-sum-exp times `base`, +infinity where the row contributes nothing.
struct Query {
  Token token;
  float lse, delta;
};
__device__ inline Query query_at(const Backward& p, int32_t index, int32_t head, float base) {
  Query query{token_at(p.sizes.queries, index, p.sizes.query_tokens), INFINITY, 0};
  if (query.token.start < 0) return query;
  const float lse = p.lse[int64_t{index} * p.sizes.heads + head];
  if (lse == -INFINITY) return query;
  query.lse = lse * base;
  query.delta = p.delta[int64_t{index} * p.sizes.heads + head];
  return query;
}

/// The tiles that meet a block's own tile, in ascending order: summaries are looked at 32 at a time. Where they ascend, only around those that meet.
/// All lanes of a warp call it together; all warps get the same.
class TileSearch {
 public:
  /// `keys`: whether the tiles are of keys and the own tile of queries, or the other way round.
  __device__ TileSearch(const TileBoundaries* tiles, int32_t count, bool ascend, const TileBoundaries& own, bool keys, int32_t window)
      : tiles_(tiles), own_(own), count_(count), window_(window), first_(-32), keys_(keys), ascend_(ascend) {
    if (ascend) skip();
  }
  /// The next one, -1 where there is none.
  __device__ int32_t next() {
    while (met_ == 0) {
      first_ += 32;
      if (first_ >= count_) {
        first_ = count_;
        return -1;
      }
      const int32_t mine = first_ + static_cast<int32_t>(threadIdx.x % 32);
      const KeyTilePlace place = mine < count_ ? place_of(mine) : last_place();
      met_ = __ballot_sync(all_lanes, place == KeyTilePlace::meets);
      if (ascend_ && __any_sync(all_lanes, place == last_place())) count_ = first_;  // none follows these
    }
    const int bit = __ffs(static_cast<int>(met_)) - 1;
    met_ &= met_ - 1;
    return first_ + bit;
  }

 private:
  const TileBoundaries* tiles_;
  TileBoundaries own_;
  int32_t count_, window_, first_;
  uint32_t met_ = 0;
  bool keys_, ascend_;

  __device__ KeyTilePlace place_of(int32_t index) const { return keys_ ? key_tile_place(own_, tiles_[index], window_) : key_tile_place(tiles_[index], own_, window_); }
  /// What tiles are that come too early, and those that come too late.
  __device__ KeyTilePlace first_place() const { return keys_ ? KeyTilePlace::before : KeyTilePlace::after; }
  __device__ KeyTilePlace last_place() const { return keys_ ? KeyTilePlace::after : KeyTilePlace::before; }
  /// Moves to the first tile that is not too early: each round looks at 32 of those left.
  __device__ void skip() {
    int32_t begin = 0, end = count_;
    while (begin < end) {
      const int32_t step = (end - begin + 31) / 32, mine = begin + static_cast<int32_t>(threadIdx.x % 32) * step;
      const int early = __popc(__ballot_sync(all_lanes, mine < end && place_of(mine) == first_place()));
      if (early == 0) break;
      end = min(end, begin + early * step);
      begin += (early - 1) * step + 1;
    }
    first_ = begin - 32;
  }
};

// --- tiles of 64 rows of D bf16 in shared memory: 16-byte chunk c of row r lies at c ^ (r % 8), so that ldmatrix meets no bank twice.

template <int D> constexpr int tile_bytes = tile * D * 2;
template <int D> __device__ inline uint32_t chunk_at(uint32_t base, int row, int chunk) { return base + row * (D * 2) + ((chunk ^ (row & 7)) << 4); }

/// Starts to copy a tile of rows (stride in elements) to `base`. Rows in no document become zeros and are not read.
template <int D>
__device__ inline void start_tile(uint32_t base, const gpu::bf16* rows, int64_t stride, int32_t first, const BoundaryTable& table, int32_t tokens) {
  constexpr int chunks = D / 8;
  for (int i = threadIdx.x; i < tile * chunks; i += static_cast<int>(blockDim.x)) {
    const int row = i / chunks, chunk = i % chunks;
    const bool there = first + row < tokens && table.start[first + row] >= 0;
    gpu::cp_async16(chunk_at<D>(base, row, chunk), rows + (there ? first + row : 0) * stride + chunk * 8, there ? 16 : 0);
  }
}

/// 16 rows from `row` on and 16 columns from 8 * chunk on, as the left factor of mma.
template <int D> __device__ inline void load_left(uint32_t (&to)[4], uint32_t base, int row, int chunk, int lane) {
  gpu::ldmatrix_x4(to, chunk_at<D>(base, row + lane % 16, chunk + lane / 16));
}
/// The same transposed: 16 columns of the tile are rows of the factor.
template <int D> __device__ inline void load_left_transposed(uint32_t (&to)[4], uint32_t base, int row, int chunk, int lane) {
  gpu::ldmatrix_x4_trans(to, chunk_at<D>(base, row + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
}
/// 16 rows and 16 columns of the tile as right factors: its rows are the columns of two products of 8 ([0], [1] and [2], [3]).
template <int D> __device__ inline void load_right_transposed(uint32_t (&to)[4], uint32_t base, int row, int chunk, int lane) {
  gpu::ldmatrix_x4(to, chunk_at<D>(base, row + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
}
/// The same with rows as rows.
template <int D> __device__ inline void load_right(uint32_t (&to)[4], uint32_t base, int row, int chunk, int lane) {
  gpu::ldmatrix_x4_trans(to, chunk_at<D>(base, row + lane % 16, chunk + lane / 16));
}

/// scores += rows [row, row + 16) of `left` times 16 * N rows from `other` on of `right`, transposed.
template <int D, int N>
__device__ inline void multiply_transposed(float (&scores)[2 * N][4], uint32_t left, int row, uint32_t right, int other, int lane) {
  const bool wrong = gpu::planted("attention.wrong_fragment");
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t a[4];
    load_left<D>(a, left, row, k * 2, lane);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      uint32_t b[4];
      load_right_transposed<D>(b, right, other + n * 16, k * 2, lane);
      gpu::mma_16816(scores[2 * n], a, b[0], b[1]);
      gpu::mma_16816(scores[2 * n + 1], a, b[wrong ? 3 : 2], b[wrong ? 2 : 3]);
    }
  }
}

}  // namespace quire::attention
