// Operations that have no CUDA kernel yet: dispatch refuses them by name.
#include "ops/kernels.h"

namespace quire {

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
