// Document starts, ids, positions and tile ranges on CUDA devices. Starts and ids are scans (latest mark, number of marks) over marks of where
// documents begin: each chunk is summarised, one block combines the summaries in order, and each chunk is filled in from what came before it.
// Nobody waits for another block.
#include "ops/cuda/scan.h"

namespace quire {
namespace {

using namespace cuda_kernel;

constexpr int64_t chunk_tokens = 4096;

/// Token i > 0 begins a document when token i - 1 is EOS. The latest mark's index is the start.
struct AfterEos {
  using Combine = Latest;
  const int32_t* tokens;
  int32_t eos;
  __device__ int32_t operator()(int64_t i) const { return i > 0 && tokens[i - 1] == eos ? static_cast<int32_t>(i) : 0; }
};
/// Token i > 0 begins a document when its id differs from that of token i - 1.
struct AtNewId {
  using Combine = Latest;
  const int32_t* ids;
  __device__ int32_t operator()(int64_t i) const { return i > 0 && ids[i - 1] != ids[i] ? static_cast<int32_t>(i) : 0; }
};
/// The same of starts; the number of marks is the id.
struct CountOfStarts {
  using Combine = Sum;
  const int32_t* starts;
  __device__ int32_t operator()(int64_t i) const { return i > 0 && starts[i - 1] != starts[i] ? 1 : 0; }
};

/// summaries[chunk] = its marks combined.
template <class Marks>
__global__ void __launch_bounds__(block_threads) summarise_chunks(Marks marks, int64_t count, int64_t chunks, int32_t* summaries) {
  DYNAMIC_SMEM(memory);
  int32_t* const shared = reinterpret_cast<int32_t*>(memory);
  using Combine = typename Marks::Combine;
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const int64_t end = min(count, (chunk + 1) * chunk_tokens);
    int32_t own = 0;
    for (int64_t i = chunk * chunk_tokens + threadIdx.x; i < end; i += block_threads) own = Combine::of(own, marks(i));
    const int32_t all = block_scan<Combine>(own, shared);
    if (threadIdx.x == block_threads - 1) summaries[chunk] = all;
  }
}

/// One block: summaries[chunk] becomes the combination of those up to it.
template <class Combine>
__global__ void __launch_bounds__(block_threads) scan_summaries(int64_t chunks, int32_t* summaries) {
  DYNAMIC_SMEM(memory);
  int32_t* const shared = reinterpret_cast<int32_t*>(memory);
  int32_t before = 0;
  for (int64_t first = 0; first < chunks; first += block_threads) {
    const int64_t chunk = first + threadIdx.x;
    const int32_t up_to_here = block_scan<Combine>(chunk < chunks ? summaries[chunk] : 0, shared);
    if (chunk < chunks) summaries[chunk] = Combine::of(before, up_to_here);
    before = Combine::of(before, block_total<Combine>(shared));
  }
}

/// output[i] = the marks up to i combined.
template <class Marks>
__global__ void __launch_bounds__(block_threads) fill_chunks(Marks marks, int64_t count, int64_t chunks, const int32_t* summaries, int32_t* output) {
  DYNAMIC_SMEM(memory);
  int32_t* const shared = reinterpret_cast<int32_t*>(memory);
  using Combine = typename Marks::Combine;
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const int64_t end = min(count, (chunk + 1) * chunk_tokens);
    int32_t before = chunk > 0 ? summaries[chunk - 1] : 0;
    for (int64_t first = chunk * chunk_tokens; first < end; first += block_threads) {
      const int64_t i = first + threadIdx.x;
      const int32_t up_to_here = block_scan<Combine>(i < end ? marks(i) : 0, shared);
      if (i < end) output[i] = Combine::of(before, up_to_here);
      before = Combine::of(before, block_total<Combine>(shared));
    }
  }
}

