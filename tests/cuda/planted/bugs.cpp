// One planted bug per run: `planted_bugs NAME` multiplies matrices on the emulated GPU as a training step would (upload by a second stream, a kernel with two
// buffers in shared memory, a product of cuBLASLt) with the bug of that name. Exit 0 and "right" where the result is, else 3 and what shows. Under a sanitizer
// the report names the lines that end in `// seen: NAME`.
#include <cublasLt.h>
#include <gpu.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "emulation.h"
#include "runtime/cuda/libraries.h"

namespace {

constexpr int rows = 64, columns = 16, depth = 64, step = 16, threads = 128;
constexpr uint32_t a_bytes = rows * step * 2, b_bytes = columns * step * 2, buffer_bytes = a_bytes + b_bytes;

/// c [64, 16] = a [64, depth] b [16, depth]^T.
__global__ void multiply(const gpu::bf16* a, const gpu::bf16* b, float* c) {
  DYNAMIC_SMEM(memory);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const uint32_t base = gpu::smem_addr(memory);
  const auto fetch = [&](int at, uint32_t buffer) {
    gpu::cp_async16(buffer + static_cast<uint32_t>(thread) * 16, a + thread / 2 * depth + at + thread % 2 * 8, 16);  // seen: buffer_reused_early
    if (thread < 32) gpu::cp_async16(buffer + a_bytes + static_cast<uint32_t>(thread) * 16, b + thread / 2 * depth + at + thread % 2 * 8, 16);
    gpu::cp_async_commit();
  };
  float first[4] = {}, second[4] = {};
  fetch(0, base);
  for (int at = 0; at < depth; at += step) {
    const uint32_t buffer = base + static_cast<uint32_t>(at / step % 2) * buffer_bytes;
    if (at + step < depth) {
      fetch(at + step, base + static_cast<uint32_t>(at / step % 2 ^ 1) * buffer_bytes);
      gpu::cp_async_wait<1>();  // seen: missing_event_wait
    } else {
      gpu::cp_async_wait<0>();  // seen: missing_event_wait
    }
    if (!gpu::planted("missing_barrier")) __syncthreads();  // what others copied is here
    uint32_t af[4], bf[4];
    gpu::ldmatrix_x4(af, buffer + static_cast<uint32_t>(warp * 16 + lane % 16) * 32 + static_cast<uint32_t>(lane / 16) * 16);  // seen: missing_barrier
    const int row_of_b = lane % 8 + lane / 16 * 8;
    gpu::ldmatrix_x4(bf, buffer + a_bytes + static_cast<uint32_t>(row_of_b * 32 + lane / 8 % 2 * 16));  // seen: missing_barrier
    gpu::mma_16816(first, af, bf[0], bf[1]);
    const int exchanged = gpu::planted("wrong_fragment") ? 1 : 0;
    gpu::mma_16816(second, af, bf[2 + exchanged], bf[3 - exchanged]);
    if (!gpu::planted("buffer_reused_early")) __syncthreads();  // nobody reads this buffer any more
  }
  for (int i = 0; i < 4; ++i) {
    float* const to = c + (warp * 16 + lane / 4 + i / 2 * 8) * columns + lane % 4 * 2 + i % 2;
    to[0] = first[i];
    to[8] = second[i];
  }
}

/// Marks every row of the block in shared memory, then counts the marks.
__global__ void count_rows(int* count) {
  DYNAMIC_SMEM(memory);
  int* const marks = reinterpret_cast<int*>(memory);
  marks[threadIdx.x] = 1;  // seen: shared_buffer_short
  __syncthreads();
  if (threadIdx.x != 0) return;
  int sum = 0;
  for (unsigned i = 0; i < blockDim.x; ++i) sum += marks[i];
  *count = sum;
}

__global__ void widen(const gpu::bf16* from, float* to, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const uint16_t bits = reinterpret_cast<const uint16_t*>(from)[i];  // seen: missing_event_wait use_after_free
  to[i] = gpu::bf16_low(bits);
}

template <class T>
T* allocate(int count) {
  void* memory = nullptr;
  cudaMalloc(&memory, static_cast<size_t>(count) * sizeof(T));
  return static_cast<T*>(memory);
}

std::vector<gpu::bf16> matrix(int count, int factor) {
  std::vector<gpu::bf16> values(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) values[static_cast<size_t>(i)] = __float2bfloat16(static_cast<float>(i * factor % 13 - 6));
  return values;
}

/// d [rows, columns] = a b^T of f32 by cuBLASLt.
cublasStatus_t library_product(cudaStream_t stream, const float* a, const float* b, float* d) {
  const quire::CublasLt& lt = quire::cublaslt();
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t layouts[3];
  lt.cublasLtCreate(&handle);
  lt.cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const int32_t transpose = CUBLAS_OP_T, by_rows = CUBLASLT_ORDER_ROW;
  lt.cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSB, &transpose, sizeof transpose);
  const int sizes[3][2] = {{rows, depth}, {columns, depth}, {rows, columns}};
  for (int i = 0; i < 3; ++i) {
    lt.cublasLtMatrixLayoutCreate(&layouts[i], CUDA_R_32F, static_cast<uint64_t>(sizes[i][0]), static_cast<uint64_t>(sizes[i][1]), sizes[i][1]);
    lt.cublasLtMatrixLayoutSetAttribute(layouts[i], CUBLASLT_MATRIX_LAYOUT_ORDER, &by_rows, sizeof by_rows);
  }
  const float one = 1, zero = 0;
  const cublasStatus_t status =
      lt.cublasLtMatmul(handle, product, &one, a, layouts[0], b, layouts[1], &zero, d, layouts[2], d, layouts[2], nullptr, nullptr, 0, stream);
  for (cublasLtMatrixLayout_t const layout : layouts) lt.cublasLtMatrixLayoutDestroy(layout);
  lt.cublasLtMatmulDescDestroy(product);
  lt.cublasLtDestroy(handle);
  return status;
}

