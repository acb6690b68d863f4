#include "ops/cuda/tensor_maps.h"

#include <cudaTypedefs.h>

#include "runtime/cuda/device.h"
#include "runtime/error.h"

namespace quire {
namespace {

/// The driver's function, looked up once: an extension of a device.
class MapEncoder final : public CudaExtension {
 public:
  explicit MapEncoder(CudaDevice&) {
    cudaDriverEntryPointQueryResult result{};
    void* found = nullptr;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result), "cudaGetDriverEntryPointByVersion");
    if (result != cudaDriverEntryPointSuccess || found == nullptr)
      fail<UnsupportedError>("matmul", "the driver has no cuTensorMapEncodeTiled, which tiles of matrices are read through; needed: a driver for CUDA 12.0 or newer");
    encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }
  PFN_cuTensorMapEncodeTiled_v12000 encode;
};

}  // namespace

void require_capability_90(Rank& rank, const char* kernel) {
  const int capability = cuda(rank).compute_capability();
  if (capability != 90)
    fail<UnsupportedError>("matmul", "the kernel '{}' needs compute capability 9.0; this device has {}.{}; way out: 'cublaslt' or 'mma'", kernel, capability / 10, capability % 10);
}

CUtensorMap tensor_map(Rank& rank, const void* data, int64_t lines, int64_t columns, int64_t stride, int box_lines) {
  CUtensorMap made{};
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(lines)}, strides[] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_lines)}, each[] = {1, 1};
  const CUresult status = cuda(rank).extension<MapEncoder>().encode(&made, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, strides, box, each,
                                                                    CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                                                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) fail<DeviceError>("cuda", "cuTensorMapEncodeTiled: error {} for {} lines of {} bf16, {} apart", static_cast<int>(status), lines, columns, stride);
  return made;
}

}  // namespace quire
