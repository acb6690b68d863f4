// Attention in f32 arithmetic for f32, and for bf16 with head sizes or strides that the tensor-core kernels do not take. The same blocks as theirs: 64
// queries of one head against tiles of 64 keys, and for dk and dv 64 keys of one key/value head against tiles of 64 queries. 16 x 16 threads; a
// thread has 4 rows (16 apart) and, of products, every 16th column.
#include "ops/cuda/attention_calls.h"
#include "ops/cuda/attention_tiles.cuh"

namespace quire::attention {
namespace {

constexpr int threads = 256, each = 4, scores_row = tile + 1;

/// Two tiles of rows and one of scores; rows have an odd stride, so that a column's values lie in different banks.
struct Shared {
  Query* queries;  ///< [64], or tokens of keys
  Token* keys;
  float *left, *right, *scores;
  int stride;
  __device__ Shared(unsigned char* memory, int head_dim)
      : queries(reinterpret_cast<Query*>(memory)), keys(reinterpret_cast<Token*>(memory + tile * sizeof(Query))),
        left(reinterpret_cast<float*>(memory + tile * (sizeof(Query) + sizeof(Token)))), right(left + tile * (head_dim | 1)), scores(right + tile * (head_dim | 1)),
        stride(head_dim | 1) {}
};
size_t shared_bytes(int head_dim) { return tile * (sizeof(Query) + sizeof(Token)) + sizeof(float) * (2 * tile * static_cast<size_t>(head_dim | 1) + tile * scores_row); }

/// A tile of rows of one head as f32. Rows in no document become zeros and are not read.
__device__ inline void load(float* to, int to_row, const void* from, bool bf16, int64_t stride, int64_t column, int32_t first, const BoundaryTable& table, int32_t tokens,
                            int head_dim) {
  for (int row = static_cast<int>(threadIdx.x) / 32; row < tile; row += threads / 32) {
    const bool there = first + row < tokens && table.start[first + row] >= 0;
    const int64_t place = there ? (first + row) * stride + column : 0;
    for (int c = static_cast<int>(threadIdx.x) % 32; c < head_dim; c += 32) {
      float value = 0;
      if (there) value = bf16 ? gpu::to_float(static_cast<const gpu::bf16*>(from)[place + c]) : static_cast<const float*>(from)[place + c];
      to[row * to_row + c] = value;
    }
  }
}

/// scores = left right^T: rows y + 16 r and columns x + 16 c.
__device__ inline void multiply_transposed(float (&scores)[each][each], const float* left, const float* right, int stride, int head_dim) {
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
  for (int r = 0; r < each; ++r)
#pragma unroll
    for (int c = 0; c < each; ++c) scores[r][c] = 0;
  for (int d = 0; d < head_dim; ++d) {
    float a[each], b[each];
#pragma unroll
    for (int r = 0; r < each; ++r) a[r] = left[(y + 16 * r) * stride + d];
#pragma unroll
    for (int c = 0; c < each; ++c) b[c] = right[(x + 16 * c) * stride + d];
#pragma unroll
    for (int r = 0; r < each; ++r)
#pragma unroll
      for (int c = 0; c < each; ++c) scores[r][c] += a[r] * b[c];
  }
}

__device__ inline void put_scores(float* to, const float (&scores)[each][each]) {
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
  for (int r = 0; r < each; ++r)
#pragma unroll
    for (int c = 0; c < each; ++c) to[(y + 16 * r) * scores_row + x + 16 * c] = scores[r][c];
}

/// sums += scores right, or scores^T right: rows y + 16 r, columns x + 16 c below head_dim.
template <bool transposed, int C>
__device__ inline void multiply(float (&sums)[each][C], const float* scores, const float* right, int stride, int head_dim) {
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  for (int j = 0; j < tile; ++j) {
    float a[each];
#pragma unroll
    for (int r = 0; r < each; ++r) a[r] = transposed ? scores[j * scores_row + y + 16 * r] : scores[(y + 16 * r) * scores_row + j];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      if (x + 16 * c >= head_dim) continue;
      const float b = right[j * stride + x + 16 * c];
#pragma unroll
      for (int r = 0; r < each; ++r) sums[r][c] += a[r] * b;
    }
  }
}

/// Rows of gradients.
template <int C>
__device__ inline void put_rows(float* to, int64_t stride, int64_t column, const float (&sums)[each][C], float factor, int32_t first, const BoundaryTable& table, int32_t tokens,
                                int head_dim, bool overwrite) {
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
  for (int r = 0; r < each; ++r) {
    const int32_t row = first + y + 16 * r;
    if (token_at(table, row, tokens).start < 0) continue;
#pragma unroll
    for (int c = 0; c < C; ++c) {
      if (x + 16 * c >= head_dim) continue;
      float& value = to[row * stride + column + x + 16 * c];
      value = overwrite ? sums[r][c] * factor : value + sums[r][c] * factor;
    }
  }
}

__device__ inline float largest_of_row(float value) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(all_lanes, value, step));
  return value;
}
__device__ inline float sum_of_row(float value) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) value += __shfl_xor_sync(all_lanes, value, step);
  return value;
}

