// Attention forward in bf16 with tensor cores (mma.m16n8k16), in the manner of FlashAttention-2 (Dao, 2023): a block computes 64 queries of one head, a
// warp 16 of them; tiles of 64 keys come by asynchronous copies while the ones before are computed.
#include "ops/cuda/attention_calls.h"
#include "ops/cuda/attention_tiles.cuh"

namespace quire::attention {
namespace {

constexpr int forward_threads = 128;

/// Tokens of two key tiles, then a tile of queries and two of keys and values each.
template <int D> constexpr int forward_shared = 2 * tile * static_cast<int>(sizeof(Token)) + 5 * tile_bytes<D>;

/// A warp's 16 rows while tiles of keys go by; a thread holds rows g and g + 8 at columns 2t and 2t + 1 of each 8.
template <int D>
struct Rows {
  float out[D / 8][4] = {};
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

  /// Scores become probabilities relative to the rows' new largest scores.
  __device__ void softmax(float (&s)[tile / 8][4]) {
    float factor[2], base[2], part[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float now = most[i];
#pragma unroll
      for (int n = 0; n < tile / 8; ++n) now = fmaxf(now, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
      now = fmaxf(now, __shfl_xor_sync(all_lanes, now, 1));
      now = fmaxf(now, __shfl_xor_sync(all_lanes, now, 2));
      base[i] = now == -INFINITY ? 0.0f : now;  // no key so far: exp2(-inf - 0) is 0
      factor[i] = exp2f(most[i] - base[i]);
      most[i] = now;
    }
#pragma unroll
    for (int n = 0; n < tile / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[n][e] = exp2f(s[n][e] - base[e >> 1]);
        part[e >> 1] += s[n][e];
      }
#pragma unroll
    for (int i = 0; i < 2; ++i) sum[i] = sum[i] * factor[i] + part[i];
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[n][e] *= factor[e >> 1];
  }

  /// Adds the values weighted by probabilities, whose fragments as a product are those of a left factor.
  __device__ void add_values(const float (&s)[tile / 8][4], uint32_t values, int lane) {
#pragma unroll
    for (int k = 0; k < tile / 16; ++k) {
      const uint32_t p[4] = {gpu::pack_bf16(s[2 * k][0], s[2 * k][1]), gpu::pack_bf16(s[2 * k][2], s[2 * k][3]), gpu::pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]),
                             gpu::pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        uint32_t b[4];
        load_right<D>(b, values, k * 16, n * 2, lane);
        gpu::mma_16816(out[2 * n], p, b[0], b[1]);
        gpu::mma_16816(out[2 * n + 1], p, b[2], b[3]);
      }
    }
  }

  __device__ void write(const Forward& p, const int32_t (&row)[2], const Token (&token)[2], int head, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] += __shfl_xor_sync(all_lanes, sum[i], 1);
      sum[i] += __shfl_xor_sync(all_lanes, sum[i], 2);
      if (token[i].start < 0) continue;
      const bool none = sum[i] == 0;
      const float factor = none ? 0.0f : 1.0f / sum[i];
      const int64_t place = row[i] * p.out_row + head * D + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const float low = out[n][2 * i] * factor, high = out[n][2 * i + 1] * factor;
        if (p.out_f32) *reinterpret_cast<float2*>(static_cast<float*>(p.out) + place + n * 8) = float2{low, high};
        else *reinterpret_cast<uint32_t*>(static_cast<gpu::bf16*>(p.out) + place + n * 8) = gpu::pack_bf16(low, high);
      }
      if (lane % 4 == 0) p.lse[int64_t{row[i]} * p.sizes.heads + head] = none ? -INFINITY : (most[i] + log2f(sum[i])) / base2;
    }
  }
};

