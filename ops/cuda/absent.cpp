// The CUDA backend where it is not built: no kernel for any operation, so that dispatch refuses by name.
#include "ops/attention.h"
#include "ops/combine.h"
#include "ops/cuda/attention_cudnn_calls.h"
#include "ops/kernels.h"
#include "runtime/error.h"

namespace quire {

template <> KernelList<MatmulArgs> cuda_kernels<MatmulArgs>() { return {}; }
template <> KernelList<BoundaryTableArgs> cuda_kernels<BoundaryTableArgs>() { return {}; }
template <> KernelList<AttentionForwardArgs> cuda_kernels<AttentionForwardArgs>() { return {}; }
template <> KernelList<AttentionBackwardArgs> cuda_kernels<AttentionBackwardArgs>() { return {}; }
template <> KernelList<AttentionDeltaArgs> cuda_kernels<AttentionDeltaArgs>() { return {}; }
template <> KernelList<AttentionMergeArgs> cuda_kernels<AttentionMergeArgs>() { return {}; }
template <> KernelList<RmsNormForwardArgs> cuda_kernels<RmsNormForwardArgs>() { return {}; }
template <> KernelList<RmsNormBackwardArgs> cuda_kernels<RmsNormBackwardArgs>() { return {}; }
template <> KernelList<RotaryArgs> cuda_kernels<RotaryArgs>() { return {}; }
template <> KernelList<SwigluForwardArgs> cuda_kernels<SwigluForwardArgs>() { return {}; }
template <> KernelList<SwigluBackwardArgs> cuda_kernels<SwigluBackwardArgs>() { return {}; }
template <> KernelList<EmbeddingForwardArgs> cuda_kernels<EmbeddingForwardArgs>() { return {}; }
template <> KernelList<EmbeddingBackwardArgs> cuda_kernels<EmbeddingBackwardArgs>() { return {}; }
template <> KernelList<CrossEntropyForwardArgs> cuda_kernels<CrossEntropyForwardArgs>() { return {}; }
template <> KernelList<CrossEntropyBackwardArgs> cuda_kernels<CrossEntropyBackwardArgs>() { return {}; }
template <> KernelList<AddArgs> cuda_kernels<AddArgs>() { return {}; }
template <> KernelList<SumArgs> cuda_kernels<SumArgs>() { return {}; }
template <> KernelList<CombineArgs> cuda_kernels<CombineArgs>() { return {}; }
template <> KernelList<CastArgs> cuda_kernels<CastArgs>() { return {}; }
template <> KernelList<ReduceArgs> cuda_kernels<ReduceArgs>() { return {}; }
template <> KernelList<SquaresArgs> cuda_kernels<SquaresArgs>() { return {}; }
template <> KernelList<OptimizerScalarsArgs> cuda_kernels<OptimizerScalarsArgs>() { return {}; }
template <> KernelList<AdamWArgs> cuda_kernels<AdamWArgs>() { return {}; }
template <> KernelList<StartsFromEosArgs> cuda_kernels<StartsFromEosArgs>() { return {}; }
template <> KernelList<DocumentIdsArgs> cuda_kernels<DocumentIdsArgs>() { return {}; }
template <> KernelList<StartsFromIdsArgs> cuda_kernels<StartsFromIdsArgs>() { return {}; }
template <> KernelList<PositionsArgs> cuda_kernels<PositionsArgs>() { return {}; }
template <> KernelList<TileRangesArgs> cuda_kernels<TileRangesArgs>() { return {}; }
template <> KernelList<CompareRecordsArgs> cuda_kernels<CompareRecordsArgs>() { return {}; }
template <> KernelList<DocumentsDigestArgs> cuda_kernels<DocumentsDigestArgs>() { return {}; }
template <> KernelList<ReceivedBoundariesArgs> cuda_kernels<ReceivedBoundariesArgs>() { return {}; }
template <> KernelList<BoundaryTilesArgs> cuda_kernels<BoundaryTilesArgs>() { return {}; }

// No rank has a device here.
void check_cudnn_attention(Rank&, const AttentionOptions&) { fail<UnsupportedError>("attention", "model.attention_backend \"cudnn\": found: a build without CUDA; needed: one with it"); }
int64_t cudnn_attention_workspace(Rank&, const AttentionOptions&, int64_t, int64_t) { return 0; }

}  // namespace quire