template <int C>
__global__ void __launch_bounds__(threads) f32_forward_rows(const Forward p) {
  DYNAMIC_SMEM(memory);
  const Sizes& z = p.sizes;
  const Shared shared(memory, z.head_dim);
  const int32_t head = static_cast<int32_t>(blockIdx.x) % z.heads, query_tile = z.query_tiles - 1 - static_cast<int32_t>(blockIdx.x) / z.heads;
  const int64_t width = z.head_dim, column = head * width, kv_column = head / z.group * width;
  const int x = threadIdx.x % 16, y = threadIdx.x / 16, first = query_tile * tile;
  const Mask mask(z.window);
  TileSearch search(z.keys.tiles, z.key_tiles, z.keys_ascend, z.queries.tiles[query_tile], true, z.window);
  float out[each][C] = {}, most[each], sum[each] = {};
#pragma unroll
  for (int r = 0; r < each; ++r) most[r] = -INFINITY;
  load(shared.left, shared.stride, p.q, z.bf16, p.q_row, column, first, z.queries, z.query_tokens, z.head_dim);

  for (int32_t key_tile = search.next(); key_tile >= 0; key_tile = search.next()) {
    load(shared.right, shared.stride, p.k, z.bf16, p.k_row, kv_column, key_tile * tile, z.keys, z.key_tokens, z.head_dim);
    if (threadIdx.x < tile) shared.keys[threadIdx.x] = token_at(z.keys, key_tile * tile + static_cast<int32_t>(threadIdx.x), z.key_tokens);
    __syncthreads();
    float s[each][each];
    multiply_transposed(s, shared.left, shared.right, shared.stride, z.head_dim);
#pragma unroll
    for (int r = 0; r < each; ++r) {
      const Token token = token_at(z.queries, first + y + 16 * r, z.query_tokens);
      float now = -INFINITY, part = 0;
#pragma unroll
      for (int c = 0; c < each; ++c) {
        s[r][c] = mask.reads(token, shared.keys[x + 16 * c]) ? s[r][c] * p.scale : -INFINITY;
        now = fmaxf(now, s[r][c]);
      }
      now = fmaxf(most[r], largest_of_row(now));
      const float base = now == -INFINITY ? 0.0f : now, factor = expf(most[r] - base);
      most[r] = now;
#pragma unroll
      for (int c = 0; c < each; ++c) part += s[r][c] = expf(s[r][c] - base);
      sum[r] = sum[r] * factor + part;
#pragma unroll
      for (int c = 0; c < C; ++c) out[r][c] *= factor;
    }
    put_scores(shared.scores, s);
    __syncthreads();  // all are done with the keys
    load(shared.right, shared.stride, p.v, z.bf16, p.v_row, kv_column, key_tile * tile, z.keys, z.key_tokens, z.head_dim);
    __syncthreads();
    multiply<false>(out, shared.scores, shared.right, shared.stride, z.head_dim);
    __syncthreads();  // all are done with the values
  }
#pragma unroll
  for (int r = 0; r < each; ++r) {
    const float total = sum_of_row(sum[r]), factor = total == 0 ? 0.0f : 1.0f / total;
    const int32_t row = first + y + 16 * r;
    if (token_at(z.queries, row, z.query_tokens).start < 0) continue;
#pragma unroll
    for (int c = 0; c < C; ++c) {
      if (x + 16 * c >= z.head_dim) continue;
      const int64_t place = row * p.out_row + column + x + 16 * c;
      if (p.out_f32) static_cast<float*>(p.out)[place] = out[r][c] * factor;
      else static_cast<gpu::bf16*>(p.out)[place] = gpu::from_float<gpu::bf16>(out[r][c] * factor);
    }
    if (x == 0) p.lse[int64_t{row} * z.heads + head] = total == 0 ? -INFINITY : most[r] + logf(total);
  }
}

