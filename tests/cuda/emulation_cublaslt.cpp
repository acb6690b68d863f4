// Products of the emulated cuBLASLt: every layout, algorithms that are chosen and replayed, what is refused.
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "check.h"
#include "on_device.h"
#include "runtime/cuda/libraries.h"

namespace quire::test {

namespace {

/// One product's descriptors; a and b may be transposed and lie by rows or by columns.
struct Descriptors {
  Descriptors(int m, int n, int k, bool transpose_a, bool transpose_b, bool by_rows, cudaDataType type, int extra = 0) : lt(cublaslt()) {
    lt.cublasLtCreate(&handle);
    lt.cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const int32_t operations[] = {transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N};
    lt.cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &operations[0], sizeof(int32_t));
    lt.cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSB, &operations[1], sizeof(int32_t));
    const auto layout = [&](cublasLtMatrixLayout_t& made, int rows, int columns, cudaDataType of) {
      lt.cublasLtMatrixLayoutCreate(&made, of, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), (by_rows ? columns : rows) + extra);
      const int32_t order = by_rows ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
      lt.cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order);
    };
    layout(a, transpose_a ? k : m, transpose_a ? m : k, type);
    layout(b, transpose_b ? n : k, transpose_b ? k : n, type);
    layout(d, m, n, CUDA_R_32F);
    lt.cublasLtMatmulPreferenceCreate(&preference);
  }
  ~Descriptors() {
    lt.cublasLtMatmulPreferenceDestroy(preference);
    for (cublasLtMatrixLayout_t const each : {a, b, d}) lt.cublasLtMatrixLayoutDestroy(each);
    lt.cublasLtMatmulDescDestroy(product);
    lt.cublasLtDestroy(handle);
  }
  const CublasLt& lt;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
};

/// Small whole numbers: sums are exact.
template <class T>
std::vector<T> numbers(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> values(count);
  for (T& value : values) value = T(static_cast<float>(random() % 9) - 4);
  return values;
}

template <class T>
void check_product(int m, int n, int k, bool transpose_a, bool transpose_b, bool by_rows) {
  OnDevice device;
  const int extra = 3;
  Descriptors given(m, n, k, transpose_a, transpose_b, by_rows, std::is_same_v<T, float> ? CUDA_R_32F : CUDA_R_16BF, extra);
  const auto place = [&](int row, int column, int rows, int columns) {
    return static_cast<size_t>(by_rows ? row * (columns + extra) + column : column * (rows + extra) + row);
  };
  const auto a = numbers<T>(static_cast<size_t>((m + extra) * (k + extra)), 1), b = numbers<T>(static_cast<size_t>((n + extra) * (k + extra)), 2);
  const auto before = numbers<float>(static_cast<size_t>((m + extra) * (n + extra)), 3);
  float* const d = device.upload(before);
  const float alpha = 2, beta = 1;
  BOOST_TEST(given.lt.cublasLtMatmul(given.handle, given.product, &alpha, device.upload(a), given.a, device.upload(b), given.b, &beta, d, given.d, d,
                                     given.d, nullptr, nullptr, 0, device.stream) == CUBLAS_STATUS_SUCCESS);
  std::vector<float> expected = before;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j)
      for (int x = 0; x < k; ++x)
        expected[place(i, j, m, n)] += 2 * static_cast<float>(a[transpose_a ? place(x, i, k, m) : place(i, x, m, k)]) *
                                       static_cast<float>(b[transpose_b ? place(j, x, n, k) : place(x, j, k, n)]);
  BOOST_TEST((device.download(d, before.size()) == expected), m << " " << n << " " << k << " " << transpose_a << transpose_b << by_rows);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(emulation_cublaslt)

BOOST_AUTO_TEST_CASE(products_of_every_layout_are_right) {
  for (const bool transpose_a : {false, true})
    for (const bool transpose_b : {false, true})
      for (const bool by_rows : {false, true}) {
        check_product<float>(5, 70, 33, transpose_a, transpose_b, by_rows);
        check_product<__nv_bfloat16>(66, 3, 17, transpose_a, transpose_b, by_rows);
      }
}

