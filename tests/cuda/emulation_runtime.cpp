// The emulated CUDA runtime: streams and events, copies that land late, memory that is freed, failures that tests ask for.
#include <gpu.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "check.h"
#include "on_device.h"

namespace quire::test {

namespace {

__global__ void add_to(int* values, int n, int what) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) values[i] += what;
}

cudaStream_t another_stream() {
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}
cudaEvent_t new_event() {
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  return event;
}

/// Two streams: one adds 1, the other then adds 10 times and reads, after the event or not. What it reads.
int last_value_read(bool waits_for_event, emulation::Pace pace) {
  OnDevice device;
  emulation::Settings settings;
  settings.pace = pace;
  emulation::set(settings);
  int* const values = device.upload(std::vector<int>(64, 0));
  cudaStreamSynchronize(device.stream);
  cudaStream_t const second = another_stream();
  cudaEvent_t const added = new_event();
  gpu::launch(add_to, dim3(1), dim3(64), 0, device.stream, values, 64, 1);
  cudaEventRecord(added, device.stream);
  if (waits_for_event) cudaStreamWaitEvent(second, added, 0);
  int seen = -1;
  cudaMemcpyAsync(&seen, values, sizeof seen, cudaMemcpyDeviceToHost, second);
  cudaStreamSynchronize(second);
  cudaStreamSynchronize(device.stream);
  cudaEventDestroy(added);
  cudaStreamDestroy(second);
  return seen;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(emulation_runtime)

BOOST_AUTO_TEST_CASE(only_events_order_streams) {
  using emulation::Pace;
  for (const Pace pace : {Pace::late, Pace::early, Pace::random}) BOOST_TEST(last_value_read(true, pace) == 1);
  if (emulation::thread_sanitizer) return;  // which reports the missing wait itself
  BOOST_TEST(last_value_read(false, Pace::late) == 0);
  BOOST_TEST(last_value_read(false, Pace::early) == 1);
}

BOOST_AUTO_TEST_CASE(a_stream_works_in_the_order_of_calls) {
  OnDevice device;
  emulation::Settings settings;
  settings.longest_delay = 50;
  settings.pace = emulation::Pace::random;
  emulation::set(settings);
  int* const values = device.upload(std::vector<int>(32, 0));
  for (int i = 1; i <= 20; ++i) {
    cudaMemsetAsync(values, 0, 4, device.stream);
    gpu::launch(add_to, dim3(1), dim3(32), 0, device.stream, values, 32, i);
  }
  std::vector<int> expected(32, 210);
  expected[0] = 20;
  BOOST_TEST(device.download(values, 32) == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(pinned_memory_is_read_late_and_other_memory_at_once) {
  OnDevice device;
  int* pinned = nullptr;
  cudaMallocHost(reinterpret_cast<void**>(&pinned), 4);
  *pinned = 1;
  int pageable = 1;
  int* const values = device.empty<int>(2);
  cudaMemcpyAsync(values, &pageable, 4, cudaMemcpyHostToDevice, device.stream);
  cudaMemcpyAsync(values + 1, pinned, 4, cudaMemcpyHostToDevice, device.stream);
  pageable = 2;
  if (!emulation::thread_sanitizer) *pinned = 2;  // too early: no event says that the copy is over
  BOOST_TEST(device.download(values, 2) == (std::vector<int>{1, emulation::thread_sanitizer ? 1 : 2}), boost::test_tools::per_element());
  cudaFreeHost(pinned);
}

BOOST_AUTO_TEST_CASE(events_say_when_they_are_reached) {
  OnDevice device;
  cudaEvent_t const event = new_event();
  int* const values = device.upload(std::vector<int>(32, 0));
  BOOST_TEST(cudaEventQuery(event) == cudaSuccess);  // never recorded
  gpu::launch(add_to, dim3(1), dim3(32), 0, device.stream, values, 32, 1);
  cudaEventRecord(event, device.stream);
  BOOST_TEST(cudaEventQuery(event) == cudaErrorNotReady);
  BOOST_TEST(cudaEventSynchronize(event) == cudaSuccess);
  BOOST_TEST(cudaEventQuery(event) == cudaSuccess);
  BOOST_TEST(cudaStreamQuery(device.stream) == cudaSuccess);
  float milliseconds = 0;
  BOOST_TEST(cudaEventElapsedTime(&milliseconds, event, event) == cudaErrorInvalidResourceHandle);  // without times
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  cudaEventRecord(begin, device.stream);
  cudaEventRecord(end, device.stream);
  cudaStreamSynchronize(device.stream);
  BOOST_TEST(cudaEventElapsedTime(&milliseconds, begin, end) == cudaSuccess);
  for (cudaEvent_t const each : {event, begin, end}) BOOST_TEST(cudaEventDestroy(each) == cudaSuccess);
  BOOST_TEST(cudaEventDestroy(event) == cudaErrorInvalidResourceHandle);
  BOOST_TEST(cudaEventRecord(event, device.stream) == cudaErrorInvalidResourceHandle);
}

BOOST_AUTO_TEST_CASE(a_callback_runs_in_its_place) {
  OnDevice device;
  int* const values = device.upload(std::vector<int>(1, 5));
  int* host = nullptr;
  cudaMallocHost(reinterpret_cast<void**>(&host), 4);
  cudaMemcpyAsync(host, values, 4, cudaMemcpyDeviceToHost, device.stream);
  cudaLaunchHostFunc(device.stream, [](void* data) { *static_cast<int*>(data) *= 2; }, host);
  cudaMemcpyAsync(values, host, 4, cudaMemcpyHostToDevice, device.stream);
  BOOST_TEST(device.download(values, 1)[0] == 10);
  cudaFreeHost(host);
}

BOOST_AUTO_TEST_CASE(memory_is_poisoned_guarded_and_counted) {
  OnDevice device;
  int* fresh = nullptr;
  const size_t before = emulation::allocated();
  BOOST_TEST(cudaMalloc(reinterpret_cast<void**>(&fresh), 400) == cudaSuccess);
  BOOST_TEST(emulation::allocated() == before + 400);
  BOOST_TEST((device.download(fresh, 100) == std::vector<int>(100, -1)));
  BOOST_TEST(cudaMemsetAsync(fresh, 0, 404, device.stream) == cudaErrorInvalidValue);  // past its end
  BOOST_TEST(cudaFree(fresh + 1) == cudaErrorInvalidValue);                           // not where it begins
  BOOST_TEST(cudaFreeHost(fresh) == cudaErrorInvalidValue);
  BOOST_TEST(cudaFree(fresh) == cudaSuccess);
  BOOST_TEST(cudaFree(fresh) == cudaErrorInvalidValue);  // a second time
  BOOST_TEST(cudaMemsetAsync(fresh, 0, 4, device.stream) == cudaErrorInvalidValue);
  BOOST_TEST(emulation::allocated() == before);
  int local = 0;
  BOOST_TEST(cudaFree(&local) == cudaErrorInvalidValue);
  BOOST_TEST(cudaFree(nullptr) == cudaSuccess);
}

BOOST_AUTO_TEST_CASE(freed_memory_reads_as_nan_and_late_writes_are_told) {
  if (emulation::address_sanitizer) return;  // which ends the program at the access
  OnDevice device;
  int* freed = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&freed), 64 * 4);
  cudaFree(freed);
  int* const copy = device.upload(std::vector<int>(64, 0));
  gpu::launch(add_to, dim3(1), dim3(64), 0, device.stream, freed, 64, 1);  // -1 + 1: somebody writes there
  cudaStreamSynchronize(device.stream);
  emulation::Settings settings;
  settings.quarantine = 0;
  emulation::set(settings);
  cudaFree(device.empty<int>(1));
  BOOST_TEST(emulation::failure().find("after it was freed") != std::string::npos);
  emulation::recover();
  int* short_one = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&short_one), 63 * 4);
  gpu::launch(add_to, dim3(1), dim3(64), 0, device.stream, short_one, 64, 1);
  cudaFree(short_one);
  BOOST_TEST(emulation::failure().find("behind its 252 bytes") != std::string::npos);
  static_cast<void>(copy);
}