/// Probabilities from scores, and gradients of scores (without the scale) from those of probabilities.
__device__ inline void differentiate(float& score, float& gradient, const Query& query, bool reads, float scale) {
  score = reads ? expf(score * scale - query.lse) : 0.0f;
  gradient = score * (gradient - query.delta);
}

template <int C>
__global__ void __launch_bounds__(threads) f32_backward_keys(const Backward p) {
  DYNAMIC_SMEM(memory);
  const Sizes& z = p.sizes;
  const Shared shared(memory, z.head_dim);
  const int32_t kv_heads = z.heads / z.group, kv_head = static_cast<int32_t>(blockIdx.x) % kv_heads, key_tile = static_cast<int32_t>(blockIdx.x) / kv_heads;
  const int64_t width = z.head_dim, kv_column = kv_head * width;
  const int x = threadIdx.x % 16, y = threadIdx.x / 16, first = key_tile * tile;
  const Mask mask(z.window);
  TileSearch search(z.queries.tiles, z.query_tiles, z.queries_ascend, z.keys.tiles[key_tile], false, z.window);
  if (threadIdx.x < tile) shared.keys[threadIdx.x] = token_at(z.keys, first + static_cast<int32_t>(threadIdx.x), z.key_tokens);
  float dk[each][C] = {}, dv[each][C] = {};

  for (int32_t query_tile = search.next(); query_tile >= 0; query_tile = search.next())
    for (int32_t head = kv_head * z.group; head < (kv_head + 1) * z.group; ++head) {
      const auto load_keys = [&](const void* from, int64_t row) { load(shared.left, shared.stride, from, z.bf16, row, kv_column, first, z.keys, z.key_tokens, z.head_dim); };
      const auto load_queries = [&](const void* from, int64_t row) {
        load(shared.right, shared.stride, from, z.bf16, row, head * width, query_tile * tile, z.queries, z.query_tokens, z.head_dim);
      };
      load_keys(p.k, p.k_row);
      load_queries(p.q, p.q_row);
      if (threadIdx.x < tile) shared.queries[threadIdx.x] = query_at(p, query_tile * tile + static_cast<int32_t>(threadIdx.x), head, 1);
      __syncthreads();
      float s[each][each], ds[each][each];
      multiply_transposed(s, shared.right, shared.left, shared.stride, z.head_dim);
      __syncthreads();
      load_keys(p.v, p.v_row);
      load_queries(p.dout, p.dout_row);
      __syncthreads();
      multiply_transposed(ds, shared.right, shared.left, shared.stride, z.head_dim);
#pragma unroll
      for (int r = 0; r < each; ++r) {
        const Query query = shared.queries[y + 16 * r];
#pragma unroll
        for (int c = 0; c < each; ++c) differentiate(s[r][c], ds[r][c], query, mask.reads(query.token, shared.keys[x + 16 * c]), p.scale);
      }
      put_scores(shared.scores, s);
      __syncthreads();
      multiply<true>(dv, shared.scores, shared.right, shared.stride, z.head_dim);
      __syncthreads();
      put_scores(shared.scores, ds);
      load_queries(p.q, p.q_row);
      __syncthreads();
      multiply<true>(dk, shared.scores, shared.right, shared.stride, z.head_dim);
      __syncthreads();
    }
  put_rows(p.dk, p.dk_row, kv_column, dk, p.scale, first, z.keys, z.key_tokens, z.head_dim, p.overwrite);
  put_rows(p.dv, p.dv_row, kv_column, dv, 1, first, z.keys, z.key_tokens, z.head_dim, p.overwrite);
}

