// The lists of attention's kernels on the CPU, and how the block kernels' units are given to the threads.
//
// WorkCounters' pairs grow in forward and in backward alike: a ratio to useful pairs is read around a single call.
#include "ops/cpu/attention.h"

#include "ops/cpu/attention_kernels.h"
#include "runtime/dispatch.h"

namespace quire {
namespace {

constexpr int64_t row_chunk = 64;

bool is_float(DType type) { return type == DType::f64 || type == DType::f32 || type == DType::bf16; }

template <class Args> bool can_run_dense(const Args& args) { return args.dense && is_float(args.type) && args.batches == nullptr; }
template <class Args> bool can_run_block(const Args& args) {
  return !args.dense && args.batches == nullptr && is_float(args.type) && args.head_dim >= 1 && args.head_dim <= attention_largest_head;
}
template <class Args> bool can_run_rows(const Args& args) { return is_float(args.type); }

int64_t tile_keys(DType type) { return type == DType::f64 ? attention_tile_keys<double> : attention_tile_keys<float>; }

void count(Rank& rank, const AttentionPairs& pairs) {
  rank.work().computed_pairs += pairs.computed;
  rank.work().attended_pairs += pairs.attended;
}

void run_forward(Rank& rank, const AttentionForwardArgs& args) {
  Workspace workspace(rank.stack());
  const AttentionPlan plan = plan_attention(workspace, args.query_runs, args.key_runs, tile_keys(args.type));
  const std::span<const AttentionUnit> units = forward_units(workspace, plan, args.heads, args.kv_heads);
  const AttentionForwardKernels kernels = attention_forward_kernels(rank, args.type);
  const bool wide = args.type == DType::f64;
  const int64_t size = size_of(accumulator_of(args.type));
  const int64_t tile = size * (wide ? forward_tile_memory<double>(args.head_dim) : forward_tile_memory<float>(args.head_dim));
  char* shared = workspace.take<char>(args.kv_heads * plan.shared_tiles * tile);
  const int64_t each = size * (wide ? forward_scratch<double>(plan, args.head_dim) : forward_scratch<float>(plan, args.head_dim));
  char* memory = workspace.take<char>(each * rank.pool().threads());
  for (const AttentionDocument& document : plan.documents) {
    if (document.shared_tile < 0) continue;
    const int64_t tiles = chunks_of(document.key_count, tile_keys(args.type));
    rank.pool().parallel_for(args.kv_heads * tiles, [&](int64_t chunk, int) {
      kernels.pack(args, plan, document, chunk / tiles, chunk % tiles, shared);
    });
  }
  rank.pool().parallel_for(static_cast<int64_t>(units.size()), [&](int64_t unit, int thread) {
    count(rank, kernels.run(args, plan, units[static_cast<size_t>(unit)], shared, memory + thread * each));
  });
}

void run_backward(Rank& rank, const AttentionBackwardArgs& args) {
  Workspace workspace(rank.stack());
  const AttentionPlan plan = plan_attention(workspace, args.query_runs, args.key_runs, tile_keys(args.type));
  const std::span<const AttentionUnit> units = backward_units(workspace, plan, args.kv_heads);
  const AttentionBackwardKernels kernels = attention_backward_kernels(rank, args.type);
  const int64_t each = args.type == DType::f64 ? 8 * backward_scratch<double>(args.head_dim) : 4 * backward_scratch<float>(args.head_dim);
  char* memory = workspace.take<char>(each * rank.pool().threads());
  char* partial = workspace.take<char>(2 * plan.partial_keys * args.kv_heads * args.head_dim * size_of(accumulator_of(args.type)));
  rank.pool().parallel_for(static_cast<int64_t>(units.size()), [&](int64_t unit, int thread) {
    count(rank, kernels.run(args, plan, units[static_cast<size_t>(unit)], partial, memory + thread * each));
  });
  for (const AttentionDocument& document : plan.documents) {
    if (document.parts() == 1) continue;
    rank.pool().parallel_for(chunks_of(document.key_count, row_chunk), [&](int64_t chunk, int) {
      kernels.add_parts(args, plan, document, partial, chunk * row_chunk, std::min((chunk + 1) * row_chunk, document.key_count));
    });
  }
}

void run_delta(Rank& rank, const AttentionDeltaArgs& args) {
  const auto run = attention_row_kernels(rank, args.type).delta;
  rank.pool().parallel_for(chunks_of(args.tokens, row_chunk), [&](int64_t chunk, int) {
    run(args, chunk * row_chunk, std::min((chunk + 1) * row_chunk, args.tokens));
  });
}

void run_merge(Rank& rank, const AttentionMergeArgs& args) {
  const auto run = attention_row_kernels(rank, args.type).merge;
  rank.pool().parallel_for(chunks_of(args.tokens, row_chunk), [&](int64_t chunk, int) {
    const int64_t begin = chunk * row_chunk, end = std::min(begin + row_chunk, args.tokens);
    auto covered = std::partition_point(args.runs.begin(), args.runs.end(), [&](const DocumentRun& r) { return int64_t{r.local} + r.length <= begin; });
    for (; covered != args.runs.end() && covered->local < end; ++covered)
      run(args, std::max<int64_t>(covered->local, begin), std::min(int64_t{covered->local} + covered->length, end));
  });
}

}  // namespace

template <> KernelList<AttentionForwardArgs> cpu_kernels<AttentionForwardArgs>() {
  static constexpr Kernel<AttentionForwardArgs> list[] = {{"block", can_run_block<AttentionForwardArgs>, run_forward},
                                                          {"dense", can_run_dense<AttentionForwardArgs>, dense_attention_forward}};
  return list;
}
template <> KernelList<AttentionBackwardArgs> cpu_kernels<AttentionBackwardArgs>() {
  static constexpr Kernel<AttentionBackwardArgs> list[] = {{"block", can_run_block<AttentionBackwardArgs>, run_backward},
                                                           {"dense", can_run_dense<AttentionBackwardArgs>, dense_attention_backward}};
  return list;
}
template <> KernelList<AttentionDeltaArgs> cpu_kernels<AttentionDeltaArgs>() {
  static constexpr Kernel<AttentionDeltaArgs> list[] = {{"rows", can_run_rows<AttentionDeltaArgs>, run_delta}};
  return list;
}
template <> KernelList<AttentionMergeArgs> cpu_kernels<AttentionMergeArgs>() {
  static constexpr Kernel<AttentionMergeArgs> list[] = {{"rows", can_run_rows<AttentionMergeArgs>, run_merge}};
  return list;
}

}  // namespace quire
