// Functions of CUDA's libraries, from libraries loaded when first used.
#pragma once
#include <cublasLt.h>

namespace quire {

#define QUIRE_CUBLASLT_FUNCTIONS(F)                                                                                                                      \
  F(cublasLtCreate) F(cublasLtDestroy) F(cublasLtGetVersion) F(cublasLtGetStatusName) F(cublasLtMatmul)                                                 \
  F(cublasLtMatmulAlgoGetHeuristic) F(cublasLtMatmulAlgoInit) F(cublasLtMatmulAlgoCheck) F(cublasLtMatmulAlgoConfigGetAttribute)                         \
  F(cublasLtMatmulAlgoConfigSetAttribute) F(cublasLtMatmulDescCreate) F(cublasLtMatmulDescDestroy) F(cublasLtMatmulDescSetAttribute)                     \
  F(cublasLtMatmulDescGetAttribute) F(cublasLtMatrixLayoutCreate) F(cublasLtMatrixLayoutDestroy) F(cublasLtMatrixLayoutSetAttribute)                     \
  F(cublasLtMatrixLayoutGetAttribute) F(cublasLtMatmulPreferenceCreate) F(cublasLtMatmulPreferenceDestroy) F(cublasLtMatmulPreferenceSetAttribute)

/// The functions of cuBLASLt under their own names.
struct CublasLt {
#define QUIRE_DECLARE(name) decltype(&::name) name;
  QUIRE_CUBLASLT_FUNCTIONS(QUIRE_DECLARE)
#undef QUIRE_DECLARE
};
/// Loads the library at the first call. Throws UnsupportedError where it is missing or too old.
const CublasLt& cublaslt();
/// Throws UnsupportedError (found, needed) for a version that is too old. `found` as cublasLtGetVersion says.
void check_cublaslt_version(size_t found);

}  // namespace quire
