// The emulated machine: threads, barriers, meetings of lanes, and what it says of kernels that break the rules.
#include <gpu.h>

#include "check.h"
#include "emulation.h"

namespace quire::test {

namespace {

__global__ void add_numbers(const float* a, const float* b, float* sum, int64_t n) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) sum[i] = a[i] + b[i];
}

/// Sums 256 numbers per block through shared memory.
__global__ void sum_block(const int* in, int* out) {
  DYNAMIC_SMEM(memory);
  int* const part = reinterpret_cast<int*>(memory);
  const int i = static_cast<int>(threadIdx.x);
  part[i] = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (int half = static_cast<int>(blockDim.x) / 2; half > 0; half /= 2) {
    if (!gpu::planted("test.missing_barrier")) __syncthreads();
    if (i < half) part[i] += part[i + half];
  }
  if (i == 0) out[blockIdx.x] = part[0];
}

/// Memory of device 0 with one stream.
struct OnDevice {
  OnDevice() {
    cudaSetDevice(0);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  ~OnDevice() {
    cudaStreamSynchronize(stream);
    for (void* const memory : given) cudaFree(memory);
    cudaStreamDestroy(stream);
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    T* memory = empty<T>(values.size());
    cudaMemcpyAsync(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream);
    return memory;
  }
  template <class T>
  T* empty(size_t count) {
    void* memory = nullptr;
    cudaMalloc(&memory, count * sizeof(T));
    given.push_back(memory);
    return static_cast<T*>(memory);
  }
  template <class T>
  std::vector<T> download(const T* from, size_t count) {
    std::vector<T> values(count);
    cudaMemcpyAsync(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream);
    return values;
  }
  emulation::Fresh fresh;
  cudaStream_t stream = nullptr;
  std::vector<void*> given;
};

std::vector<int> count_up(size_t n) {
  std::vector<int> values(n);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(emulation_machine)

BOOST_AUTO_TEST_CASE(every_thread_runs_once) {
  OnDevice device;
  const size_t n = 131072;
  const float* a = device.upload(std::vector<float>(n, 1.5f));
  float* sum = device.empty<float>(n);
  gpu::launch(add_numbers, dim3(n / 256), dim3(256), 0, device.stream, a, a, sum, static_cast<int64_t>(n));
  BOOST_TEST((device.download(sum, n) == std::vector<float>(n, 3.0f)));
  BOOST_TEST(emulation::counters().kernels == 1);
}

BOOST_AUTO_TEST_CASE(barriers_order_threads_in_every_order) {
  OnDevice device;
  const std::vector<int> values = count_up(4 * 256);
  for (const char* bug : {"", "test.missing_barrier"}) {
    int right = 0;
    for (const auto order : {emulation::Order::ascending, emulation::Order::descending, emulation::Order::random, emulation::Order::random_lanes}) {
      emulation::order(order, 3);
      const emulation::Planted planted(bug);
      int* const out = device.empty<int>(4);
      gpu::launch(sum_block, dim3(4), dim3(256), 256 * sizeof(int), device.stream, device.upload(values), out);
      right += device.download(out, 4) == std::vector<int>{32640, 98176, 163712, 229248} ? 1 : 0;
    }
    if (*bug == 0) BOOST_TEST(right == 4);
    else BOOST_TEST(right < 2, "the missing barrier shows");
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