template <class Marks>
void scan(Rank& rank, const Marks& marks, int64_t count, int32_t* output) {
  if (count == 0) return;
  const int64_t chunks = divided_up(count, chunk_tokens);
  const cudaStream_t stream = stream_of(rank);
  const dim3 blocks(blocks_of(rank, chunks)), threads(block_threads);
  constexpr size_t shared = block_threads / warp_size * sizeof(int32_t);
  KernelWorkspace workspace(rank);
  int32_t* const summaries = workspace.take<int32_t>(chunks);
  if (chunks > 1) {
    gpu::launch(summarise_chunks<Marks>, blocks, threads, shared, stream, marks, count, chunks, summaries);
    gpu::launch(scan_summaries<typename Marks::Combine>, dim3(1), threads, shared, stream, chunks, summaries);
  }
  gpu::launch(fill_chunks<Marks>, blocks, threads, shared, stream, marks, count, chunks, static_cast<const int32_t*>(summaries), output);
}

__global__ void subtract_starts(const PositionsArgs args) {
  for (int64_t i = first_of_grid<1>(); i < args.tokens_count; i += stride_of_grid<1>()) args.positions[i] = args.indices[i] - args.starts[i];
}

/// One start is read per tile: starts never decrease and every query reads itself, so the tile's first row reads the earliest key and its last row the latest.
__global__ void find_ranges(const TileRangesArgs args, int64_t tiles) {
  for (int64_t t = first_of_grid<1>(); t < tiles; t += stride_of_grid<1>()) {
    const int64_t begin = t * args.tile, start = args.starts[begin];
    args.first[t] = static_cast<int32_t>(args.window > 0 ? max(start, begin - args.window + 1) : start);
    args.last[t] = static_cast<int32_t>(min(args.tokens_count, begin + args.tile));
  }
}

void starts_from_eos(Rank& rank, const StartsFromEosArgs& args) { scan(rank, AfterEos{args.tokens, args.eos}, args.tokens_count, args.starts); }
void starts_from_ids(Rank& rank, const StartsFromIdsArgs& args) { scan(rank, AtNewId{args.document_ids}, args.tokens_count, args.starts); }
void document_ids(Rank& rank, const DocumentIdsArgs& args) { scan(rank, CountOfStarts{args.starts}, args.tokens_count, args.document_ids); }
void positions(Rank& rank, const PositionsArgs& args) {
  if (args.tokens_count == 0) return;
  gpu::launch(subtract_starts, dim3(blocks_of(rank, divided_up(args.tokens_count, block_threads))), dim3(block_threads), 0, stream_of(rank), args);
}
void tile_ranges(Rank& rank, const TileRangesArgs& args) {
  const int64_t tiles = divided_up(args.tokens_count, args.tile);
  if (tiles == 0) return;
  gpu::launch(find_ranges, dim3(blocks_of(rank, divided_up(tiles, block_threads))), dim3(block_threads), 0, stream_of(rank), args, tiles);
}
bool positive_tile(const TileRangesArgs& args) { return args.tile > 0; }

}  // namespace

template <>
KernelList<StartsFromEosArgs> cuda_kernels<StartsFromEosArgs>() {
  static constexpr Kernel<StartsFromEosArgs> list[] = {{"vector", always<StartsFromEosArgs>, starts_from_eos}};
  return list;
}

template <>
KernelList<DocumentIdsArgs> cuda_kernels<DocumentIdsArgs>() {
  static constexpr Kernel<DocumentIdsArgs> list[] = {{"vector", always<DocumentIdsArgs>, document_ids}};
  return list;
}

template <>
KernelList<StartsFromIdsArgs> cuda_kernels<StartsFromIdsArgs>() {
  static constexpr Kernel<StartsFromIdsArgs> list[] = {{"vector", always<StartsFromIdsArgs>, starts_from_ids}};
  return list;
}

template <>
KernelList<PositionsArgs> cuda_kernels<PositionsArgs>() {
  static constexpr Kernel<PositionsArgs> list[] = {{"vector", always<PositionsArgs>, positions}};
  return list;
}

template <>
KernelList<TileRangesArgs> cuda_kernels<TileRangesArgs>() {
  static constexpr Kernel<TileRangesArgs> list[] = {{"vector", positive_tile, tile_ranges}};
  return list;
}

}  // namespace quire
