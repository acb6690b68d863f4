// What launching kernels needs of a rank on a CUDA device, for .cu files: runtime/cuda/device.h says all there is, and costs nvcc several seconds a file.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/kernel.h"

namespace quire {

/// CudaDevice::stream, multiprocessors, compute_capability and copy of the rank's device.
cudaStream_t stream_of(Rank& rank);
int multiprocessors_of(Rank& rank);
int compute_capability_of(Rank& rank);
void copy_on_device(Rank& rank, const void* from, void* to, int64_t bytes);
/// To the rank's counted work of matrix products.
void count_flops(Rank& rank, int64_t flops);

/// A Workspace (runtime/memory.h) on the rank's stack: memory for a call's intermediate values.
class KernelWorkspace {
 public:
  explicit KernelWorkspace(Rank& rank);
  ~KernelWorkspace();
  KernelWorkspace(const KernelWorkspace&) = delete;
  KernelWorkspace& operator=(const KernelWorkspace&) = delete;
  /// `count` elements on the device, 64-byte aligned, uninitialised.
  template <class T> T* take(int64_t count) { return static_cast<T*>(take_bytes(count * static_cast<int64_t>(sizeof(T)))); }

 private:
  class Scope;
  void* take_bytes(int64_t bytes);
  Scope* scope_;
};

}  // namespace quire
