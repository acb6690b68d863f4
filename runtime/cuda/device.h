// A CUDA device as one rank uses it: a stream for all its work, pinned staging memory.
#pragma once
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <typeindex>

#include "runtime/accelerator.h"
#include "runtime/cuda/errors.h"
#include "runtime/cuda/staging.h"

namespace quire {

/// What a library keeps for one device, a handle for example.
class CudaExtension {
 public:
  virtual ~CudaExtension() = default;
};

class CudaDevice final : public Accelerator {
 public:
  /// Throws UnsupportedError where the device is too old, DeviceError where a call fails.
  explicit CudaDevice(int index);
  ~CudaDevice() override;

  void* map(int64_t bytes) override;
  void unmap(void* segment, int64_t bytes) noexcept override;
  void fill(void* to, unsigned char byte, int64_t bytes) override;
  int64_t smallest_segment(int64_t reserved) const override;
  /// What was free when this was made, less a reserve for what CUDA itself takes (kernels, their local memory, the libraries' own).
  int64_t usual_limit() const override { return usual_limit_; }
  std::string place() const override;

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

  /// The stream of all its work, after making the device the calling thread's current one: what is launched there goes to this device.
  cudaStream_t stream() const;
  int compute_capability() const { return capability_; }  ///< 10 * major + minor
  int multiprocessors() const { return multiprocessors_; }
  const UploadStaging& uploads() const { return uploads_; }
  const DownloadStaging& downloads() const { return *downloads_; }

  /// The device's T, a CudaExtension: made as T(CudaDevice&) when first asked for, gone before the stream is.
  template <class T> T& extension() {
    std::unique_ptr<CudaExtension>& held = extensions_[std::type_index(typeid(T))];
    if (!held) held = std::make_unique<T>(*this);
    return static_cast<T&>(*held);
  }

 private:
  void make_current() const;  ///< of the calling thread: another rank's thread, or a test's, may have changed it

  int index_;
  int capability_ = 0, multiprocessors_ = 0;
  int64_t memory_bytes_ = 0, smallest_segment_ = 0, usual_limit_ = 0;
  std::string name_, versions_;
  cudaStream_t compute_ = nullptr;
  UploadStaging uploads_;
  std::shared_ptr<DownloadStaging> downloads_ = std::make_shared<DownloadStaging>();
  std::map<std::type_index, std::unique_ptr<CudaExtension>> extensions_;
};

/// The device of a rank of kind cuda.
inline CudaDevice& cuda(Rank& rank) { return static_cast<CudaDevice&>(*rank.accelerator()); }

}  // namespace quire
