// Embedding on CUDA devices. The gradient needs each row's tokens in ascending order: places are sorted by token with a stable radix sort (8 bits at
// a time: count the digits of each tile, find where each tile's digits go, move), then one block adds up each row that occurs.
#include "ops/cuda/elementwise.h"
#include "ops/cuda/scan.h"

namespace quire {
namespace {

using namespace cuda_kernel;

// --- forward: a warp copies a row
template <class T>
__global__ void copy_table_rows(const EmbeddingForwardArgs args, bool vectors) {
  constexpr int n = vector_values<T>;
  const int lane = static_cast<int>(threadIdx.x % warp_size);
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / warp_size);
  for (int64_t token = static_cast<int64_t>(blockIdx.x) * (blockDim.x / warp_size) + threadIdx.x / warp_size; token < args.tokens_count; token += warps) {
    const T* from = static_cast<const T*>(args.table) + args.tokens[token] * args.width;
    T* to = static_cast<T*>(args.y) + token * args.width;
    for (int64_t i = lane * n; i < args.width; i += warp_size * n) {
      T values[n];
      load(from + i, args.width - i, vectors, values);
      store(values, to + i, args.width - i, vectors);
    }
  }
}

void forward(Rank& rank, const EmbeddingForwardArgs& args) {
  if (args.tokens_count == 0) return;
  by_model_type(args.type, [&](auto t) {
    using T = decltype(t);
    gpu::launch(copy_table_rows<T>, dim3(blocks_of(rank, divided_up(args.tokens_count, block_threads / warp_size))), dim3(block_threads), 0,
        stream_of(rank), args, in_vectors(args.table, args.y) && args.width % vector_values<T> == 0);
  });
}

// --- sorting places by token
constexpr int digits = 256;
static_assert(digits == block_threads, "a thread per digit");
constexpr int sort_warps = block_threads / warp_size;
constexpr int warp_rounds = 8;  ///< of one place per lane
constexpr int64_t tile_places = sort_warps * warp_rounds * warp_size;

__device__ inline int digit_of(int32_t token, int shift) { return token >> shift & (digits - 1); }

/// counts[digit, tile] = places of the tile whose token has that digit.
__global__ void __launch_bounds__(block_threads) count_digits(int64_t count, int64_t tiles, const int32_t* tokens, int shift, int32_t* counts) {
  DYNAMIC_SMEM(memory);
  int32_t* const shared = reinterpret_cast<int32_t*>(memory);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    shared[threadIdx.x] = 0;
    __syncthreads();
    const int64_t end = min(count, (tile + 1) * tile_places);
    for (int64_t i = tile * tile_places + threadIdx.x; i < end; i += block_threads) atomicAdd(shared + digit_of(tokens[i], shift), 1);
    __syncthreads();
    counts[threadIdx.x * tiles + tile] = shared[threadIdx.x];
    __syncthreads();
  }
}

/// One block per digit: counts[digit, tile] becomes the number in earlier tiles, totals[digit] the number in all.
__global__ void __launch_bounds__(block_threads) scan_tiles(int64_t tiles, int32_t* counts, int32_t* totals) {
  DYNAMIC_SMEM(memory);
  int32_t* const shared = reinterpret_cast<int32_t*>(memory);
  int32_t* const row = counts + blockIdx.x * tiles;
  int32_t before = 0;
  for (int64_t first = 0; first < tiles; first += block_threads) {
    const int64_t tile = first + threadIdx.x;
    const int32_t own = tile < tiles ? row[tile] : 0;
    const int32_t up_to_here = block_scan<Sum>(own, shared);
    if (tile < tiles) row[tile] = before + up_to_here - own;
    before += block_total<Sum>(shared);
  }
  if (threadIdx.x == 0) totals[blockIdx.x] = before;
}

/// The lanes whose digit is this lane's; `valid` lanes alone have one.
__device__ inline uint32_t lanes_with(int digit, bool valid) {
  uint32_t same = __ballot_sync(all_lanes, valid);
  for (int bit = 0; bit < 8; ++bit) {
    const uint32_t set = __ballot_sync(all_lanes, digit >> bit & 1);
    same &= digit >> bit & 1 ? set : ~set;
  }
  return same;
}

/// Moves places (with null: 0, 1, ...) and their tokens to where the digit puts them; equal digits keep their order.
__global__ void __launch_bounds__(block_threads)
    move_places(int64_t count, int64_t tiles, const int32_t* tokens, const int32_t* places, int shift, const int32_t* counts, const int32_t* totals,
        int32_t* to_tokens, int32_t* to_places) {
  DYNAMIC_SMEM(memory);
  int32_t* const shared = reinterpret_cast<int32_t*>(memory);
  int32_t* const next = shared + sort_warps;  // [warp, digit] where the next place goes
  const int lane = static_cast<int>(threadIdx.x % warp_size), warp = static_cast<int>(threadIdx.x / warp_size);
  const int32_t digit_begin = block_scan<Sum>(totals[threadIdx.x], shared) - totals[threadIdx.x];
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    for (int w = 0; w < sort_warps; ++w) next[w * digits + threadIdx.x] = 0;
    __syncthreads();
    const int64_t begin = tile * tile_places + warp * (warp_rounds * warp_size);
    for (int round = 0; round < warp_rounds; ++round) {
      const int64_t i = begin + round * warp_size + lane;
      if (i < count) atomicAdd(next + warp * digits + digit_of(tokens[i], shift), 1);
    }
    __syncthreads();
    int32_t place = digit_begin + counts[threadIdx.x * tiles + tile];
    for (int w = 0; w < sort_warps; ++w) {
      const int32_t own = next[w * digits + threadIdx.x];
      next[w * digits + threadIdx.x] = place;
      place += own;
    }
    __syncthreads();
    for (int round = 0; round < warp_rounds; ++round) {
      const int64_t i = begin + round * warp_size + lane;
      const bool valid = i < count;
      const int32_t token = valid ? tokens[i] : 0;
      const int digit = digit_of(token, shift);
      const uint32_t same = lanes_with(digit, valid);
      const int earlier = __popc(same & ((1u << lane) - 1));
      if (valid) {
        const int64_t to = next[warp * digits + digit] + earlier;
        to_tokens[to] = token;
        to_places[to] = places == nullptr ? static_cast<int32_t>(i) : places[i];
      }
      __syncwarp();
      if (valid && earlier == 0) next[warp * digits + digit] += __popc(same);
      __syncwarp();
    }
    __syncthreads();
  }
}