BOOST_AUTO_TEST_CASE(algorithms_are_offered_recorded_and_replayed) {
  OnDevice device;
  Descriptors given(8, 8, 301, false, false, true, CUDA_R_32F);
  cublasLtMatmulHeuristicResult_t offered[8];
  int found = 0;
  const auto ask = [&](uint64_t workspace) {
    given.lt.cublasLtMatmulPreferenceSetAttribute(given.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    return given.lt.cublasLtMatmulAlgoGetHeuristic(given.handle, given.product, given.a, given.b, given.d, given.d, given.preference, 8, offered, &found);
  };
  BOOST_TEST(ask(0) == CUBLAS_STATUS_SUCCESS);
  BOOST_TEST(found == 1);  // the others need a workspace
  BOOST_TEST(ask(1 << 20) == CUBLAS_STATUS_SUCCESS);
  BOOST_TEST(found == 3);

  std::vector<float> a(8 * 301, 0.1f), b(301 * 8, 0.3f);
  float* const on_device[] = {device.upload(a), device.upload(b), device.empty<float>(64)};
  char* const workspace = device.empty<char>(1 << 20);
  const auto multiply = [&](const cublasLtMatmulAlgo_t& algorithm) {
    const float alpha = 1, beta = 0;
    BOOST_TEST(given.lt.cublasLtMatmul(given.handle, given.product, &alpha, on_device[0], given.a, on_device[1], given.b, &beta, on_device[2],
                                       given.d, on_device[2], given.d, &algorithm, workspace, 1 << 20, device.stream) == CUBLAS_STATUS_SUCCESS);
    return device.download(on_device[2], 64);
  };
  BOOST_TEST((multiply(offered[0].algo) != multiply(offered[1].algo)));  // algorithms differ in bits
  // What a record needs: the number, and the attributes.
  int32_t id = 0;
  uint32_t parts = 0;
  size_t written = 0;
  given.lt.cublasLtMatmulAlgoConfigGetAttribute(&offered[1].algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &written);
  given.lt.cublasLtMatmulAlgoConfigGetAttribute(&offered[1].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts, &written);
  cublasLtMatmulAlgo_t again;
  BOOST_TEST(given.lt.cublasLtMatmulAlgoInit(given.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, id,
                                             &again) == CUBLAS_STATUS_SUCCESS);
  given.lt.cublasLtMatmulAlgoConfigSetAttribute(&again, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts);
  cublasLtMatmulHeuristicResult_t checked;
  BOOST_TEST(given.lt.cublasLtMatmulAlgoCheck(given.handle, given.product, given.a, given.b, given.d, given.d, &again, &checked) == CUBLAS_STATUS_SUCCESS);
  BOOST_TEST((multiply(again) == multiply(offered[1].algo)));
}

BOOST_AUTO_TEST_CASE(what_a_gpu_can_not_read_is_refused) {
  OnDevice device;
  Descriptors given(8, 8, 8, false, false, true, CUDA_R_32F);
  std::vector<float> host(64, 1.0f);
  float* const good = device.upload(host);
  const auto multiply = [&](const float* a, const float* b, float* d, void* workspace) {
    const float alpha = 1, beta = 0;
    return given.lt.cublasLtMatmul(given.handle, given.product, &alpha, a, given.a, b, given.b, &beta, d, given.d, d, given.d, nullptr, workspace,
                                   workspace == nullptr ? 0 : 64, device.stream);
  };
  BOOST_TEST(multiply(good, good, good, nullptr) == CUBLAS_STATUS_SUCCESS);
  BOOST_TEST(multiply(host.data(), good, good, nullptr) == CUBLAS_STATUS_INVALID_VALUE);  // memory of the host
  BOOST_TEST(multiply(good, good, host.data(), nullptr) == CUBLAS_STATUS_INVALID_VALUE);
  BOOST_TEST(multiply(good, good + 1, good, nullptr) == CUBLAS_STATUS_INVALID_VALUE);  // runs past its end
  BOOST_TEST(multiply(good, good, good, host.data()) == CUBLAS_STATUS_INVALID_VALUE);
  emulation::fail_call("cublasLtMatmul", 1, CUBLAS_STATUS_EXECUTION_FAILED);
  BOOST_TEST(multiply(good, good, good, nullptr) == CUBLAS_STATUS_EXECUTION_FAILED);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
