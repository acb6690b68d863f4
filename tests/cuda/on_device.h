// For tests of the emulated machine itself: device 0 as a test begins, one stream, and memory that goes away with it.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "emulation.h"

namespace quire::test {

class OnDevice {
 public:
  OnDevice() {
    cudaSetDevice(0);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  ~OnDevice() {
    emulation::recover();
    for (void* const memory : given_) cudaFree(memory);
    cudaStreamDestroy(stream);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  template <class T>
  T* empty(size_t count) {
    void* memory = nullptr;
    cudaMalloc(&memory, count * sizeof(T));
    given_.push_back(memory);
    return static_cast<T*>(memory);
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    T* const memory = empty<T>(values.size());
    cudaMemcpyAsync(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream);
    return memory;
  }
  /// Waits; default values where the device has failed.
  template <class T>
  std::vector<T> download(const T* from, size_t count) {
    std::vector<T> values(count);
    cudaMemcpyAsync(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream);
    return values;
  }
  /// Waits for the stream; what failed in it, "" for nothing.
  std::string failure() {
    cudaStreamSynchronize(stream);
    return emulation::failure(0);
  }

  emulation::Fresh fresh;
  cudaStream_t stream = nullptr;

 private:
  std::vector<void*> given_;
};

inline constexpr emulation::Order all_orders[] = {emulation::Order::ascending, emulation::Order::descending, emulation::Order::random,
                                                  emulation::Order::random_lanes};

}  // namespace quire::test