// --- backward
constexpr int add_columns = 4;  ///< of a thread

/// The block of a row's first place adds up the row, place after place.
template <class T>
__global__ void add_table_rows(const EmbeddingBackwardArgs args, const int32_t* tokens, const int32_t* places, bool vectors) {
  constexpr int n = add_columns, ahead = 8;  // rows that are read at a time
  const int64_t count = args.tokens_count;
  for (int64_t first = blockIdx.x; first < count; first += gridDim.x) {
    const int32_t token = tokens[first];
    if (first > 0 && tokens[first - 1] == token) continue;
    const int64_t stride = static_cast<int64_t>(gridDim.y) * blockDim.x * n;
    for (int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * n; column < args.width; column += stride) {
      float* const into = static_cast<float*>(args.dtable) + token * args.width + column;
      const T* const from = static_cast<const T*>(args.dy) + column;
      float sum[n];
      load(into, args.width - column, vectors, sum);
      bool more = true;
      for (int64_t i = first; more; i += ahead) {
        float values[ahead][n];
        bool same[ahead];
#pragma unroll
        for (int k = 0; k < ahead; ++k) {
          same[k] = i + k < count && tokens[i + k] == token;
          if (same[k]) load_wide(from + places[i + k] * args.width, args.width - column, vectors, values[k]);
        }
#pragma unroll
        for (int k = 0; k < ahead; ++k)
#pragma unroll
          for (int c = 0; c < n; ++c)
            if (same[k]) sum[c] += values[k][c];
        more = same[ahead - 1];
      }
      store(sum, into, args.width - column, vectors);
    }
  }
}

void backward(Rank& rank, const EmbeddingBackwardArgs& args) {
  const int64_t count = args.tokens_count, tiles = divided_up(count, tile_places);
  if (count == 0 || args.width == 0) return;
  const cudaStream_t stream = stream_of(rank);
  KernelWorkspace workspace(rank);
  int32_t* const counts = workspace.take<int32_t>(digits * tiles);
  int32_t* const totals = workspace.take<int32_t>(digits);
  int32_t* sorted[2][2];
  for (auto& buffers : sorted)
    for (int32_t*& buffer : buffers) buffer = workspace.take<int32_t>(count);
  const int32_t* tokens = args.tokens;
  const int32_t* places = nullptr;
  const dim3 blocks(blocks_of(rank, tiles)), threads(block_threads);
  int shift = 0;
  for (int pass = 0; pass == 0 || args.vocabulary - 1 >= int64_t{1} << shift; ++pass, shift += 8) {
    int32_t* const to_tokens = sorted[pass % 2][0];
    int32_t* const to_places = sorted[pass % 2][1];
    gpu::launch(count_digits, blocks, threads, digits * sizeof(int32_t), stream, count, tiles, tokens, shift, counts);
    gpu::launch(scan_tiles, dim3(digits), threads, sort_warps * sizeof(int32_t), stream, tiles, counts, totals);
    gpu::launch(move_places, blocks, threads, (sort_warps + sort_warps * digits) * sizeof(int32_t), stream, count, tiles, tokens, places, shift,
        counts, totals, to_tokens, to_places);
    tokens = to_tokens;
    places = to_places;
  }
  const int64_t groups = divided_up(args.width, add_columns), block = std::min<int64_t>(128, divided_up(groups, warp_size) * warp_size);
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(count, 0x7fffffff)), static_cast<unsigned>(std::min<int64_t>(divided_up(groups, block), 65535)));
  by_model_type(args.type, [&](auto t) {
    gpu::launch(add_table_rows<decltype(t)>, grid, dim3(static_cast<unsigned>(block)), 0, stream, args, tokens, places,
                in_vectors(args.dy, args.dtable) && args.width % add_columns == 0);
  });
}

}  // namespace

template <>
KernelList<EmbeddingForwardArgs> cuda_kernels<EmbeddingForwardArgs>() {
  static constexpr Kernel<EmbeddingForwardArgs> list[] = {{"vector", of_model_type<EmbeddingForwardArgs>, forward}};
  return list;
}

template <>
KernelList<EmbeddingBackwardArgs> cuda_kernels<EmbeddingBackwardArgs>() {
  static constexpr Kernel<EmbeddingBackwardArgs> list[] = {{"sorted", of_model_type<EmbeddingBackwardArgs>, backward}};
  return list;
}

}  // namespace quire
