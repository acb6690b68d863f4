// What the parts of the emulated CUDA runtime share: settings in force, devices, allocations, counters.
#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "emulation.h"
#include "lock.h"
#include "sanitizers.h"

namespace emulation {

constexpr int most_devices = 16;

struct AtomicCounters {
  std::atomic<int64_t> kernels{0}, products{0}, graphs{0}, bytes_to_device{0}, bytes_to_host{0}, bytes_on_device{0};
  std::atomic<int64_t> device_synchronizations{0}, stream_synchronizations{0}, event_synchronizations{0}, synchronous_copies{0}, allocations{0},
      frees{0}, switches{0}, messages{0}, message_groups{0};
  std::atomic<int64_t> works{0};  ///< that streams have done, never reset
};
AtomicCounters& counted();
void note_switches(uint64_t switches);

/// The device that the calling thread has chosen.
int current_device();
void choose_device(int device);

/// Something failed on a device while its streams ran: the first text stays, and every later call returns `cudaErrorLaunchFailure`.
void note_failure(int device, const std::string& text);
bool has_failed(int device);
/// The text behind a sticky error, in memory that stays.
const char* failure_text(int device);
/// The error that the next call of `function` is to return, cudaSuccess for none.
cudaError_t planned_failure(const char* function);

/// One call of the runtime: whether it fails at once, by plan or for want of a device; errors are remembered for cudaGetLastError.
class Call {
 public:
  /// `asks_device`: fails where there is none, or where it has failed.
  explicit Call(const char* function, bool asks_device = true);
  bool failed() const { return status_ != cudaSuccess; }
  /// Ends the call.
  cudaError_t status() const { return status_; }
  cudaError_t end(cudaError_t status);

 private:
  cudaError_t status_;
};
void remember_error(cudaError_t status);

/// A range of memory that the runtime has given out.
struct Allocation {
  char* begin = nullptr;
  size_t bytes = 0;
  bool on_device = false;
  int device = 0;
  bool contains(const void* address, size_t count) const {
    const char* const at = static_cast<const char*>(address);
    return begin != nullptr && at >= begin && count <= bytes && static_cast<size_t>(at - begin) <= bytes - count;
  }
};
/// The allocation in which `address` lies; none: memory of the host that is not pinned.
Allocation find_allocation(const void* address);
/// Whether all of it is memory of a device.
bool is_device_memory(const void* address, size_t bytes);
size_t allocated_bytes(int device);

}  // namespace emulation