BOOST_AUTO_TEST_CASE(rows_are_copied_with_strides_and_within_memory) {
  OnDevice device;
  std::vector<int> values(24);
  std::iota(values.begin(), values.end(), 0);
  int* const from = device.upload(values);
  int* const to = device.upload(std::vector<int>(12, -7));
  BOOST_TEST(cudaMemcpy2DAsync(to, 12, from + 1, 24, 8, 4, cudaMemcpyDeviceToDevice, device.stream) == cudaSuccess);
  BOOST_TEST(device.download(to, 12) == (std::vector<int>{1, 2, -7, 7, 8, -7, 13, 14, -7, 19, 20, -7}), boost::test_tools::per_element());
  BOOST_TEST(cudaMemcpy2DAsync(to, 16, from, 24, 8, 4, cudaMemcpyDeviceToDevice, device.stream) == cudaErrorInvalidValue);  // runs past its end
  BOOST_TEST(cudaMemcpy2DAsync(to, 4, from, 24, 8, 4, cudaMemcpyDeviceToDevice, device.stream) == cudaErrorInvalidPitchValue);
  BOOST_TEST(cudaMemcpyAsync(to, from, 8, cudaMemcpyHostToDevice, device.stream) == cudaErrorInvalidValue);  // the wrong kind
  BOOST_TEST(emulation::counters().bytes_on_device == 32);
}

