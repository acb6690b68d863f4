// Attention backward in bf16 with tensor cores: scores are computed again from the log-sum-exp (FlashAttention-2; Dao, 2023). One kernel gives a block 64
// keys and all queries that read them, another gives it 64 queries and all keys that they read: no sum is shared between blocks, so none needs an order.
#include "ops/cuda/attention_calls.h"
#include "ops/cuda/attention_tiles.cuh"

namespace quire::attention {
namespace {

constexpr int key_threads = 256, query_threads = 128;

__device__ inline void put_pair(float* to, float low, float high, bool overwrite) {
  float2* const pair = reinterpret_cast<float2*>(to);
  const float2 before = overwrite ? float2{0, 0} : *pair;
  *pair = overwrite ? float2{low, high} : float2{before.x + low, before.y + high};
}

/// Scores become probabilities, and gradients of probabilities become those of scores (without the scale, which comes last).
__device__ inline void differentiate(float& score, float& gradient, const Query& query, bool reads, float scale2) {
  score = reads ? exp2f(score * scale2 - query.lse) : 0.0f;
  gradient = score * (gradient - query.delta);
}

/// Rows of 64 bf16: probabilities and score gradients, [query, key].
__device__ inline void put_scores(unsigned char* to, const float (&s)[4][4], int row, int column, int lane) {
#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t place = chunk_at<tile>(0, row + lane / 4 + 8 * i, column / 8 + n) + lane % 4 * 4;
      *reinterpret_cast<uint32_t*>(to + place) = gpu::pack_bf16(s[n][2 * i], s[n][2 * i + 1]);
    }
}

/// sums += columns [16 m, 16 m + 16) of the scores, transposed, times columns [8 chunk, 8 chunk + 8 N) of `right`.
template <int D, int N>
__device__ inline void multiply_scores(float (&sums)[N][4], uint32_t scores, int m, uint32_t right, int chunk, int lane) {
#pragma unroll
  for (int k = 0; k < tile / 16; ++k) {
    uint32_t a[4];
    load_left_transposed<tile>(a, scores, k * 16, m * 2, lane);
#pragma unroll
    for (int n = 0; n < N / 2; ++n) {
      uint32_t b[4];
      load_right<D>(b, right, k * 16, chunk + n * 2, lane);
      gpu::mma_16816(sums[2 * n], a, b[0], b[1]);
      gpu::mma_16816(sums[2 * n + 1], a, b[2], b[3]);
    }
  }
}

/// Rows of queries of two tiles; then tiles: probabilities, score gradients, keys, values, two of queries and two of output gradients.
template <int D> constexpr int key_shared = 2 * tile * static_cast<int>(sizeof(Query)) + 2 * tile_bytes<tile> + 6 * tile_bytes<D>;

/// dk and dv of 64 keys of one key/value head: over the query tiles that meet them, ascending, and for each over the heads of the group. Of scores a warp
/// has 16 queries and 32 keys; of sums 16 keys and half of the columns.
template <int D>
__global__ void __launch_bounds__(key_threads) backward_keys(const Backward p) {
  DYNAMIC_SMEM(shared);
  const Sizes& z = p.sizes;
  const gpu::bf16 *const q = static_cast<const gpu::bf16*>(p.q), *const k = static_cast<const gpu::bf16*>(p.k), *const v = static_cast<const gpu::bf16*>(p.v),
                  *const dout = static_cast<const gpu::bf16*>(p.dout);
  const float scale2 = p.scale * base2;
  Query* const query_rows = reinterpret_cast<Query*>(shared);
  unsigned char* const written = shared + 2 * tile * sizeof(Query);
  const uint32_t probabilities = gpu::smem_addr(written), gradients = probabilities + tile_bytes<tile>, keys = gradients + tile_bytes<tile>;
  const uint32_t values = keys + tile_bytes<D>, queries = values + tile_bytes<D>, douts = queries + 2 * tile_bytes<D>;

  const int32_t kv_heads = z.heads / z.group, kv_head = static_cast<int32_t>(blockIdx.x) % kv_heads, key_tile = static_cast<int32_t>(blockIdx.x) / kv_heads;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp % 4, half = warp / 4;
  const Mask mask(z.window);
  const Span span = span_of(token_at(z.keys, key_tile * tile + half * 32 + lane, z.key_tokens), false);
  Token key[4][2];
#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) key[n][c] = token_at(z.keys, key_tile * tile + half * 32 + n * 8 + lane % 4 * 2 + c, z.key_tokens);

  const auto start = [&](int32_t query_tile, int32_t head, int buffer) {
    start_tile<D>(queries + buffer * tile_bytes<D>, q + head * D, p.q_row, query_tile * tile, z.queries, z.query_tokens);
    start_tile<D>(douts + buffer * tile_bytes<D>, dout + head * D, p.dout_row, query_tile * tile, z.queries, z.query_tokens);
    if (threadIdx.x < tile) query_rows[buffer * tile + threadIdx.x] = query_at(p, query_tile * tile + static_cast<int32_t>(threadIdx.x), head, base2);
    gpu::cp_async_commit();
  };

  TileSearch search(z.queries.tiles, z.query_tiles, z.queries_ascend, z.keys.tiles[key_tile], false, z.window);
  float dk[D / 16][4] = {}, dv[D / 16][4] = {};
  int32_t query_tile = search.next(), member = 0;
  if (query_tile >= 0) {
    start_tile<D>(keys, k + kv_head * D, p.k_row, key_tile * tile, z.keys, z.key_tokens);
    start_tile<D>(values, v + kv_head * D, p.v_row, key_tile * tile, z.keys, z.key_tokens);
    start(query_tile, kv_head * z.group, 0);
  }
  for (int buffer = 0; query_tile >= 0; buffer ^= 1) {
    if (++member == z.group) {
      member = 0;
      query_tile = search.next();
    }
    if (query_tile >= 0) {
      start(query_tile, kv_head * z.group + member, buffer ^ 1);
      gpu::cp_async_wait<1>();
    } else {
      gpu::cp_async_wait<0>();
    }
    __syncthreads();  // the tiles are here for every thread

    const Query* const these = query_rows + buffer * tile + part * 16;
    const uint32_t these_queries = queries + buffer * tile_bytes<D>, these_douts = douts + buffer * tile_bytes<D>;
    const bool plain = __all_sync(all_lanes, reads_all(these[lane % 16].token, span, mask));
    float s[4][4] = {}, ds[4][4] = {};
    multiply_transposed<D, 2>(s, these_queries, part * 16, keys, half * 32, lane);
    multiply_transposed<D, 2>(ds, these_douts, part * 16, values, half * 32, lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Query query = these[lane / 4 + 8 * i];
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) differentiate(s[n][2 * i + c], ds[n][2 * i + c], query, plain || mask.reads(query.token, key[n][c]), scale2);
    }
    put_scores(written, s, part * 16, half * 32, lane);
    put_scores(written + tile_bytes<tile>, ds, part * 16, half * 32, lane);
    __syncthreads();  // all scores are there
    multiply_scores<D, D / 16>(dv, probabilities, part, these_douts, half * (D / 16), lane);
    multiply_scores<D, D / 16>(dk, gradients, part, these_queries, half * (D / 16), lane);
    __syncthreads();  // all are done with the scores and with this buffer
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t row = key_tile * tile + part * 16 + lane / 4 + 8 * i;
    if (token_at(z.keys, row, z.key_tokens).start < 0) continue;
    const int64_t column = kv_head * D + half * (D / 2) + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      put_pair(p.dk + row * p.dk_row + column + n * 8, dk[n][2 * i] * p.scale, dk[n][2 * i + 1] * p.scale, p.overwrite);
      put_pair(p.dv + row * p.dv_row + column + n * 8, dv[n][2 * i], dv[n][2 * i + 1], p.overwrite);
    }
  }
}

