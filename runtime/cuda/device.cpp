#include "runtime/cuda/device.h"

#include <algorithm>
#include <cstring>

#include "runtime/error.h"

namespace quire {

namespace {

constexpr int oldest_capability = 80;  ///< bf16 tensor cores and asynchronous copies
constexpr int64_t smallest_staging = int64_t{1} << 20;

/// Pinned host memory with the event after which it is free again.
struct PinnedBlock {
  char* data = nullptr;
  int64_t bytes = 0;
  cudaEvent_t copied = nullptr;

  explicit PinnedBlock(int64_t size) : bytes(size) {
    check_cuda(cudaMallocHost(reinterpret_cast<void**>(&data), static_cast<size_t>(size)), "cudaMallocHost");
    check_cuda(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }
  ~PinnedBlock() {
    cudaEventSynchronize(copied);
    cudaEventDestroy(copied);
    cudaFreeHost(data);
  }
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;
};

class CudaDownload final : public Download {
 public:
  CudaDownload(const void* from, int64_t bytes, cudaStream_t stream) : block_(std::max<int64_t>(bytes, 1)), bytes_(bytes) {
    check_cuda(cudaMemcpyAsync(block_.data, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    check_cuda(cudaEventRecord(block_.copied, stream), "cudaEventRecord");
  }
  bool done() const override {
    const cudaError_t status = cudaEventQuery(block_.copied);
    if (status == cudaErrorNotReady) return false;
    check_cuda(status, "cudaEventQuery");
    return true;
  }
  std::span<const std::byte> wait() override {
    check_cuda(cudaEventSynchronize(block_.copied), "cudaEventSynchronize");
    return {reinterpret_cast<const std::byte*>(block_.data), static_cast<size_t>(bytes_)};
  }

 private:
  PinnedBlock block_;
  int64_t bytes_;
};

}  // namespace

struct CudaDevice::Staging : PinnedBlock {
  using PinnedBlock::PinnedBlock;
};

CudaDevice::CudaDevice(int index) : index_(index) {
  check_cuda(cudaSetDevice(index), "cudaSetDevice");
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  name_ = properties.name;
  capability_ = 10 * properties.major + properties.minor;
  multiprocessors_ = properties.multiProcessorCount;
  memory_bytes_ = static_cast<int64_t>(properties.totalGlobalMem);
  if (capability_ < oldest_capability)
    fail<UnsupportedError>("cuda", "device {} ({}) has compute capability {}.{}; needed: 8.0 or newer", index, name_, properties.major, properties.minor);
  check_cuda(cudaStreamCreateWithFlags(&compute_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

CudaDevice::~CudaDevice() {
  make_current();
  if (compute_ != nullptr) cudaStreamSynchronize(compute_);
  extensions_.clear();
  staging_.clear();
  if (compute_ != nullptr) cudaStreamDestroy(compute_);
}

void CudaDevice::make_current() const { cudaSetDevice(index_); }

std::string CudaDevice::description() const {
  return fmt::format("{}, compute capability {}.{}, {:.1f} GiB", name_, capability_ / 10, capability_ % 10, static_cast<double>(memory_bytes_) / (1 << 30));
}

void* CudaDevice::map(int64_t bytes) {
  make_current();
  void* segment = nullptr;
  const cudaError_t status = cudaMalloc(&segment, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check_cuda(status, "cudaMalloc");
  return segment;
}

void CudaDevice::unmap(void* segment, int64_t) noexcept {
  make_current();
  cudaFree(segment);
}

void CudaDevice::fill(void* to, unsigned char byte, int64_t bytes) {
  check_cuda(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), compute_), "cudaMemsetAsync");
}

int64_t CudaDevice::free_bytes() const {
  make_current();
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

/// The oldest block whose copy is over, where it is large enough; else a new one.
char* CudaDevice::staging(int64_t bytes) {
  if (!staging_.empty() && staging_.front()->bytes >= bytes && cudaEventQuery(staging_.front()->copied) == cudaSuccess) {
    // A block is in use from here until its copy is over; the newest stands last.
    std::rotate(staging_.begin(), staging_.begin() + 1, staging_.end());
  } else {
    staging_.push_back(std::make_unique<Staging>(std::max(bytes, smallest_staging)));
  }
  return staging_.back()->data;
}

void CudaDevice::upload(const void* host, void* to, int64_t bytes) {
  if (bytes == 0) return;
  char* const block = staging(bytes);
  std::memcpy(block, host, static_cast<size_t>(bytes));
  check_cuda(cudaMemcpyAsync(to, block, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, compute_), "cudaMemcpyAsync");
  check_cuda(cudaEventRecord(staging_.back()->copied, compute_), "cudaEventRecord");
}

void CudaDevice::copy(const void* from, void* to, int64_t bytes) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, compute_), "cudaMemcpyAsync");
}

void CudaDevice::copy_rows(const void* from, int64_t from_stride, void* to, int64_t to_stride, int64_t row_bytes, int64_t rows) {
  if (rows == 0 || row_bytes == 0) return;
  check_cuda(cudaMemcpy2DAsync(to, static_cast<size_t>(to_stride), from, static_cast<size_t>(from_stride), static_cast<size_t>(row_bytes), static_cast<size_t>(rows),
                               cudaMemcpyDeviceToDevice, compute_), "cudaMemcpy2DAsync");
}

void CudaDevice::download(const void* from, void* host, int64_t bytes) {
  ++host_reads_;
  const std::unique_ptr<Download> values = start_download(from, bytes);
  if (bytes > 0) std::memcpy(host, values->wait().data(), static_cast<size_t>(bytes));
}

std::unique_ptr<Download> CudaDevice::start_download(const void* from, int64_t bytes) { return std::make_unique<CudaDownload>(from, bytes, compute_); }

void CudaDevice::synchronize() {
  ++host_reads_;
  check_cuda(cudaStreamSynchronize(compute_), "cudaStreamSynchronize");
}

std::shared_ptr<Accelerator> make_accelerator(const RankOptions& options) {
  if (options.device.kind != DeviceKind::cuda) return nullptr;
  if (const CudaAvailability available = cuda_availability(); options.device.index >= available.devices)
    fail<UnsupportedError>("device", "cuda:{} asked for; {}; allowed: cpu", options.device.index,
                           available.devices > 0 ? fmt::format("this machine has {} device{}", available.devices, available.devices == 1 ? "" : "s") : available.reason);
  return std::make_shared<CudaDevice>(options.device.index);
}

}  // namespace quire
