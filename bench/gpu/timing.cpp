#include "bench/gpu/timing.h"

#include <algorithm>
#include <chrono>

#include "runtime/cuda/device.h"

namespace quire::gpu_report {

namespace {

class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  /// Waits for both.
  double seconds_since(const Event& earlier) const {
    check_cuda(cudaEventSynchronize(earlier.event_), "cudaEventSynchronize");
    check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

std::vector<double> device_seconds(Rank& rank, const TimingOptions& options, const std::function<void()>& work, const std::function<void()>& prepare) {
  CudaDevice& device = cuda(rank);
  const auto once = [&] {
    if (prepare) prepare();
    work();
  };
  for (int i = 0; i < options.warm; ++i) once();
  device.synchronize();
  // How many fit is known from one more run, of host and device together.
  const auto start = std::chrono::steady_clock::now();
  once();
  device.synchronize();
  const double each = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const int affordable = each > 0 ? static_cast<int>(std::min(1e6, options.most_seconds / each)) : options.samples;
  const int samples = std::min(options.samples, std::max(affordable, 3));
  std::vector<Event> before(static_cast<size_t>(samples)), after(static_cast<size_t>(samples));
  for (size_t i = 0; i < before.size(); ++i) {
    if (prepare) prepare();
    before[i].record(device.stream());
    work();
    after[i].record(device.stream());
  }
  std::vector<double> seconds;
  for (size_t i = 0; i < before.size(); ++i) seconds.push_back(after[i].seconds_since(before[i]));
  return seconds;
}

}  // namespace quire::gpu_report
