// Devices, versions, memory and calls that are refused: one clear error each, and nothing waits for what can not come.
#include <functional>

#include "check.h"
#include "emulation.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/libraries.h"
#include "runtime/cuda/shared_library.h"
#include "runtime/cuda/versions.h"
#include "runtime/tensor.h"

namespace quire::test {

namespace {

constexpr int64_t mebibyte = int64_t{1} << 20;

/// One line of the house form, of this type, that holds all parts.
template <class E>
void refused(const std::function<void()>& call, const std::vector<std::string>& parts, const std::string& what) {
  try {
    call();
    BOOST_ERROR(what << " was not refused");
  } catch (const E& error) {
    const std::string text = error.what();
    BOOST_TEST((text.front() == '[' && text.find('\n') == std::string::npos), text);
    for (const std::string& part : parts) BOOST_TEST(text.find(part) != std::string::npos, what << ": '" << text << "' lacks '" << part << "'");
  } catch (const std::exception& error) {
    BOOST_ERROR(what << ": an error of another type: " << error.what());
  }
}

void refused_device(const std::function<void(emulation::Settings&)>& change, const std::vector<std::string>& parts, const std::string& what, int index = 0) {
  const emulation::Fresh fresh;
  emulation::Settings settings = emulation::settings();
  change(settings);
  emulation::set(settings);
  refused<UnsupportedError>([&] { Rank rank(RankOptions{.device = {DeviceKind::cuda, index}}); }, parts, what);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_device_refused)

BOOST_AUTO_TEST_CASE(devices_and_versions) {
  using Settings = emulation::Settings;
  refused_device([](Settings& s) { s.devices = 0; }, {"[device]", "cuda:0", "no CUDA device", "needed", "cpu"}, "no device");
  refused_device([](Settings& s) { s.driver_version = 0; }, {"cuda:0", "no CUDA driver", "needed", "13.0", "cpu"}, "no driver");
  refused_device([](Settings& s) { s.driver_version = 12060; }, {"driver for CUDA 12.6", "needed", "13.0", "cpu"}, "an old driver");
  refused_device([](Settings& s) { s.driver_version = s.runtime_version = 12060; }, {"runtime 12.6", "needed", "12.8"}, "an old runtime");
  refused_device([](Settings& s) { s.major = 7, s.minor = 5; }, {"cuda:0", "Emulated GPU", "7.5", "needed: 8.0", "cpu"}, "an old device");
  refused_device([](Settings& s) { s.devices = 2; }, {"cuda:2", "2 devices", "0 to 1"}, "an index past the last", 2);
  refused_device([](Settings& s) { s.devices = 1; }, {"cuda:-1", "1 device "}, "a negative index", -1);
}

BOOST_AUTO_TEST_CASE(versions_that_work) {
  BOOST_TEST(version_problem(13000, 13000) == "");
  BOOST_TEST(version_problem(13000, 13010) == "");  // a newer runtime of the same major version
  BOOST_TEST(version_problem(14000, 13000) == "");
  BOOST_TEST(version_problem(12080, 12080) == "");
  BOOST_TEST(version_problem(12080, 13000) != "");
  BOOST_TEST(version_text(12080) == "12.8");
  const emulation::Fresh fresh;
  emulation::Settings settings = emulation::settings();
  settings.devices = 3;
  settings.major = 8;
  emulation::set(settings);
  BOOST_TEST(cuda_availability().devices == 3);
  BOOST_TEST(cuda_availability().emulated);
  Rank rank(RankOptions{.device = {DeviceKind::cuda, 2}});
  BOOST_TEST(cuda(rank).compute_capability() == 80);
}

BOOST_AUTO_TEST_CASE(libraries) {
  check_cublaslt_version(120800);
  refused<UnsupportedError>([] { check_cublaslt_version(120605); }, {"[cuda]", "found: cuBLASLt 12.6.5", "needed: 12.8.0", "matrix products"}, "an old cuBLASLt");
  const emulation::Fresh fresh;
  emulation::Settings settings = emulation::settings();
  settings.libraries = false;
  emulation::set(settings);
  refused<UnsupportedError>([] { SharedLibrary({"libcublasLt.so.13"}, "matrix products"); }, {"[cuda]", "libcublasLt.so.13", "matrix products"}, "a library that is missing");
}

BOOST_AUTO_TEST_CASE(too_little_memory) {
  const emulation::Fresh fresh;
  emulation::Settings settings = emulation::settings();
  settings.memory = size_t{256} << 20;
  emulation::set(settings);
  Rank rank(RankOptions{.device = {DeviceKind::cuda, 1}});
  BOOST_TEST(rank.allocator().limit() == 240 * mebibyte);  // a sixteenth is left to CUDA
  const Tensor parameters = Tensor::empty(rank, {100 * mebibyte}, DType::bf16, Category::parameters);
  std::vector<Tensor> activations;
  const auto fill = [&] {
    for (int i = 0; i < 1000; ++i) activations.push_back(Tensor::empty(rank, {mebibyte}, DType::f32));
  };
  refused<OutOfMemoryError>(fill, {"[memory]", "4.0 MiB more for activations", "memory of cuda:1", "Emulated GPU", "0.2 GiB", "limit 240.0 MiB", "biggest users: parameters 200.0 MiB, activations"},
                            "a device that is full");
  BOOST_TEST(activations.size() >= 8u);  // nearly all of what there is: the last segments are no larger than needed
  activations.clear();
  const Tensor fits = Tensor::empty(rank, {mebibyte}, DType::f32);  // and goes on
  BOOST_TEST(fits.defined());
  refused<OutOfMemoryError>([&] { Tensor::empty(rank, {int64_t{1} << 40}, DType::f32); }, {"memory of cuda:1", "largest free block"}, "more than there is");
  // Someone else has taken it: the device says no before the limit is reached.
  Rank first(RankOptions{.device = {DeviceKind::cuda, 2}}), second(RankOptions{.device = {DeviceKind::cuda, 2}});
  Tensor taken = Tensor::empty(first, {first.allocator().limit() / 4}, DType::f32);
  refused<OutOfMemoryError>([&] { Tensor::empty(second, {5 * mebibyte}, DType::f32); }, {"memory of cuda:2", "0.0 GiB free", "0.0 MiB reserved", "biggest users: none"}, "a device that others fill");
  BOOST_TEST(Tensor::zeros(second, {1}, DType::f32).to_vector<float>().at(0) == 0);
}

BOOST_AUTO_TEST_CASE(a_limit_that_is_given_holds) {
  const emulation::Fresh fresh;
  Rank rank(RankOptions{.device = {DeviceKind::cuda, 0}, .memory_limit = 3 * mebibyte});
  const Tensor tensor = Tensor::empty(rank, {3 * mebibyte / 4}, DType::f32);
  refused<OutOfMemoryError>([&] { Tensor::empty(rank, {1}, DType::f32); }, {"limit 3.0 MiB"}, "a full limit");
}

// Every call of the runtime fails once; the error names it, and the device goes on.
BOOST_AUTO_TEST_CASE(failed_calls_are_named) {
  const emulation::Fresh fresh;
  const auto failing = [&](const char* function, const std::function<void()>& call, const char* named = nullptr) {
    emulation::fail_call(function, 1, cudaErrorUnknown);
    refused<DeviceError>(call, {"[cuda]", std::string(named == nullptr ? function : named) + ":", "unknown error", "cudaErrorUnknown"}, function);
    emulation::recover();
  };
  const auto make = [] { Rank rank(RankOptions{.device = {DeviceKind::cuda, 0}}); };
  failing("cudaSetDevice", make);
  failing("cudaGetDeviceProperties", make);
  failing("cudaMemGetInfo", make);
  failing("cudaStreamCreate", make, "cudaStreamCreateWithFlags");
  make();

  Rank rank(RankOptions{.device = {DeviceKind::cuda, 0}});
  failing("cudaMalloc", [&] { Tensor::empty(rank, {8}, DType::f32); });
  const Tensor tensor = Tensor::zeros(rank, {8, 8}, DType::f32), other = Tensor::zeros(rank, {8, 8}, DType::f32);
  const std::vector<float> values(64, 1.0f);
  failing("cudaEventCreate", [&] { write<float>(rank, tensor, values); }, "cudaEventCreateWithFlags");
  failing("cudaMallocHost", [&] { write<float>(rank, tensor, values); });
  failing("cudaMemcpyAsync", [&] { write<float>(rank, tensor, values); });
  failing("cudaMemcpyAsync", [&] { copy(rank, tensor, other); });
  failing("cudaMemcpy2DAsync", [&] { contiguous(rank, tensor.slice(1, 0, 4)); });
  failing("cudaMemsetAsync", [&] { fill_zero(rank, tensor); });
  failing("cudaMemcpyAsync", [&] { tensor.to_vector<float>(); });
  failing("cudaEventRecord", [&] { tensor.to_vector<float>(); });
  failing("cudaEventSynchronize", [&] { tensor.to_vector<float>(); });
  failing("cudaStreamSynchronize", [&] { rank.accelerator()->synchronize(); });
  write<float>(rank, tensor, values);
  BOOST_TEST((tensor.to_vector<float>() == values));
}

BOOST_AUTO_TEST_CASE(what_the_runtime_does_not_say_is_no_device) {
  for (const char* function : {"cudaGetDeviceCount", "cudaDriverGetVersion", "cudaRuntimeGetVersion"}) {
    const emulation::Fresh fresh;
    emulation::fail_call(function, 1, cudaErrorUnknown);
    const CudaAvailability available = cuda_availability();
    BOOST_TEST(available.devices == 0);
    BOOST_TEST(available.reason.find(function) != std::string::npos, function << ": " << available.reason);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
