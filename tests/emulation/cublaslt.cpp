// cuBLASLt with the real library's descriptors, which work without a GPU, and products computed here.
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "libraries.h"
#include "products.h"
#include "state.h"
#include "streams.h"

namespace emulation {

namespace {

/// What AlgoInit and AlgoGetHeuristic write into the opaque bytes: an algorithm and its configuration.
struct Algorithm {
  uint64_t magic;
  int32_t id;
  uint32_t tile, stages, split_k, reduction, swizzle, custom, inner_shape, cluster_shape;
  uint32_t unused;  ///< of what would be padding: all bytes are recorded
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t) && std::has_unique_object_representations_v<Algorithm>);
constexpr uint64_t algorithm_magic = 0x51c3a70b24d9e681;
constexpr int known_algorithms[] = {66, 67, 21};  ///< best first

Algorithm read(const cublasLtMatmulAlgo_t* from) {
  Algorithm algorithm;
  std::memcpy(&algorithm, from, sizeof algorithm);
  return algorithm;
}
void write(cublasLtMatmulAlgo_t* to, const Algorithm& algorithm) {
  std::memset(static_cast<void*>(to), 0, sizeof *to);
  std::memcpy(static_cast<void*>(to), &algorithm, sizeof algorithm);
}
bool is_known(int id) { return std::find(std::begin(known_algorithms), std::end(known_algorithms), id) != std::end(known_algorithms); }
/// Bytes. The custom option of an emulated algorithm is the MiB that it needs.
uint64_t workspace_of(const Algorithm& algorithm) {
  return (algorithm.split_k > 1 ? uint64_t{algorithm.split_k} << 16 : 0) + (uint64_t{algorithm.custom} << 20);
}

/// The real library's function of this name.
void* real(const char* name) {
  static void* const library = [] {
    void* loaded = dlopen(QUIRE_CUDA_TOOLKIT "/lib64/libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    return loaded != nullptr ? loaded : dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
  }();
  return library == nullptr ? nullptr : dlsym(library, name);
}
#define EMULATION_REAL(name) reinterpret_cast<decltype(&::name)>(real(#name))

cublasStatus_t planned(const char* function) { return static_cast<cublasStatus_t>(planned_failure(function)); }

cublasStatus_t create(cublasLtHandle_t* handle) {
  if (const cublasStatus_t wrong = planned("cublasLtCreate"); wrong != CUBLAS_STATUS_SUCCESS) return wrong;
  *handle = reinterpret_cast<cublasLtHandle_t>(new char);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<char*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
T layout_attribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute) {
  T value{};
  size_t written = 0;
  EMULATION_REAL(cublasLtMatrixLayoutGetAttribute)(layout, attribute, &value, sizeof value, &written);
  return value;
}
template <class T>
T product_attribute(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute) {
  T value{};
  size_t written = 0;
  EMULATION_REAL(cublasLtMatmulDescGetAttribute)(product, attribute, &value, sizeof value, &written);
  return value;
}

Matrix matrix_of(cublasLtMatrixLayout_t layout) {
  Matrix m;
  m.bf16 = layout_attribute<uint32_t>(layout, CUBLASLT_MATRIX_LAYOUT_TYPE) == CUDA_R_16BF;
  m.known = m.bf16 || layout_attribute<uint32_t>(layout, CUBLASLT_MATRIX_LAYOUT_TYPE) == CUDA_R_32F;
  m.rows = static_cast<int64_t>(layout_attribute<uint64_t>(layout, CUBLASLT_MATRIX_LAYOUT_ROWS));
  m.columns = static_cast<int64_t>(layout_attribute<uint64_t>(layout, CUBLASLT_MATRIX_LAYOUT_COLS));
  m.stride = layout_attribute<int64_t>(layout, CUBLASLT_MATRIX_LAYOUT_LD);
  m.batch = layout_attribute<int32_t>(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
  m.batch_stride = layout_attribute<int64_t>(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
  const auto order = layout_attribute<int32_t>(layout, CUBLASLT_MATRIX_LAYOUT_ORDER);
  m.row_major = order == CUBLASLT_ORDER_ROW;
  m.known = m.known && (m.row_major || order == CUBLASLT_ORDER_COL) && m.stride >= (m.row_major ? m.columns : m.rows);
  return m;
}

/// What both AlgoGetHeuristic and Matmul check.
cublasStatus_t describe(Product& product, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                        cublasLtMatrixLayout_t d) {
  product.a = matrix_of(a);
  product.b = matrix_of(b);
  product.c = matrix_of(c);
  product.d = matrix_of(d);
  if (product_attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T) product.a = product.a.transposed();
  if (product_attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_T) product.b = product.b.transposed();
  product.device_scalars = product_attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_POINTER_MODE) == CUBLASLT_POINTER_MODE_DEVICE;
  for (const Matrix* m : {&product.a, &product.b, &product.c, &product.d})
    if (!m->known || m->batch != product.d.batch) return CUBLAS_STATUS_INVALID_VALUE;
  if (product.a.columns != product.b.rows || product.a.rows != product.d.rows || product.b.columns != product.d.columns || product.c.rows != product.d.rows ||
      product.c.columns != product.d.columns)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (product_attribute<uint32_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE) != CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto compute = product_attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE);
  const auto scale = product_attribute<int32_t>(description, CUBLASLT_MATMUL_DESC_SCALE_TYPE);
  if ((compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_PEDANTIC) || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (product.a.bf16 != product.b.bf16 || product.c.bf16 != product.d.bf16 || (product.d.bf16 && !product.a.bf16)) return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t algo_init(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t, cudaDataType_t, cudaDataType_t, cudaDataType_t, cudaDataType_t,
                         int id, cublasLtMatmulAlgo_t* algorithm) {
  if (const cublasStatus_t wrong = planned("cublasLtMatmulAlgoInit"); wrong != CUBLAS_STATUS_SUCCESS) return wrong;
  if (!is_known(id)) return CUBLAS_STATUS_INVALID_VALUE;
  write(algorithm, {algorithm_magic, id, 0, 0, 1, 0, 0, 0, 0, 0});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t examine(cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                       const cublasLtMatmulAlgo_t* chosen, cublasLtMatmulHeuristicResult_t* result) {
  Product product;
  if (const cublasStatus_t wrong = describe(product, description, a, b, c, d); wrong != CUBLAS_STATUS_SUCCESS) return wrong;
  const Algorithm algorithm = read(chosen);
  if (algorithm.magic != algorithm_magic || !is_known(algorithm.id) || algorithm.split_k == 0) return CUBLAS_STATUS_INVALID_VALUE;
  *result = {};
  result->algo = *chosen;
  result->workspaceSize = workspace_of(algorithm);
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t algo_check(cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                          cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* chosen,
                          cublasLtMatmulHeuristicResult_t* result) {
  if (const cublasStatus_t wrong = planned("cublasLtMatmulAlgoCheck"); wrong != CUBLAS_STATUS_SUCCESS) return wrong;
  return examine(description, a, b, c, d, chosen, result);
}

cublasStatus_t heuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
                         cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = 0;
  if (const cublasStatus_t wrong = planned("cublasLtMatmulAlgoGetHeuristic"); wrong != CUBLAS_STATUS_SUCCESS) return wrong;
  uint64_t workspace = 0;
  size_t written = 0;
  EMULATION_REAL(cublasLtMatmulPreferenceGetAttribute)(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace, &written);
  for (const int id : known_algorithms) {
    if (*found == wanted) break;
    cublasLtMatmulAlgo_t algorithm;
    write(&algorithm, {algorithm_magic, id, static_cast<uint32_t>(15 + id % 7), 4, id == 67 ? 2u : 1u, id == 67 ? 2u : 0u, 0, id == 21 ? 1u : 0u, 0, 0});
    const cublasStatus_t status = examine(description, a, b, c, d, &algorithm, &results[*found]);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (results[*found].workspaceSize <= workspace) ++*found;
  }
  return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/// The place of an attribute of an algorithm; null for one that is not emulated.
void* attribute_of(Algorithm& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute, size_t& bytes) {
  bytes = sizeof(uint32_t);
  switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_ID: return &algorithm.id;
    case CUBLASLT_ALGO_CONFIG_TILE_ID: return &algorithm.tile;
    case CUBLASLT_ALGO_CONFIG_STAGES_ID: return &algorithm.stages;
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM: return &algorithm.split_k;
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: return &algorithm.reduction;
    case CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING: return &algorithm.swizzle;
    case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION: return &algorithm.custom;
    case CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID: bytes = sizeof(uint16_t); return &algorithm.inner_shape;
    case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID: bytes = sizeof(uint16_t); return &algorithm.cluster_shape;
    default: return nullptr;
  }
}

cublasStatus_t algo_get(const cublasLtMatmulAlgo_t* from, cublasLtMatmulAlgoConfigAttributes_t attribute, void* value, size_t bytes, size_t* written) {
  Algorithm algorithm = read(from);
  size_t needed = 0;
  const void* const place = attribute_of(algorithm, attribute, needed);
  if (algorithm.magic != algorithm_magic || place == nullptr || bytes < needed) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, place, needed);
  if (written != nullptr) *written = needed;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t algo_set(cublasLtMatmulAlgo_t* to, cublasLtMatmulAlgoConfigAttributes_t attribute, const void* value, size_t bytes) {
  Algorithm algorithm = read(to);
  size_t needed = 0;
  void* const place = attribute_of(algorithm, attribute, needed);
  if (algorithm.magic != algorithm_magic || place == nullptr || bytes != needed || attribute == CUBLASLT_ALGO_CONFIG_ID) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(place, value, needed);
  write(to, algorithm);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t multiply(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                        const void* b, cublasLtMatrixLayout_t b_layout, const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                        cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* chosen, void* workspace, size_t workspace_bytes,
                        cudaStream_t stream_handle) {
  if (const cublasStatus_t wrong = planned("cublasLtMatmul"); wrong != CUBLAS_STATUS_SUCCESS) return wrong;
  if (has_failed(current_device())) return CUBLAS_STATUS_EXECUTION_FAILED;
  Product product;
  if (const cublasStatus_t wrong = describe(product, description, a_layout, b_layout, c_layout, d_layout); wrong != CUBLAS_STATUS_SUCCESS) return wrong;
  const std::shared_ptr<Stream> stream = stream_of(stream_handle);
  if (handle == nullptr || stream == nullptr || stream->device() != current_device()) return CUBLAS_STATUS_INVALID_VALUE;
  Algorithm algorithm{algorithm_magic, known_algorithms[0], 0, 0, 1, 0, 0, 0, 0, 0};
  if (chosen != nullptr) algorithm = read(chosen);
  if (algorithm.magic != algorithm_magic || !is_known(algorithm.id) || workspace_of(algorithm) > workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  product.parts = static_cast<int>(algorithm.split_k);
  product.a.data = const_cast<void*>(a);
  product.b.data = const_cast<void*>(b);
  product.c.data = const_cast<void*>(c);
  product.d.data = d;
  for (const Matrix* m : {&product.a, &product.b, &product.c, &product.d})
    if (!is_device_memory(m->data, m->bytes()) || reinterpret_cast<uintptr_t>(m->data) % (m->bf16 ? 2 : 4) != 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (workspace != nullptr && !is_device_memory(workspace, workspace_bytes)) return CUBLAS_STATUS_INVALID_VALUE;
  if (product.device_scalars) {
    if (!is_device_memory(alpha, sizeof(float)) || !is_device_memory(beta, sizeof(float))) return CUBLAS_STATUS_INVALID_VALUE;
    product.alpha_on_device = static_cast<const float*>(alpha);
    product.beta_on_device = static_cast<const float*>(beta);
  } else {
    if (is_device_memory(alpha, sizeof(float)) || is_device_memory(beta, sizeof(float))) return CUBLAS_STATUS_INVALID_VALUE;
    product.alpha = *static_cast<const float*>(alpha);
    product.beta = *static_cast<const float*>(beta);
  }
  ++counted().products;
  stream->push([=] {
    if (workspace != nullptr) std::memset(workspace, 0xff, workspace_bytes);  // the library owns it while it runs
    carry_out(product);
  });
  return CUBLAS_STATUS_SUCCESS;
}

/// The functions that stand in place of the real library's.
void* stand_in(const std::string& name) {
  static const std::map<std::string, void*> functions = {
      {"cublasLtCreate", reinterpret_cast<void*>(&create)},
      {"cublasLtDestroy", reinterpret_cast<void*>(&destroy)},
      {"cublasLtMatmul", reinterpret_cast<void*>(&multiply)},
      {"cublasLtMatmulAlgoGetHeuristic", reinterpret_cast<void*>(&heuristic)},
      {"cublasLtMatmulAlgoInit", reinterpret_cast<void*>(&algo_init)},
      {"cublasLtMatmulAlgoCheck", reinterpret_cast<void*>(&algo_check)},
      {"cublasLtMatmulAlgoConfigGetAttribute", reinterpret_cast<void*>(&algo_get)},
      {"cublasLtMatmulAlgoConfigSetAttribute", reinterpret_cast<void*>(&algo_set)},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

}  // namespace

Library cublaslt_library() {
  return {"libcublasLt.so", [] { return real("cublasLtGetVersion") != nullptr; },
          [](const char* name) { return stand_in(name) != nullptr ? stand_in(name) : real(name); }};
}

}  // namespace emulation
