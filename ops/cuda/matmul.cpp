#include "ops/cuda/matmul.h"

namespace quire {

bool matmul_type_can_run(const MatmulArgs& args) {
  return (args.type == DType::f32 && args.c_type == DType::f32) || (args.type == DType::bf16 && (args.c_type == DType::bf16 || args.c_type == DType::f32));
}

template <>
KernelList<MatmulArgs> cuda_kernels<MatmulArgs>() {
  static constexpr Kernel<MatmulArgs> list[] = {
    {"cublaslt", matmul_type_can_run, matmul_cublaslt},
    {"wgmma", matmul_wgmma_can_run, matmul_wgmma},
    {"mma", matmul_mma_can_run, matmul_mma},
    {"tiles", matmul_type_can_run, matmul_tiles},
  };
  return list;
}

}  // namespace quire
