// A CUDA device as one rank uses it: a stream for all its work, pinned staging memory.
#pragma once
#include <cuda_runtime_api.h>

#include <deque>
#include <map>
#include <memory>
#include <typeindex>

#include "runtime/accelerator.h"
#include "runtime/cuda/errors.h"

namespace quire {

/// What a library keeps for one device, a handle for example.
class CudaExtension {
 public:
  virtual ~CudaExtension() = default;
};

class CudaDevice final : public Accelerator {
 public:
  /// Throws UnsupportedError where there is no such device or it, its driver or its runtime are too old.
  explicit CudaDevice(int index);
  ~CudaDevice() override;

  void* map(int64_t bytes) override;
  void unmap(void* segment, int64_t bytes) noexcept override;
  void fill(void* to, unsigned char byte, int64_t bytes) override;

  Device device() const override { return {DeviceKind::cuda, index_}; }
  std::string description() const override;
  int64_t memory_bytes() const override { return memory_bytes_; }
  int64_t free_bytes() const override;
  void upload(const void* host, void* to, int64_t bytes) override;
  void copy(const void* from, void* to, int64_t bytes) override;
  void copy_rows(const void* from, int64_t from_stride, void* to, int64_t to_stride, int64_t row_bytes, int64_t rows) override;
  void download(const void* from, void* host, int64_t bytes) override;
  std::unique_ptr<Download> start_download(const void* from, int64_t bytes) override;
  void synchronize() override;

  cudaStream_t stream() const { return compute_; }
  int compute_capability() const { return capability_; }  ///< 10 * major + minor
  int multiprocessors() const { return multiprocessors_; }

  /// The device's T, a CudaExtension: made as T(CudaDevice&) when first asked for, gone before the stream is.
  template <class T> T& extension() {
    std::unique_ptr<CudaExtension>& held = extensions_[std::type_index(typeid(T))];
    if (!held) held = std::make_unique<T>(*this);
    return static_cast<T&>(*held);
  }

 private:
  struct Staging;
  void make_current() const;  ///< of the calling thread
  char* staging(int64_t bytes);

  int index_;
  int capability_ = 0, multiprocessors_ = 0;
  int64_t memory_bytes_ = 0;
  std::string name_;
  cudaStream_t compute_ = nullptr;
  std::deque<std::unique_ptr<Staging>> staging_;
  std::map<std::type_index, std::unique_ptr<CudaExtension>> extensions_;
};

/// The device of a rank of kind cuda.
inline CudaDevice& cuda(Rank& rank) { return static_cast<CudaDevice&>(*rank.accelerator()); }

}  // namespace quire