template <int C>
__global__ void __launch_bounds__(threads) f32_backward_queries(const Backward p) {
  DYNAMIC_SMEM(memory);
  const Sizes& z = p.sizes;
  const Shared shared(memory, z.head_dim);
  const int32_t head = static_cast<int32_t>(blockIdx.x) % z.heads, query_tile = z.query_tiles - 1 - static_cast<int32_t>(blockIdx.x) / z.heads;
  const int64_t width = z.head_dim, column = head * width, kv_column = head / z.group * width;
  const int x = threadIdx.x % 16, y = threadIdx.x / 16, first = query_tile * tile;
  const Mask mask(z.window);
  TileSearch search(z.keys.tiles, z.key_tiles, z.keys_ascend, z.queries.tiles[query_tile], true, z.window);
  if (threadIdx.x < tile) shared.queries[threadIdx.x] = query_at(p, first + static_cast<int32_t>(threadIdx.x), head, 1);
  float dq[each][C] = {};

  for (int32_t key_tile = search.next(); key_tile >= 0; key_tile = search.next()) {
    const auto load_both = [&](const void* query, int64_t query_row, const void* key, int64_t key_row) {
      load(shared.left, shared.stride, query, z.bf16, query_row, column, first, z.queries, z.query_tokens, z.head_dim);
      load(shared.right, shared.stride, key, z.bf16, key_row, kv_column, key_tile * tile, z.keys, z.key_tokens, z.head_dim);
    };
    load_both(p.dout, p.dout_row, p.v, p.v_row);
    if (threadIdx.x < tile) shared.keys[threadIdx.x] = token_at(z.keys, key_tile * tile + static_cast<int32_t>(threadIdx.x), z.key_tokens);
    __syncthreads();
    float s[each][each], ds[each][each];
    multiply_transposed(ds, shared.left, shared.right, shared.stride, z.head_dim);
    __syncthreads();
    load_both(p.q, p.q_row, p.k, p.k_row);
    __syncthreads();
    multiply_transposed(s, shared.left, shared.right, shared.stride, z.head_dim);
#pragma unroll
    for (int r = 0; r < each; ++r) {
      const Query query = shared.queries[y + 16 * r];
#pragma unroll
      for (int c = 0; c < each; ++c) differentiate(s[r][c], ds[r][c], query, mask.reads(query.token, shared.keys[x + 16 * c]), p.scale);
    }
    put_scores(shared.scores, ds);
    __syncthreads();
    multiply<false>(dq, shared.scores, shared.right, shared.stride, z.head_dim);
    __syncthreads();
  }
  put_rows(p.dq, p.dq_row, column, dq, p.scale, first, z.queries, z.query_tokens, z.head_dim, p.overwrite);
}

template <int C>
void launch(const Forward& call, cudaStream_t stream) {
  const Sizes& z = call.sizes;
  const auto blocks = static_cast<unsigned>(int64_t{z.query_tiles} * z.heads);
  if (blocks > 0) gpu::launch(f32_forward_rows<C>, dim3(blocks), dim3(threads), shared_bytes(z.head_dim), stream, call);
}
template <int C>
void launch(const Backward& call, cudaStream_t stream) {
  const Sizes& z = call.sizes;
  const auto key_blocks = static_cast<unsigned>(int64_t{z.key_tiles} * z.heads / z.group), query_blocks = static_cast<unsigned>(int64_t{z.query_tiles} * z.heads);
  if (key_blocks > 0) gpu::launch(f32_backward_keys<C>, dim3(key_blocks), dim3(threads), shared_bytes(z.head_dim), stream, call);
  if (query_blocks > 0) gpu::launch(f32_backward_queries<C>, dim3(query_blocks), dim3(threads), shared_bytes(z.head_dim), stream, call);
}

template <class Call>
void launch_for_head(const Call& call, cudaStream_t stream) {
  if (call.sizes.head_dim <= 64) launch<4>(call, stream);
  else if (call.sizes.head_dim <= 128) launch<8>(call, stream);
  else launch<16>(call, stream);
}

}  // namespace

void f32_forward(const Forward& call, cudaStream_t stream) { launch_for_head(call, stream); }
void f32_backward(const Backward& call, cudaStream_t stream) { launch_for_head(call, stream); }

}  // namespace quire::attention
