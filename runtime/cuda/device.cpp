#include "runtime/cuda/device.h"

#include <algorithm>

#include "runtime/cuda/emulated.h"
#include "runtime/cuda/versions.h"
#include "runtime/error.h"

namespace quire {

namespace {

constexpr int64_t mebibyte = int64_t{1} << 20;
constexpr int64_t granularity = 2 * mebibyte;  ///< cudaMalloc's
constexpr int64_t largest_reserve = 512 * mebibyte;

std::string gibibytes(int64_t bytes) { return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30)); }

}  // namespace

CudaDevice::CudaDevice(int index) : index_(index) {
  check_cuda(cudaSetDevice(index), "cudaSetDevice");
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  name_ = properties.name;
  capability_ = 10 * properties.major + properties.minor;
  multiprocessors_ = properties.multiProcessorCount;
  memory_bytes_ = static_cast<int64_t>(properties.totalGlobalMem);
  if (capability_ < oldest_capability)
    fail<UnsupportedError>("device", "cuda:{} ({}) has compute capability {}.{}; needed: {}.{} or newer; allowed: another device, or cpu", index, name_, properties.major,
                           properties.minor, oldest_capability / 10, oldest_capability % 10);
  versions_ = fmt::format("driver {}, runtime {}", version_text(driver_version()), version_text(runtime_version()));
  smallest_segment_ = std::clamp(memory_bytes_ / 2048 / granularity * granularity, granularity, 256 * mebibyte);
  const int64_t reserve = std::min(largest_reserve, memory_bytes_ / 16);
  usual_limit_ = std::max(free_bytes() - reserve, granularity) / granularity * granularity;
  check_cuda(cudaStreamCreateWithFlags(&compute_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

CudaDevice::~CudaDevice() {
  cudaSetDevice(index_);
  cudaStreamSynchronize(compute_);  // nobody frees memory that work still uses
  extensions_.clear();
  cudaStreamDestroy(compute_);
}

void CudaDevice::make_current() const { check_cuda(cudaSetDevice(index_), "cudaSetDevice"); }

cudaStream_t CudaDevice::stream() const {
  make_current();
  return compute_;
}

std::string CudaDevice::description() const {
  return fmt::format("{}{}, compute capability {}.{}, {}, {}", name_, cuda_is_emulated() ? " (emulated on the CPU)" : "", capability_ / 10, capability_ % 10,
                     gibibytes(memory_bytes_), versions_);
}

std::string CudaDevice::place() const {
  size_t free = 0, total = 0;  // asked when something has failed already: what this fails with does not matter
  const bool known = cudaSetDevice(index_) == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess;
  return fmt::format("{} ({}, {}{})", to_string(device()), name_, gibibytes(memory_bytes_), known ? fmt::format(", {} free", gibibytes(static_cast<int64_t>(free))) : "");
}

int64_t CudaDevice::smallest_segment(int64_t reserved) const {
  // Blocks of all sizes come and go with the documents of a step: segments much larger than most of them leave few gaps.
  return std::max(smallest_segment_, reserved / 8);
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
  cudaSetDevice(index_);
  cudaFree(segment);
}

void CudaDevice::fill(void* to, unsigned char byte, int64_t bytes) {
  if (bytes == 0) return;
  check_cuda(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), stream()), "cudaMemsetAsync");
}

int64_t CudaDevice::free_bytes() const {
  make_current();
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

void CudaDevice::upload(const void* host, void* to, int64_t bytes) { uploads_.upload(host, to, bytes, stream()); }

void CudaDevice::copy(const void* from, void* to, int64_t bytes) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream()), "cudaMemcpyAsync");
}

void CudaDevice::copy_rows(const void* from, int64_t from_stride, void* to, int64_t to_stride, int64_t row_bytes, int64_t rows) {
  if (rows == 0 || row_bytes == 0) return;
  check_cuda(cudaMemcpy2DAsync(to, static_cast<size_t>(to_stride), from, static_cast<size_t>(from_stride), static_cast<size_t>(row_bytes), static_cast<size_t>(rows),
                               cudaMemcpyDeviceToDevice, stream()), "cudaMemcpy2DAsync");
}

void CudaDevice::download(const void* from, void* host, int64_t bytes) {
  ++host_reads_;
  downloads_->copy(from, host, bytes, stream());
}

std::unique_ptr<Download> CudaDevice::start_download(const void* from, int64_t bytes) { return downloads_->start(from, bytes, stream()); }

void CudaDevice::synchronize() {
  ++host_reads_;
  check_cuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
}

std::shared_ptr<Accelerator> make_accelerator(const RankOptions& options) {
  if (options.device.kind != DeviceKind::cuda) return nullptr;
  const int index = options.device.index;
  const CudaAvailability available = cuda_availability();
  if (available.devices == 0) fail<UnsupportedError>("device", "{} asked for; {}; allowed: cpu", to_string(options.device), available.reason);
  if (index < 0 || index >= available.devices)
    fail<UnsupportedError>("device", "{} asked for; found: {} device{} on this machine; allowed: 0 to {}", to_string(options.device), available.devices,
                           available.devices == 1 ? "" : "s", available.devices - 1);
  return std::make_shared<CudaDevice>(index);
}

}  // namespace quire
