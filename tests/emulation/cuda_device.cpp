// Devices, versions, errors, and the driver's functions that the runtime hands out.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "hopper_state.h"
#include "machine.h"
#include "state.h"

namespace emulation {

namespace {

thread_local cudaError_t last_error = cudaSuccess;

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
#define EMULATION_ERROR(name, text) {name, #name, text}
constexpr ErrorText error_texts[] = {
    EMULATION_ERROR(cudaSuccess, "no error"),
    EMULATION_ERROR(cudaErrorInvalidValue, "invalid argument"),
    EMULATION_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    EMULATION_ERROR(cudaErrorInitializationError, "initialization error"),
    EMULATION_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    EMULATION_ERROR(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    EMULATION_ERROR(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    EMULATION_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    EMULATION_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    EMULATION_ERROR(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    EMULATION_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    EMULATION_ERROR(cudaErrorSymbolNotFound, "named symbol not found"),
    EMULATION_ERROR(cudaErrorNotReady, "device not ready"),
    EMULATION_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    EMULATION_ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    EMULATION_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    EMULATION_ERROR(cudaErrorNotSupported, "operation not supported"),
    EMULATION_ERROR(cudaErrorUnknown, "unknown error"),
};
const ErrorText* text_of(cudaError_t error) {
  const auto* const found = std::find_if(std::begin(error_texts), std::end(error_texts), [&](const ErrorText& known) { return known.error == error; });
  return found == std::end(error_texts) ? nullptr : found;
}

}  // namespace

Call::Call(const char* function, bool asks_device) : status_(planned_failure(function)) {
  if (status_ == cudaSuccess && asks_device) {
    const Settings now = settings();
    if (now.driver_version == 0 || now.driver_version / 1000 < now.runtime_version / 1000) status_ = cudaErrorInsufficientDriver;
    else if (now.devices == 0) status_ = cudaErrorNoDevice;
    else if (has_failed(current_device())) status_ = cudaErrorLaunchFailure;
  }
  if (status_ != cudaSuccess) remember_error(status_);
}
cudaError_t Call::end(cudaError_t status) {
  if (status != cudaSuccess) remember_error(status);
  return status;
}
void remember_error(cudaError_t status) { last_error = status; }

namespace {

int attribute_of(const Settings& device, cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: return device.major;
    case cudaDevAttrComputeCapabilityMinor: return device.minor;
    case cudaDevAttrMultiProcessorCount: return device.multiprocessors;
    case cudaDevAttrMaxThreadsPerBlock: return 1024;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
    case cudaDevAttrWarpSize: return warp_size;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 48 << 10;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return static_cast<int>(largest_shared);
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 228 << 10;
    case cudaDevAttrMaxRegistersPerBlock: return 65536;
    case cudaDevAttrL2CacheSize: return 50 << 20;
    case cudaDevAttrMaxGridDimX: return 0x7fffffff;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrUnifiedAddressing: return 1;
    case cudaDevAttrAsyncEngineCount: return 3;
    default: return 0;
  }
}

CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base, const cuuint64_t* sizes, const cuuint64_t* strides,
                      const cuuint32_t* tile, const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const uint32_t element = type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ? 2 : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 0;
  const bool swizzled = swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
  if (element == 0 || rank != 2 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || (!swizzled && swizzle != CU_TENSOR_MAP_SWIZZLE_NONE))
    return CUDA_ERROR_INVALID_VALUE;
  const uint64_t row = uint64_t{tile[0]} * element;
  if (reinterpret_cast<uintptr_t>(base) % 16 != 0 || strides[0] % 16 != 0 || strides[0] >= uint64_t{1} << 40 || row % 16 != 0 ||
      (swizzled && row > 128))
    return CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < 2; ++i)
    if (sizes[i] == 0 || sizes[i] > uint64_t{1} << 32 || tile[i] == 0 || tile[i] > 256 || steps[i] != 1) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device_memory(base, (sizes[1] - 1) * strides[0] + sizes[0] * element)) return CUDA_ERROR_INVALID_VALUE;
  const TensorMap made{tensor_map_magic, static_cast<unsigned char*>(base), sizes[0], sizes[1], strides[0], tile[0], tile[1], element, swizzled ? 1u : 0u};
  std::memset(static_cast<void*>(map), 0xff, sizeof *map);
  std::memcpy(static_cast<void*>(map), &made, sizeof made);
  return CUDA_SUCCESS;
}

}  // namespace

}  // namespace emulation

using namespace emulation;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  Call call("cudaGetDeviceCount", false);
  if (call.failed()) return call.status();
  const Settings now = settings();
  if (now.driver_version == 0 || now.driver_version / 1000 < now.runtime_version / 1000) return call.end(cudaErrorInsufficientDriver);
  *count = now.devices;
  return call.end(now.devices > 0 ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  const int before = current_device();
  if (device >= 0 && device < std::min(settings().devices, most_devices)) choose_device(device);
  Call call("cudaSetDevice");
  if (call.failed()) return call.status();
  if (device == current_device()) return call.end(cudaSuccess);
  choose_device(before);
  return call.end(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  Call call("cudaGetDeviceProperties");
  if (call.failed()) return call.status();
  const Settings now = settings();
  if (device < 0 || device >= now.devices) return call.end(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "Emulated GPU");
  properties->totalGlobalMem = now.memory;
  properties->major = now.major;
  properties->minor = now.minor;
  properties->multiProcessorCount = now.multiprocessors;
  properties->warpSize = warp_size;
  properties->maxThreadsPerBlock = 1024;
  properties->sharedMemPerBlock = size_t{48} << 10;
  properties->sharedMemPerBlockOptin = largest_shared;
  properties->regsPerBlock = 65536;
  properties->l2CacheSize = 50 << 20;
  return call.end(cudaSuccess);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  Call call("cudaDeviceGetAttribute");
  if (call.failed()) return call.status();
  const Settings now = settings();
  if (device < 0 || device >= now.devices) return call.end(cudaErrorInvalidDevice);
  *value = attribute_of(now, attribute);
  return call.end(cudaSuccess);
}
cudaError_t cudaDriverGetVersion(int* version) {
  Call call("cudaDriverGetVersion", false);
  if (!call.failed()) *version = settings().driver_version;
  return call.status();
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  Call call("cudaRuntimeGetVersion", false);
  if (!call.failed()) *version = settings().runtime_version;
  return call.status();
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t error) {
  const auto* const known = text_of(error);
  return known == nullptr ? "unrecognized error code" : known->name;
}
/// Of a sticky error with what the emulator says of it.
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorLaunchFailure) return failure_text(current_device());
  const auto* const known = text_of(error);
  return known == nullptr ? "unrecognized error code" : known->text;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* status) {
  Call call("cudaGetDriverEntryPointByVersion");
  if (call.failed()) return call.status();
  const bool known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(&encode_tiled) : nullptr;
  if (status != nullptr) *status = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return call.end(known ? cudaSuccess : cudaErrorSymbolNotFound);
}

}  // extern "C"