/// Tokens of two key tiles; then tiles: queries, output gradients, two of keys and two of values.
template <int D> constexpr int query_shared = 2 * tile * static_cast<int>(sizeof(Token)) + 6 * tile_bytes<D>;

/// dq of 64 queries of one head, over the key tiles that meet them, ascending; a warp has 16 queries.
template <int D>
__global__ void __launch_bounds__(query_threads) backward_queries(const Backward p) {
  DYNAMIC_SMEM(shared);
  const Sizes& z = p.sizes;
  const gpu::bf16 *const q = static_cast<const gpu::bf16*>(p.q), *const k = static_cast<const gpu::bf16*>(p.k), *const v = static_cast<const gpu::bf16*>(p.v),
                  *const dout = static_cast<const gpu::bf16*>(p.dout);
  const float scale2 = p.scale * base2;
  Token* const key_tokens = reinterpret_cast<Token*>(shared);
  const uint32_t queries = gpu::smem_addr(shared) + 2 * tile * sizeof(Token), douts = queries + tile_bytes<D>, keys = douts + tile_bytes<D>, values = keys + 2 * tile_bytes<D>;

  const int32_t head = static_cast<int32_t>(blockIdx.x) % z.heads, kv_head = head / z.group, query_tile = z.query_tiles - 1 - static_cast<int32_t>(blockIdx.x) / z.heads;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t first_row = query_tile * tile + warp * 16, row[2] = {first_row + lane / 4, first_row + lane / 4 + 8};
  const Query query[2] = {query_at(p, row[0], head, base2), query_at(p, row[1], head, base2)};
  const Span span = span_of(token_at(z.queries, first_row + lane % 16, z.query_tokens), true);
  const Mask mask(z.window);

  const auto start = [&](int32_t key_tile, int buffer) {
    start_tile<D>(keys + buffer * tile_bytes<D>, k + kv_head * D, p.k_row, key_tile * tile, z.keys, z.key_tokens);
    start_tile<D>(values + buffer * tile_bytes<D>, v + kv_head * D, p.v_row, key_tile * tile, z.keys, z.key_tokens);
    if (threadIdx.x < tile) key_tokens[buffer * tile + threadIdx.x] = token_at(z.keys, key_tile * tile + static_cast<int32_t>(threadIdx.x), z.key_tokens);
    gpu::cp_async_commit();
  };

  TileSearch search(z.keys.tiles, z.key_tiles, z.keys_ascend, z.queries.tiles[query_tile], true, z.window);
  float dq[D / 8][4] = {};
  int32_t key_tile = search.next();
  if (key_tile >= 0) {
    start_tile<D>(queries, q + head * D, p.q_row, query_tile * tile, z.queries, z.query_tokens);
    start_tile<D>(douts, dout + head * D, p.dout_row, query_tile * tile, z.queries, z.query_tokens);
    start(key_tile, 0);
  }
  for (int buffer = 0; key_tile >= 0; buffer ^= 1) {
    key_tile = search.next();
    if (key_tile >= 0) {
      start(key_tile, buffer ^ 1);
      gpu::cp_async_wait<1>();
    } else {
      gpu::cp_async_wait<0>();
    }
    __syncthreads();

    const Token* const these = key_tokens + buffer * tile;
    const uint32_t these_keys = keys + buffer * tile_bytes<D>;
    const bool plain = __all_sync(all_lanes, all_read(span, these[lane], mask) && all_read(span, these[lane + 32], mask));
    float s[tile / 8][4] = {}, ds[tile / 8][4] = {};
    multiply_transposed<D, tile / 16>(s, queries, warp * 16, these_keys, 0, lane);
    multiply_transposed<D, tile / 16>(ds, douts, warp * 16, values + buffer * tile_bytes<D>, 0, lane);
#pragma unroll
    for (int n = 0; n < tile / 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const Token key = plain ? Token{0, 0} : these[n * 8 + lane % 4 * 2 + c];
#pragma unroll
        for (int i = 0; i < 2; ++i) differentiate(s[n][2 * i + c], ds[n][2 * i + c], query[i], plain || mask.reads(query[i].token, key), scale2);
      }
#pragma unroll
    for (int m = 0; m < tile / 16; ++m) {
      const uint32_t a[4] = {gpu::pack_bf16(ds[2 * m][0], ds[2 * m][1]), gpu::pack_bf16(ds[2 * m][2], ds[2 * m][3]), gpu::pack_bf16(ds[2 * m + 1][0], ds[2 * m + 1][1]),
                             gpu::pack_bf16(ds[2 * m + 1][2], ds[2 * m + 1][3])};
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        uint32_t b[4];
        load_right<D>(b, these_keys, m * 16, n * 2, lane);
        gpu::mma_16816(dq[2 * n], a, b[0], b[1]);
        gpu::mma_16816(dq[2 * n + 1], a, b[2], b[3]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (query[i].token.start < 0) continue;
    float* const to = p.dq + row[i] * p.dq_row + head * D + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) put_pair(to + n * 8, dq[n][2 * i] * p.scale, dq[n][2 * i + 1] * p.scale, p.overwrite);
  }
}

template <int D>
void launch(const Backward& call, cudaStream_t stream) {
  const Sizes& z = call.sizes;
  const auto key_blocks = static_cast<unsigned>(int64_t{z.key_tiles} * z.heads / z.group), query_blocks = static_cast<unsigned>(int64_t{z.query_tiles} * z.heads);
  if (key_blocks > 0) gpu::launch(backward_keys<D>, dim3(key_blocks), dim3(key_threads), static_cast<size_t>(key_shared<D>), stream, call);
  if (query_blocks > 0) gpu::launch(backward_queries<D>, dim3(query_blocks), dim3(query_threads), static_cast<size_t>(query_shared<D>), stream, call);
}

}  // namespace

void tensor_core_backward(const Backward& call, cudaStream_t stream) {
  if (call.sizes.head_dim == 64) launch<64>(call, stream);
  else launch<128>(call, stream);
}

}  // namespace quire::attention