BOOST_AUTO_TEST_CASE(waiting_is_counted_by_kind) {
  OnDevice device;
  int* const values = device.upload(std::vector<int>(4, 1));
  emulation::reset_counters();
  int host[4];
  cudaMemcpyAsync(host, values, 16, cudaMemcpyDeviceToHost, device.stream);  // to memory that is not pinned: the host waits
  cudaMemcpy(host, values, 16, cudaMemcpyDeviceToHost);
  cudaDeviceSynchronize();
  cudaStreamSynchronize(device.stream);
  cudaEvent_t const event = new_event();
  cudaEventRecord(event, device.stream);
  cudaEventSynchronize(event);
  cudaEventDestroy(event);
  const emulation::Counters seen = emulation::counters();
  BOOST_TEST(seen.synchronous_copies >= 2);
  BOOST_TEST(seen.device_synchronizations == 1);
  BOOST_TEST(seen.stream_synchronizations == 1);
  BOOST_TEST(seen.event_synchronizations == 1);
  BOOST_TEST(seen.bytes_to_host == 32);
}

BOOST_AUTO_TEST_CASE(calls_fail_when_tests_ask_for_it) {
  OnDevice device;
  emulation::fail_call("cudaMalloc", 2, cudaErrorMemoryAllocation);
  void* memory = nullptr;
  BOOST_TEST(cudaMalloc(&memory, 16) == cudaSuccess);
  cudaFree(memory);
  BOOST_TEST(cudaMalloc(&memory, 16) == cudaErrorMemoryAllocation);
  BOOST_TEST(cudaGetLastError() == cudaErrorMemoryAllocation);
  BOOST_TEST(cudaGetLastError() == cudaSuccess);
  BOOST_TEST(std::string(cudaGetErrorName(cudaErrorMemoryAllocation)) == "cudaErrorMemoryAllocation");
  BOOST_TEST(std::string(cudaGetErrorString(cudaErrorMemoryAllocation)) == "out of memory");
}

BOOST_AUTO_TEST_CASE(machines_can_be_small_old_or_empty) {
  const emulation::Fresh fresh;
  emulation::Settings settings;
  settings.devices = 2;
  settings.memory = 1000;
  settings.major = 7;
  settings.minor = 5;
  emulation::set(settings);
  BOOST_TEST(cudaSetDevice(2) == cudaErrorInvalidDevice);
  BOOST_TEST(cudaSetDevice(0) == cudaSuccess);
  void* memory = nullptr;
  BOOST_TEST(cudaMalloc(&memory, 1001) == cudaErrorMemoryAllocation);
  BOOST_TEST(cudaMalloc(&memory, 1000) == cudaSuccess);
  size_t free = 1, total = 0;
  cudaMemGetInfo(&free, &total);
  BOOST_TEST(free == 0u);
  BOOST_TEST(total == 1000u);
  cudaFree(memory);
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, 1);
  BOOST_TEST(properties.major == 7);
  int minor = 0;
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  BOOST_TEST(minor == 5);
  int count = -1;
  settings.devices = 0;
  emulation::set(settings);
  BOOST_TEST(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
  BOOST_TEST(count == 0);
  settings.devices = 1;
  settings.driver_version = 12080;
  emulation::set(settings);
  BOOST_TEST(cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver);
  BOOST_TEST(cudaMalloc(&memory, 1) == cudaErrorInsufficientDriver);
}

BOOST_AUTO_TEST_CASE(devices_fail_apart_and_orders_hold_for_every_thread) {
  OnDevice device;
  cudaSetDevice(1);
  cudaStream_t const other = another_stream();
  void* memory = nullptr;
  cudaMalloc(&memory, 64);
  BOOST_CHECK_THROW(gpu::launch(add_to, dim3(1), dim3(32), 0, device.stream, static_cast<int*>(memory), 16, 1), Error);  // a stream of device 0
  cudaSetDevice(0);
  cudaLaunchHostFunc(device.stream, [](void*) { throw std::runtime_error("told by the test"); }, nullptr);
  BOOST_TEST(device.failure() == "told by the test");
  std::thread([&] {
    BOOST_TEST(cudaSetDevice(1) == cudaSuccess);
    gpu::launch(add_to, dim3(1), dim3(32), 0, other, static_cast<int*>(memory), 16, 2);
    std::vector<int> seen(16);
    cudaMemcpyAsync(seen.data(), memory, 64, cudaMemcpyDeviceToHost, other);
    BOOST_TEST((seen == std::vector<int>(16, 1)));
    cudaFree(memory);
    cudaStreamDestroy(other);
  }).join();
  emulation::recover();
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