template <int D>
__global__ void __launch_bounds__(forward_threads) forward(const Forward p) {
  DYNAMIC_SMEM(shared);
  const Sizes& z = p.sizes;
  const gpu::bf16 *const q = static_cast<const gpu::bf16*>(p.q), *const k = static_cast<const gpu::bf16*>(p.k), *const v = static_cast<const gpu::bf16*>(p.v);
  const float scale2 = p.scale * base2;
  Token* const key_tokens = reinterpret_cast<Token*>(shared);
  const uint32_t queries = gpu::smem_addr(shared) + 2 * tile * sizeof(Token), keys = queries + tile_bytes<D>, values = keys + 2 * tile_bytes<D>;
  const bool no_barrier = gpu::planted("attention.missing_barrier");

  const int32_t head = static_cast<int32_t>(blockIdx.x) % z.heads, kv_head = head / z.group;
  const int32_t query_tile = z.query_tiles - 1 - static_cast<int32_t>(blockIdx.x) / z.heads;  // the last ones read most: they start first
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t first_row = query_tile * tile + warp * 16, row[2] = {first_row + lane / 4, first_row + lane / 4 + 8};
  const Token token[2] = {token_at(z.queries, row[0], z.query_tokens), token_at(z.queries, row[1], z.query_tokens)};
  const Span span = span_of(token_at(z.queries, first_row + lane % 16, z.query_tokens), true);
  const Mask mask(z.window);

  const auto start = [&](int32_t key_tile, int buffer) {
    start_tile<D>(keys + buffer * tile_bytes<D>, k + kv_head * D, p.k_row, key_tile * tile, z.keys, z.key_tokens);
    start_tile<D>(values + buffer * tile_bytes<D>, v + kv_head * D, p.v_row, key_tile * tile, z.keys, z.key_tokens);
    if (threadIdx.x < tile) key_tokens[buffer * tile + threadIdx.x] = token_at(z.keys, key_tile * tile + static_cast<int32_t>(threadIdx.x), z.key_tokens);
    gpu::cp_async_commit();
  };

  TileSearch search(z.keys.tiles, z.key_tiles, z.keys_ascend, z.queries.tiles[query_tile], true, z.window);
  int32_t key_tile = search.next();
  Rows<D> rows;
  if (key_tile >= 0) {
    start_tile<D>(queries, q + head * D, p.q_row, query_tile * tile, z.queries, z.query_tokens);
    start(key_tile, 0);
  }
  for (int buffer = 0; key_tile >= 0; buffer ^= 1) {
    const int32_t next = search.next();
    if (next >= 0) {
      start(next, buffer ^ 1);
      gpu::cp_async_wait<1>();
    } else {
      gpu::cp_async_wait<0>();
    }
    if (!no_barrier) __syncthreads();  // the tile is here for every thread

    float s[tile / 8][4] = {};
    multiply_transposed<D, tile / 16>(s, queries, warp * 16, keys + buffer * tile_bytes<D>, 0, lane);
    const Token* const these = key_tokens + buffer * tile;
    const bool plain = __all_sync(all_lanes, all_read(span, these[lane], mask) && all_read(span, these[lane + 32], mask));
#pragma unroll
    for (int n = 0; n < tile / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] *= scale2;
    if (!plain) {
#pragma unroll
      for (int n = 0; n < tile / 8; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const Token key = these[n * 8 + lane % 4 * 2 + c];
#pragma unroll
          for (int i = 0; i < 2; ++i)
            if (!mask.reads(token[i], key)) s[n][2 * i + c] = -INFINITY;
        }
    }
    rows.softmax(s);
    rows.add_values(s, values + buffer * tile_bytes<D>, lane);
    __syncthreads();  // all are done with this buffer: the next but one tile comes here
    key_tile = next;
  }
  rows.write(p, row, token, head, lane);
}

template <int D>
void launch(const Forward& call, cudaStream_t stream) {
  const int shared = forward_shared<D> - (gpu::planted("attention.short_shared") ? 16 : 0);
  const auto blocks = static_cast<unsigned>(int64_t{call.sizes.query_tiles} * call.sizes.heads);
  if (blocks > 0) gpu::launch(forward<D>, dim3(blocks), dim3(forward_threads), static_cast<size_t>(shared), stream, call);
}

}  // namespace

void tensor_core_forward(const Forward& call, cudaStream_t stream) {
  if (call.sizes.head_dim == 64) launch<64>(call, stream);
  else launch<128>(call, stream);
}

}  // namespace quire::attention
