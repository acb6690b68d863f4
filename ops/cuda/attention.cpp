// The lists of attention's kernels on a CUDA device, and how calls are handed to them.
#include "ops/cuda/attention_calls.h"
#include "ops/cuda/attention_cudnn_calls.h"
#include "ops/cuda/attention_work.h"
#include "ops/cuda/boundary_search.h"
#include "runtime/cuda/device.h"

namespace quire {
namespace {

using namespace attention;

bool aligned(const void* rows, int64_t stride, int64_t element, int64_t alignment) {
  return reinterpret_cast<uintptr_t>(rows) % static_cast<uintptr_t>(alignment) == 0 && stride * element % alignment == 0;
}
int64_t tiles_of(int64_t tokens) { return (tokens + boundary_tile - 1) / boundary_tile; }

/// What both ways ask: a block per tile and head, of which a grid has 2^31 - 1.
template <class Args>
bool can_run_block(const Args& args) {
  return !args.dense && args.batches == nullptr && (args.type == DType::f32 || args.type == DType::bf16) && args.head_dim >= 1 && args.head_dim <= f32_largest_head &&
         std::max(tiles_of(args.query_tokens), tiles_of(args.key_tokens)) * args.heads < int64_t{1} << 31;
}
template <class Args>
bool aligned_inputs(const Args& args) {
  return args.type == DType::bf16 && (args.head_dim == 64 || args.head_dim == 128) && aligned(args.q, args.q_row, 2, 16) && aligned(args.k, args.k_row, 2, 16) &&
         aligned(args.v, args.v_row, 2, 16);
}
bool can_run_tensor_cores(const AttentionForwardArgs& args) {
  const int64_t out = args.accumulate_out ? 4 : 2;
  return can_run_block(args) && aligned_inputs(args) && aligned(args.out, args.out_row, out, 2 * out);
}
bool can_run_tensor_cores(const AttentionBackwardArgs& args) {
  return can_run_block(args) && aligned_inputs(args) && aligned(args.dout, args.dout_row, 2, 16) && aligned(args.dq, args.dq_row, 4, 8) &&
         aligned(args.dk, args.dk_row, 4, 8) && aligned(args.dv, args.dv_row, 4, 8);
}

/// Counts the work on the rank. A pair counts once, also in backward, where two kernels compute its score.
template <class Args>
Sizes sizes_of(Rank& rank, const Args& args) {
  const AttentionWork work = attention_work(args.query_runs, args.key_runs, args.query_tokens, args.key_tokens, args.window);
  rank.work().computed_pairs += args.heads * work.computed_pairs;
  rank.work().attended_pairs += args.heads * work.attended_pairs;
  const auto narrow = [](int64_t x) { return static_cast<int32_t>(x); };
  return {.queries = args.query_table, .keys = args.key_table, .query_tokens = narrow(args.query_tokens), .key_tokens = narrow(args.key_tokens),
          .query_tiles = narrow(tiles_of(args.query_tokens)), .key_tiles = narrow(tiles_of(args.key_tokens)), .heads = narrow(args.heads),
          .group = narrow(args.heads / args.kv_heads), .head_dim = narrow(args.head_dim), .window = kernel_window(args.window),
          .queries_ascend = work.queries_ascend, .keys_ascend = work.keys_ascend, .bf16 = args.type == DType::bf16};
}
Forward forward_call(Rank& rank, const AttentionForwardArgs& args) {
  return {.sizes = sizes_of(rank, args), .q = args.q, .k = args.k, .v = args.v, .out = args.out, .lse = static_cast<float*>(args.lse), .q_row = args.q_row,
          .k_row = args.k_row, .v_row = args.v_row, .out_row = args.out_row, .scale = static_cast<float>(args.scale),
          .out_f32 = args.accumulate_out || args.type == DType::f32};
}
Backward backward_call(Rank& rank, const AttentionBackwardArgs& args) {
  return {.sizes = sizes_of(rank, args), .q = args.q, .k = args.k, .v = args.v, .dout = args.dout, .lse = static_cast<const float*>(args.lse),
          .delta = static_cast<const float*>(args.delta), .dq = static_cast<float*>(args.dq), .dk = static_cast<float*>(args.dk), .dv = static_cast<float*>(args.dv),
          .q_row = args.q_row, .k_row = args.k_row, .v_row = args.v_row, .dout_row = args.dout_row, .dq_row = args.dq_row, .dk_row = args.dk_row,
          .dv_row = args.dv_row, .scale = static_cast<float>(args.scale), .overwrite = args.overwrite};
}

void run_tensor_cores(Rank& rank, const AttentionForwardArgs& args) { tensor_core_forward(forward_call(rank, args), cuda(rank).stream()); }
void run_tensor_cores(Rank& rank, const AttentionBackwardArgs& args) { tensor_core_backward(backward_call(rank, args), cuda(rank).stream()); }
void run_f32(Rank& rank, const AttentionForwardArgs& args) { f32_forward(forward_call(rank, args), cuda(rank).stream()); }
void run_f32(Rank& rank, const AttentionBackwardArgs& args) { f32_backward(backward_call(rank, args), cuda(rank).stream()); }

template <class Args> bool is_f32_or_bf16(const Args& args) { return args.type == DType::f32 || args.type == DType::bf16; }
void run_delta(Rank& rank, const AttentionDeltaArgs& args) {
  row_products(args.out, args.dout, args.type == DType::bf16, args.tokens * args.heads, args.head_dim, static_cast<float*>(args.delta), cuda(rank).stream());
}
void run_merge(Rank& rank, const AttentionMergeArgs& args) {
  merge_rows(args.table.start, args.tokens, args.heads, args.head_dim, static_cast<float*>(args.out1), static_cast<float*>(args.lse1), static_cast<const float*>(args.out2),
             static_cast<const float*>(args.lse2), cuda(rank).stream());
}

bool can_run_cudnn(const AttentionForwardArgs& args) { return args.batches != nullptr && !args.accumulate_out; }
bool can_run_cudnn(const AttentionBackwardArgs& args) { return args.batches != nullptr && args.overwrite && args.out != nullptr; }

bool can_run_table(const BoundaryTableArgs&) { return true; }
void run_table(Rank& rank, const BoundaryTableArgs& args) {
  boundary_table(args.runs, args.runs_count, args.tokens_count, args.global, args.start, args.tiles, cuda(rank).stream());
}

}  // namespace

template <> KernelList<AttentionForwardArgs> cuda_kernels<AttentionForwardArgs>() {
  static constexpr Kernel<AttentionForwardArgs> list[] = {{"tensor_cores", can_run_tensor_cores, run_tensor_cores}, {"f32", can_run_block<AttentionForwardArgs>, run_f32},
                                                          {"cudnn", can_run_cudnn, cudnn_attention::forward}};
  return list;
}
template <> KernelList<AttentionBackwardArgs> cuda_kernels<AttentionBackwardArgs>() {
  static constexpr Kernel<AttentionBackwardArgs> list[] = {{"tensor_cores", can_run_tensor_cores, run_tensor_cores}, {"f32", can_run_block<AttentionBackwardArgs>, run_f32},
                                                           {"cudnn", can_run_cudnn, cudnn_attention::backward}, {"cudnn_unordered", can_run_cudnn, cudnn_attention::backward_unordered}};
  return list;
}
template <> KernelList<AttentionDeltaArgs> cuda_kernels<AttentionDeltaArgs>() {
  static constexpr Kernel<AttentionDeltaArgs> list[] = {{"rows", is_f32_or_bf16<AttentionDeltaArgs>, run_delta}};
  return list;
}
template <> KernelList<AttentionMergeArgs> cuda_kernels<AttentionMergeArgs>() {
  static constexpr Kernel<AttentionMergeArgs> list[] = {{"rows", is_f32_or_bf16<AttentionMergeArgs>, run_merge}};
  return list;
}
template <> KernelList<BoundaryTableArgs> cuda_kernels<BoundaryTableArgs>() {
  static constexpr Kernel<BoundaryTableArgs> list[] = {{"tiles", can_run_table, run_table}};
  return list;
}

}  // namespace quire
