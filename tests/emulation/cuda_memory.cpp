// cudaMalloc..., cudaMemcpy..., cudaMemset...: memory that shows when it is used too early, too late or past its end.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "machine.h"
#include "sanitizers.h"
#include "state.h"
#include "streams.h"

namespace emulation {

void wait_for_device(int device);

namespace {

constexpr unsigned char poison = 0xff;  ///< NaN in every floating-point format
constexpr size_t guard_bytes = closes_memory ? 0 : 256;

struct Memory {
  Lock lock;
  std::map<const char*, Allocation> given;   ///< by address
  std::deque<Allocation> freed;              ///< oldest first, kept for a while
  size_t kept = 0;
  std::array<size_t, most_devices> in_use{};
  ~Memory() {
    for (const Allocation& each : freed) {
      open_memory(each.begin, each.bytes);
      std::free(each.begin);
    }
  }
};
Memory& memory() {
  static Memory all;
  return all;
}

bool is_untouched(const char* begin, size_t bytes) {
  return std::all_of(begin, begin + bytes, [](char c) { return static_cast<unsigned char>(c) == poison; });
}

/// The oldest freed memory goes back to the system, after a look whether anyone wrote there.
void trim_quarantine(size_t limit) {
  while (memory().kept > limit && !memory().freed.empty()) {
    const Allocation oldest = memory().freed.front();
    memory().freed.pop_front();
    memory().kept -= oldest.bytes;
    if (!closes_memory && !is_untouched(oldest.begin, oldest.bytes)) note_failure(oldest.device, "memory was written to after it was freed");
    open_memory(oldest.begin, oldest.bytes);
    std::free(oldest.begin);
  }
}

cudaError_t give(void** to, size_t bytes, bool on_device, const char* function) {
  Call call(function);
  if (call.failed()) return call.status();
  *to = nullptr;
  if (bytes == 0) return call.end(cudaSuccess);
  const size_t limit = settings().memory;
  const auto device = static_cast<size_t>(current_device());
  const std::lock_guard<Lock> guard(memory().lock);
  if (on_device && (bytes > limit || memory().in_use[device] > limit - bytes)) return call.end(cudaErrorMemoryAllocation);
  void* made = nullptr;
  if (posix_memalign(&made, 512, bytes + guard_bytes) != 0) return call.end(cudaErrorMemoryAllocation);
  std::memset(made, poison, bytes + guard_bytes);
  memory().given[static_cast<char*>(made)] = {static_cast<char*>(made), bytes, on_device, current_device()};
  if (on_device) {
    memory().in_use[device] += bytes;
    ++counted().allocations;
  }
  *to = made;
  return call.end(cudaSuccess);
}

cudaError_t take_back(void* address, bool on_device, const char* function) {
  Call call(function);
  if (address == nullptr) return call.status();  // a call that fails says so, but keeps nothing
  wait_for_device(current_device());
  const std::lock_guard<Lock> guard(memory().lock);
  const auto found = memory().given.find(static_cast<char*>(address));
  if (found == memory().given.end() || found->second.on_device != on_device) return call.end(cudaErrorInvalidValue);
  const Allocation freed = found->second;
  memory().given.erase(found);
  if (on_device) {
    memory().in_use[static_cast<size_t>(freed.device)] -= freed.bytes;
    ++counted().frees;
  }
  if (guard_bytes > 0 && !is_untouched(freed.begin + freed.bytes, guard_bytes))
    note_failure(freed.device, "memory was written to behind its " + std::to_string(freed.bytes) + " bytes");
  std::memset(freed.begin, poison, freed.bytes);
  close_memory(freed.begin, freed.bytes);
  memory().freed.push_back(freed);
  memory().kept += freed.bytes;
  trim_quarantine(settings().quarantine);
  return call.status();
}

}  // namespace

Allocation find_allocation(const void* address) {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(memory().lock);
  auto after = memory().given.upper_bound(static_cast<const char*>(address));
  if (after == memory().given.begin()) return {};
  const Allocation& before = std::prev(after)->second;
  return before.contains(address, 0) && static_cast<const char*>(address) < before.begin + before.bytes ? before : Allocation{};
}

bool is_device_memory(const void* address, size_t bytes) {
  const Allocation found = find_allocation(address);
  return found.on_device && found.contains(address, bytes);
}

size_t allocated_bytes(int device) {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(memory().lock);
  return memory().in_use[static_cast<size_t>(device)];
}

namespace {

struct Rows {
  char* to;
  size_t to_stride;
  const char* from;
  size_t from_stride, bytes, count;
  size_t reach(size_t stride) const { return (count - 1) * stride + bytes; }
};

void move_rows(const Rows& rows) {
  for (size_t i = 0; i < rows.count; ++i) std::memcpy(rows.to + i * rows.to_stride, rows.from + i * rows.from_stride, rows.bytes);
}

/// Of a copy's two ends, once they are known to lie within what was given out; or the error.
struct Ends {
  bool from_device = false, to_device = false, from_pinned = false, to_pinned = false;
  cudaError_t error = cudaSuccess;
};

Ends ends_of(const Rows& rows, cudaMemcpyKind kind) {
  const Allocation from = find_allocation(rows.from), to = find_allocation(rows.to);
  Ends ends{from.on_device, to.on_device, from.begin != nullptr && !from.on_device, to.begin != nullptr && !to.on_device};
  const bool inside = (from.begin == nullptr || from.contains(rows.from, rows.reach(rows.from_stride))) &&
                      (to.begin == nullptr || to.contains(rows.to, rows.reach(rows.to_stride)));
  const bool right_kind = kind == cudaMemcpyDefault || kind == (ends.from_device ? ends.to_device ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost
                                                                                   : ends.to_device ? cudaMemcpyHostToDevice : cudaMemcpyHostToHost);
  if (!inside || !right_kind) ends.error = cudaErrorInvalidValue;
  return ends;
}

void count_bytes(const Ends& ends, size_t bytes) {
  auto& counter = ends.to_device ? ends.from_device ? counted().bytes_on_device : counted().bytes_to_device : counted().bytes_to_host;
  counter += static_cast<int64_t>(bytes);
}

cudaError_t copy_rows(const Rows& rows, cudaMemcpyKind kind, cudaStream_t handle, const char* function) {
  Call call(function);
  if (call.failed()) return call.status();
  if (rows.bytes == 0 || rows.count == 0) return call.end(cudaSuccess);
  if (rows.count > 1 && (rows.to_stride < rows.bytes || rows.from_stride < rows.bytes)) return call.end(cudaErrorInvalidPitchValue);
  const std::shared_ptr<Stream> stream = stream_of(handle);
  if (stream == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  const Ends ends = ends_of(rows, kind);
  if (ends.error != cudaSuccess) return call.end(ends.error);
  count_bytes(ends, rows.bytes * rows.count);
  if (!ends.from_device && !ends.from_pinned) {
    // Memory of the host that is not pinned is read at once.
    auto staged = std::make_shared<std::vector<char>>(rows.bytes * rows.count);
    move_rows({staged->data(), rows.bytes, rows.from, rows.from_stride, rows.bytes, rows.count});
    stream->push([staged, rows] { move_rows({rows.to, rows.to_stride, staged->data(), rows.bytes, rows.bytes, rows.count}); });
    return call.end(cudaSuccess);
  }
  stream->push([rows] { move_rows(rows); });
  if (!ends.to_device && !ends.to_pinned) {
    // CUDA returns from a copy to such memory when it is over: the host has waited for the device.
    ++counted().synchronous_copies;
    stream->wait();
    return Call("").status();
  }
  return call.end(cudaSuccess);
}

cudaError_t set_rows(char* to, size_t stride, int value, size_t bytes, size_t count, cudaStream_t handle, const char* function) {
  Call call(function);
  if (call.failed()) return call.status();
  if (bytes == 0 || count == 0) return call.end(cudaSuccess);
  const std::shared_ptr<Stream> stream = stream_of(handle);
  if (stream == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  if (!is_device_memory(to, (count - 1) * stride + bytes)) return call.end(cudaErrorInvalidValue);
  stream->push([=] {
    for (size_t i = 0; i < count; ++i) std::memset(to + i * stride, value, bytes);
  });
  return call.end(cudaSuccess);
}

}  // namespace

}  // namespace emulation

using namespace emulation;

extern "C" {

cudaError_t cudaMalloc(void** to, size_t bytes) { return give(to, bytes, true, "cudaMalloc"); }
cudaError_t cudaMallocHost(void** to, size_t bytes) { return give(to, bytes, false, "cudaMallocHost"); }
cudaError_t cudaHostAlloc(void** to, size_t bytes, unsigned) { return give(to, bytes, false, "cudaHostAlloc"); }
cudaError_t cudaFree(void* address) { return take_back(address, true, "cudaFree"); }
cudaError_t cudaFreeHost(void* address) { return take_back(address, false, "cudaFreeHost"); }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Call call("cudaMemGetInfo");
  if (call.failed()) return call.status();
  *total = settings().memory;
  *free = *total - std::min(*total, allocated_bytes(current_device()));
  return call.end(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy_rows({static_cast<char*>(to), bytes, static_cast<const char*>(from), bytes, bytes, 1}, kind, stream, "cudaMemcpyAsync");
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_stride, const void* from, size_t from_stride, size_t bytes, size_t rows, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return copy_rows({static_cast<char*>(to), to_stride, static_cast<const char*>(from), from_stride, bytes, rows}, kind, stream, "cudaMemcpy2DAsync");
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t status = copy_rows({static_cast<char*>(to), bytes, static_cast<const char*>(from), bytes, bytes, 1}, kind, nullptr, "cudaMemcpy");
  if (status != cudaSuccess) return status;
  ++counted().synchronous_copies;
  stream_of(nullptr)->wait();
  return Call("").status();
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return set_rows(static_cast<char*>(to), bytes, value, bytes, 1, stream, "cudaMemsetAsync");
}
cudaError_t cudaMemset2DAsync(void* to, size_t stride, int value, size_t bytes, size_t rows, cudaStream_t stream) {
  return set_rows(static_cast<char*>(to), stride, value, bytes, rows, stream, "cudaMemset2DAsync");
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  const cudaError_t status = cudaMemsetAsync(to, value, bytes, nullptr);
  if (status != cudaSuccess) return status;
  stream_of(nullptr)->wait();
  return Call("").status();
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  Call call("cudaPointerGetAttributes");
  if (call.failed()) return call.status();
  const Allocation found = find_allocation(address);
  *attributes = {};
  attributes->type = found.begin == nullptr ? cudaMemoryTypeUnregistered : found.on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  attributes->device = found.begin == nullptr ? -2 : found.device;
  attributes->devicePointer = found.begin == nullptr ? nullptr : const_cast<void*>(address);
  attributes->hostPointer = found.on_device ? nullptr : const_cast<void*>(address);
  return call.end(cudaSuccess);
}

}  // extern "C"
