// Operations that have no CUDA kernel yet: dispatch refuses them by name.
#include "ops/kernels.h"

namespace quire {

template <> KernelList<RmsNormForwardArgs> cuda_kernels<RmsNormForwardArgs>() { return {}; }
template <> KernelList<RmsNormBackwardArgs> cuda_kernels<RmsNormBackwardArgs>() { return {}; }
template <> KernelList<RotaryArgs> cuda_kernels<RotaryArgs>() { return {}; }
template <> KernelList<SwigluForwardArgs> cuda_kernels<SwigluForwardArgs>() { return {}; }
template <> KernelList<SwigluBackwardArgs> cuda_kernels<SwigluBackwardArgs>() { return {}; }
template <> KernelList<EmbeddingForwardArgs> cuda_kernels<EmbeddingForwardArgs>() { return {}; }
template <> KernelList<EmbeddingBackwardArgs> cuda_kernels<EmbeddingBackwardArgs>() { return {}; }
template <> KernelList<CrossEntropyForwardArgs> cuda_kernels<CrossEntropyForwardArgs>() { return {}; }
template <> KernelList<CrossEntropyBackwardArgs> cuda_kernels<CrossEntropyBackwardArgs>() { return {}; }
template <> KernelList<OptimizerScalarsArgs> cuda_kernels<OptimizerScalarsArgs>() { return {}; }
template <> KernelList<AdamWArgs> cuda_kernels<AdamWArgs>() { return {}; }
template <> KernelList<StartsFromEosArgs> cuda_kernels<StartsFromEosArgs>() { return {}; }
template <> KernelList<DocumentIdsArgs> cuda_kernels<DocumentIdsArgs>() { return {}; }
template <> KernelList<StartsFromIdsArgs> cuda_kernels<StartsFromIdsArgs>() { return {}; }
template <> KernelList<PositionsArgs> cuda_kernels<PositionsArgs>() { return {}; }
template <> KernelList<TileRangesArgs> cuda_kernels<TileRangesArgs>() { return {}; }

}  // namespace quire
