// cudaStream..., cudaEvent..., launches and callbacks.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "machine.h"
#include "sanitizers.h"
#include "state.h"
#include "streams.h"

struct CUstream_st {
  std::shared_ptr<emulation::Stream> stream;
};
struct CUevent_st {
  std::shared_ptr<emulation::Event> event;
};

namespace emulation {

namespace {

/// All streams and events there are.
struct Handles {
  Lock lock;
  std::map<cudaStream_t, std::unique_ptr<CUstream_st>> streams;
  std::map<cudaEvent_t, std::unique_ptr<CUevent_st>> events;
  std::map<int, std::shared_ptr<Stream>> without_handle;  ///< per device
  uint64_t made = 0;
};
Handles& handles() {
  static Handles all;
  return all;
}

std::shared_ptr<Event> event_of(cudaEvent_t handle) {
  const std::lock_guard<Lock> guard(handles().lock);
  const auto found = handles().events.find(handle);
  return found == handles().events.end() ? nullptr : found->second->event;
}

std::vector<std::shared_ptr<Stream>> all_streams() {
  std::vector<std::shared_ptr<Stream>> result;
  const std::lock_guard<Lock> guard(handles().lock);
  for (const auto& [handle, owner] : handles().streams) result.push_back(owner->stream);
  for (const auto& [device, stream] : handles().without_handle) result.push_back(stream);
  return result;
}

/// Waits until a record of an event has been reached. The stream that it was recorded on works up to there.
void wait_for_event(Event& event, const std::shared_ptr<Stream>& recorded_on, uint64_t record, uint64_t place) {
  {
    const Quiet quiet;
    recorded_on->demand(place);
    const std::lock_guard<Lock> guard(event.lock);
    event.changed.wait(event.lock, [&] { return event.done >= record; });
  }
  acquire(&event.order);
}

}  // namespace

std::shared_ptr<Stream> stream_of(cudaStream_t handle) {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(handles().lock);
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    auto& stream = handles().without_handle[current_device()];
    if (stream == nullptr) stream = std::make_shared<Stream>(current_device(), ++handles().made);
    return stream;
  }
  const auto found = handles().streams.find(handle);
  return found == handles().streams.end() ? nullptr : found->second->stream;
}

void wait_for_device(int device) {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    const Quiet quiet;
    streams = all_streams();
  }
  for (const auto& stream : streams)
    if (stream->device() == device) stream->wait();
  const Quiet quiet;
  streams.clear();
}

void drain() {
  for (int device = 0; device < most_devices; ++device) wait_for_device(device);
}

cudaError_t check_launch(dim3 grid, dim3 block, size_t shared_bytes) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    return cudaErrorInvalidConfiguration;
  if (shared_bytes > largest_shared) return cudaErrorInvalidValue;
  return cudaSuccess;
}

cudaError_t enqueue_grid(cudaStream_t handle, dim3 grid, dim3 block, size_t shared_bytes, std::function<void()> kernel) {
  Call call("cudaLaunchKernel");
  if (call.failed()) return call.status();
  if (const cudaError_t wrong = check_launch(grid, block, shared_bytes); wrong != cudaSuccess) return call.end(wrong);
  const std::shared_ptr<Stream> stream = stream_of(handle);
  if (stream == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  if (stream->device() != current_device()) return call.end(cudaErrorInvalidResourceHandle);
  ++counted().kernels;
  stream->push([=, kernel = std::move(kernel), now = settings()] { run_grid(grid, block, shared_bytes, kernel, now.order, now.seed); });
  return call.end(cudaSuccess);
}

}  // namespace emulation

using namespace emulation;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned, int) {
  Call call("cudaStreamCreate");
  if (call.failed()) return call.status();
  uint64_t number = 0;
  {
    const std::lock_guard<Lock> guard(handles().lock);
    number = ++handles().made;
  }
  const std::shared_ptr<Stream> stream = std::make_shared<Stream>(current_device(), number);
  const Quiet quiet;
  auto owner = std::make_unique<CUstream_st>();
  owner->stream = stream;
  *handle = owner.get();
  const std::lock_guard<Lock> guard(handles().lock);
  handles().streams[*handle] = std::move(owner);
  return call.end(cudaSuccess);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) { return cudaStreamCreateWithPriority(handle, flags, 0); }
cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithPriority(handle, cudaStreamDefault, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  Call call("cudaStreamDestroy", false);
  if (call.failed()) return call.status();
  std::unique_ptr<CUstream_st> owner;
  {
    const Quiet quiet;
    const std::lock_guard<Lock> guard(handles().lock);
    const auto found = handles().streams.find(handle);
    if (found == handles().streams.end()) return call.end(cudaErrorInvalidResourceHandle);
    owner = std::move(found->second);
    handles().streams.erase(found);
  }
  owner->stream->wait();
  const Quiet quiet;
  owner.reset();
  return call.end(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  {
    Call call("cudaStreamSynchronize");
    if (call.failed()) return call.status();
    ++counted().stream_synchronizations;
    const std::shared_ptr<Stream> stream = stream_of(handle);
    if (stream == nullptr) return call.end(cudaErrorInvalidResourceHandle);
    stream->wait();
  }
  return Call("").status();  // what failed on the way
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Call call("cudaStreamQuery");
  if (call.failed()) return call.status();
  const std::shared_ptr<Stream> stream = stream_of(handle);
  if (stream == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  const uint64_t last = stream->last();
  if (stream->finished(last)) return call.end(cudaSuccess);
  stream->demand(last);
  return cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
  Call call("cudaStreamWaitEvent");
  if (call.failed()) return call.status();
  const std::shared_ptr<Stream> stream = stream_of(handle);
  const std::shared_ptr<Event> event = event_of(event_handle);
  if (stream == nullptr || event == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  event->lock.lock();
  const std::shared_ptr<Stream> on = event->recorded_on;
  const uint64_t record = event->records, place = event->place;
  event->lock.unlock();
  const auto wait = [=] {
    const Stream::Blocked blocked;
    wait_for_event(*event, on, record, place);
  };
  if (record > 0) stream->push(wait, true);
  return call.end(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize() {
  {
    Call call("cudaDeviceSynchronize");
    if (call.failed()) return call.status();
    ++counted().device_synchronizations;
    wait_for_device(current_device());
  }
  return Call("").status();
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  Call call("cudaLaunchHostFunc");
  if (call.failed()) return call.status();
  const std::shared_ptr<Stream> stream = stream_of(handle);
  if (stream == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  stream->push([=] { function(data); });
  return call.end(cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  Call call("cudaEventCreate");
  if (call.failed()) return call.status();
  const Quiet quiet;
  auto owner = std::make_unique<CUevent_st>();
  owner->event = std::make_shared<Event>();
  owner->event->timed = (flags & cudaEventDisableTiming) == 0;
  *handle = owner.get();
  const std::lock_guard<Lock> guard(handles().lock);
  handles().events[*handle] = std::move(owner);
  return call.end(cudaSuccess);
}
cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  Call call("cudaEventDestroy", false);
  if (call.failed()) return call.status();
  const Quiet quiet;
  const std::lock_guard<Lock> guard(handles().lock);
  return call.end(handles().events.erase(handle) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle, unsigned) {
  Call call("cudaEventRecord");
  if (call.failed()) return call.status();
  const std::shared_ptr<Stream> stream = stream_of(stream_handle);
  const std::shared_ptr<Event> event = event_of(handle);
  if (stream == nullptr || event == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  const auto reached = [event](uint64_t record) {
    release(&event->order);
    const Quiet quiet;
    const std::lock_guard<Lock> guard(event->lock);
    event->done = std::max(event->done, record);
    event->when = std::chrono::steady_clock::now();
    event->changed.notify();
  };
  event->lock.lock();
  event->recorded_on = stream;
  event->place = stream->enqueue([reached, record = ++event->records] { reached(record); }, true);
  const uint64_t place = event->place;
  event->lock.unlock();
  stream->settle(place);
  return call.end(cudaSuccess);
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) { return cudaEventRecordWithFlags(handle, stream, cudaEventRecordDefault); }

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  {
    Call call("cudaEventSynchronize");
    if (call.failed()) return call.status();
    ++counted().event_synchronizations;
    const std::shared_ptr<Event> event = event_of(handle);
    if (event == nullptr) return call.end(cudaErrorInvalidResourceHandle);
    event->lock.lock();
    const std::shared_ptr<Stream> on = event->recorded_on;
    const uint64_t record = event->records, place = event->place;
    event->lock.unlock();
    if (record > 0) wait_for_event(*event, on, record, place);
  }
  return Call("").status();
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  Call call("cudaEventQuery");
  if (call.failed()) return call.status();
  const std::shared_ptr<Event> event = event_of(handle);
  if (event == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  {
    const std::lock_guard<Lock> guard(event->lock);
    if (event->done < event->records) {
      event->recorded_on->demand(event->place);
      return cudaErrorNotReady;
    }
  }
  acquire(&event->order);
  return call.end(cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  Call call("cudaEventElapsedTime");
  if (call.failed()) return call.status();
  const std::shared_ptr<Event> first = event_of(from), second = event_of(to);
  if (first == nullptr || second == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  const std::scoped_lock<Lock> guard(first->lock);
  if (!first->timed || !second->timed || first->records == 0 || second->records == 0) return call.end(cudaErrorInvalidResourceHandle);
  if (first->done < first->records || second->done < second->records) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(second->when - first->when).count();
  return call.end(cudaSuccess);
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  Call call("cudaFuncSetAttribute");
  if (call.failed()) return call.status();
  const bool fits = attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value <= static_cast<int>(largest_shared);
  return call.end(fits ? cudaSuccess : cudaErrorInvalidValue);
}

}  // extern "C"