/// What shows of the bug, "" where everything is right.
std::string run() {
  cudaStream_t compute = nullptr, transfer = nullptr;
  cudaEvent_t arrived = nullptr;
  cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&transfer, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&arrived, cudaEventDisableTiming);
  const std::vector<gpu::bf16> a = matrix(rows * depth, 7), b = matrix(columns * depth, 5);
  gpu::bf16 *const device_a = allocate<gpu::bf16>(rows * depth), *const device_b = allocate<gpu::bf16>(columns * depth),
                   *const device_a2 = allocate<gpu::bf16>(rows * depth);
  float *const wide_a = allocate<float>(rows * depth), *const wide_b = allocate<float>(columns * depth);
  float *const ours = allocate<float>(rows * columns), *const library = allocate<float>(rows * columns);
  int* const count = allocate<int>(1);

  // One staging buffer for both matrices: the second waits until the first has left it.
  gpu::bf16* staging = nullptr;
  cudaMallocHost(reinterpret_cast<void**>(&staging), a.size() * 2);
  std::memcpy(staging, a.data(), a.size() * 2);
  cudaMemcpyAsync(device_a, staging, a.size() * 2, cudaMemcpyHostToDevice, transfer);
  cudaMemcpyAsync(device_a2, staging, a.size() * 2, cudaMemcpyHostToDevice, transfer);
  cudaEventRecord(arrived, transfer);
  if (!gpu::planted("staging_reused_early")) cudaEventSynchronize(arrived);
  std::memcpy(staging, b.data(), b.size() * 2);  // seen: staging_reused_early
  cudaMemcpyAsync(device_b, staging, b.size() * 2, cudaMemcpyHostToDevice, transfer);
  cudaEventRecord(arrived, transfer);
  if (!gpu::planted("missing_event_wait")) cudaStreamWaitEvent(compute, arrived, 0);

  gpu::launch(widen, dim3(rows * depth / 64), dim3(64), 0, compute, device_a, wide_a, rows * depth);
  gpu::launch(widen, dim3(columns * depth / 64), dim3(64), 0, compute, device_b, wide_b, columns * depth);
  gpu::launch(multiply, dim3(1), dim3(threads), 2 * buffer_bytes, compute, device_a, device_b, ours);
  gpu::launch(count_rows, dim3(1), dim3(rows), rows * sizeof(int) - (gpu::planted("shared_buffer_short") ? 16 : 0), compute, count);
  const std::vector<float> on_host(static_cast<size_t>(columns * depth), 1.0f);
  const cublasStatus_t status = library_product(compute, wide_a, gpu::planted("host_pointer") ? on_host.data() : wide_b, library);
  if (gpu::planted("use_after_free")) cudaFree(device_a2);
  gpu::launch(widen, dim3(rows * depth / 64), dim3(64), 0, compute, device_a2, wide_a, rows * depth);
  if (!gpu::planted("use_after_free")) cudaFree(device_a2);

  std::vector<float> seen(static_cast<size_t>(rows * columns)), expected(seen.size()), again(a.size());
  int counted = 0;
  cudaMemcpyAsync(seen.data(), ours, seen.size() * 4, cudaMemcpyDeviceToHost, compute);
  cudaMemcpyAsync(expected.data(), library, expected.size() * 4, cudaMemcpyDeviceToHost, compute);
  cudaMemcpyAsync(again.data(), wide_a, again.size() * 4, cudaMemcpyDeviceToHost, compute);
  cudaMemcpyAsync(&counted, count, sizeof counted, cudaMemcpyDeviceToHost, compute);
  cudaStreamSynchronize(transfer);
  const std::string failure = emulation::failure();
  emulation::recover();
  for (void* const memory : {static_cast<void*>(device_a), static_cast<void*>(device_b), static_cast<void*>(wide_a), static_cast<void*>(wide_b),
                             static_cast<void*>(ours), static_cast<void*>(library), static_cast<void*>(count)})
    cudaFree(memory);
  cudaFreeHost(staging);
  cudaEventDestroy(arrived);
  cudaStreamDestroy(transfer);
  cudaStreamDestroy(compute);

  if (status != CUBLAS_STATUS_SUCCESS) return "cublasLtMatmul returns " + std::to_string(status);
  if (!failure.empty()) return failure;
  if (counted != rows) return "rows are not counted";
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) {
      float sum = 0;
      for (int k = 0; k < depth; ++k) sum += gpu::to_float(a[static_cast<size_t>(i * depth + k)]) * gpu::to_float(b[static_cast<size_t>(j * depth + k)]);
      if (!(seen[static_cast<size_t>(i * columns + j)] == sum)) return "the kernel's product is wrong";
      if (!(expected[static_cast<size_t>(i * columns + j)] == sum)) return "the library's product is wrong";
    }
  for (size_t i = 0; i < a.size(); ++i)
    if (!(again[i] == gpu::to_float(a[i]))) return "what was freed reads otherwise";
  return "";
}

}  // namespace

int main(int count, char** arguments) {
  const std::string bug = count > 1 ? arguments[1] : "none";
  const emulation::Order orders[] = {emulation::Order::ascending, emulation::Order::random_lanes};
  for (const auto order : orders) {
    emulation::order(order, 3);
    const emulation::Planted planted(bug.c_str());
    std::string shown;
    try {
      shown = run();
    } catch (const std::exception& error) {
      shown = error.what();
    }
    if (shown.empty()) continue;
    std::printf("%s\n", shown.c_str());
    emulation::recover();
    return 3;
  }
  std::printf("right\n");
  return 0;
}
