// cuDNN: descriptors, heuristics and plans are the real library's, which plans for an H200 that is described to it; what a plan does is computed here, from
// what was said to the library. Descriptors are followed as they are made, and only what the library took is believed.
#include <cudnn.h>
#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cudnn_reference.h"
#include "libraries.h"
#include "lock.h"
#include "state.h"
#include "streams.h"

namespace emulation {

namespace {

/// What was set of a descriptor.
struct Record {
  cudnnBackendDescriptorType_t type;
  std::map<int, std::vector<char>> values;
  std::map<int, std::vector<std::shared_ptr<Record>>> references;
  bool planned = false;  ///< an execution plan that the library has compiled
  GraphTensorRef tensor;  ///< of a tensor's descriptor, once finalized

  template <class T> T get(int name, T otherwise = {}) const {
    const auto found = values.find(name);
    if (found == values.end()) return otherwise;
    T value{};
    std::memcpy(&value, found->second.data(), std::min(sizeof value, found->second.size()));
    return value;
  }
  template <class T> std::vector<T> all(int name) const {
    const auto found = values.find(name);
    if (found == values.end()) return {};
    std::vector<T> list(found->second.size() / sizeof(T));
    std::memcpy(list.data(), found->second.data(), list.size() * sizeof(T));
    return list;
  }
  std::shared_ptr<Record> reference(int name) const {
    const auto found = references.find(name);
    return found == references.end() || found->second.empty() ? nullptr : found->second.front();
  }
};

struct Records {
  Lock lock;
  std::map<const void*, std::shared_ptr<Record>> list;
  std::shared_ptr<Record> find(const void* descriptor) {
    const std::lock_guard<Lock> held(lock);
    const auto found = list.find(descriptor);
    return found == list.end() ? nullptr : found->second;
  }
};
Records& records() {
  static Records all;
  return all;
}

struct Handle { cudaStream_t stream = nullptr; };

/// Why the emulation refused, until it is asked for.
std::string& own_reason() {
  thread_local std::string reason;
  return reason;
}
cudnnStatus_t refuse(const std::string& why, cudnnStatus_t status = CUDNN_STATUS_BAD_PARAM) {
  own_reason() = why;
  return status;
}
cudnnStatus_t planned_status(const char* function) { return static_cast<cudnnStatus_t>(planned_failure(function)); }

/// The real library's function of this name. It finds our driver by its name, as the loader knows it already.
void* real(const char* name) {
  static void* const library = [] {
    if (dlopen(EMULATION_CUDNN_DRIVER, RTLD_NOW | RTLD_GLOBAL) == nullptr) return static_cast<void*>(nullptr);
    // cuDNN loads this compiler for every plan and then lets it go, whose own copy of the C++ library leaves its memory behind each time (72704 bytes of libstdc++'s pool for
    // exceptions, as LeakSanitizer reports): it stays.
    if (dlopen(QUIRE_CUDA_TOOLKIT "/lib64/libnvrtc.so.13", RTLD_NOW | RTLD_LOCAL) == nullptr) dlopen("libnvrtc.so.13", RTLD_NOW | RTLD_LOCAL);
    void* loaded = dlopen(QUIRE_CUDA_TOOLKIT "/lib64/libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    return loaded != nullptr ? loaded : dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  }();
  return library == nullptr ? nullptr : dlsym(library, name);
}
#define EMULATION_REAL(name) reinterpret_cast<decltype(&::name)>(real(#name))

/// The device that plans are made for: an H200, as far as they depend on it.
cudnnBackendDescriptor_t described_device() {
  static const cudnnBackendDescriptor_t made = [] {
    const std::string text = R"({"cudaDeviceId":0,"deviceVer":900,"driverVer":13000,"totalGlobalMem":150754820096,"maxGridSize":[2147483647,65535,65535],)"
                             R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
                             R"("maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)"
                             R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1980000,)"
                             R"("memClockRateKHz":3201000,"l2CacheSize":62914560,"deviceName":"NVIDIA H200"})";
    cudnnBackendDescriptor_t device = nullptr;
    EMULATION_REAL(cudnnBackendCreateDescriptor)(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device);
    EMULATION_REAL(cudnnBackendSetAttribute)(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<int64_t>(text.size()), text.data());
    EMULATION_REAL(cudnnBackendFinalize)(device);
    return device;
  }();
  return made;
}

size_t version() {
  const int said = settings().cudnn_version;
  return said != 0 ? static_cast<size_t>(said) : EMULATION_REAL(cudnnGetVersion)();
}

cudnnStatus_t create_handle(cudnnHandle_t* handle) {
  if (const cudnnStatus_t failed = planned_status("cudnnCreate"); failed != CUDNN_STATUS_SUCCESS) return failed;
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t destroy_handle(cudnnHandle_t handle) {
  delete reinterpret_cast<Handle*>(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
  reinterpret_cast<Handle*>(handle)->stream = stream;
  return planned_status("cudnnSetStream");
}
void last_error(char* message, size_t size) {
  if (own_reason().empty()) return EMULATION_REAL(cudnnGetLastErrorString)(message, size);
  std::strncpy(message, own_reason().c_str(), size - 1);
  message[size - 1] = '\0';
  own_reason().clear();
}

cudnnStatus_t create(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  if (const cudnnStatus_t failed = planned_status("cudnnBackendCreateDescriptor"); failed != CUDNN_STATUS_SUCCESS) return failed;
  const cudnnStatus_t status = EMULATION_REAL(cudnnBackendCreateDescriptor)(type, descriptor);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  const std::lock_guard<Lock> held(records().lock);
  records().list[*descriptor] = std::make_shared<Record>(Record{type, {}, {}, false, nullptr});
  return status;
}
cudnnStatus_t destroy(cudnnBackendDescriptor_t descriptor) {
  {
    const std::lock_guard<Lock> held(records().lock);
    records().list.erase(descriptor);
  }
  return EMULATION_REAL(cudnnBackendDestroyDescriptor)(descriptor);
}

size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR: return 8;
    default: return 4;  // enumerations, FLOAT, INT32
  }
}

cudnnStatus_t set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  const std::shared_ptr<Record> record = records().find(descriptor);
  if (!record) return refuse("a descriptor that there is not");
  if (type == CUDNN_TYPE_HANDLE) {
    // The library itself is given the described device in place of a handle, which needs a real one.
    if (record->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) return CUDNN_STATUS_SUCCESS;
    cudnnBackendDescriptor_t device = described_device();
    return EMULATION_REAL(cudnnBackendSetAttribute)(descriptor, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &device);
  }
  const cudnnStatus_t status = EMULATION_REAL(cudnnBackendSetAttribute)(descriptor, name, type, count, values);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    std::vector<std::shared_ptr<Record>>& list = record->references[name];
    for (int64_t i = 0; i < count; ++i) list.push_back(records().find(static_cast<const cudnnBackendDescriptor_t*>(values)[i]));
  } else {
    const char* const bytes = static_cast<const char*>(values);
    record->values[name].assign(bytes, bytes + static_cast<size_t>(count) * bytes_of(type));
  }
  return status;
}

/// A tensor as the library gives it back.
GraphTensorRef read_tensor(cudnnBackendDescriptor_t descriptor, const Record& record) {
  const auto tensor = std::make_shared<GraphTensor>();
  const auto get = [&](cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, void* into) {
    int64_t written = 0;
    if (EMULATION_REAL(cudnnBackendGetAttribute)(descriptor, name, type, count, &written, into) != CUDNN_STATUS_SUCCESS || written != count)
      throw std::runtime_error("cudnn: a tensor does not say its attribute " + std::to_string(name));
  };
  get(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &tensor->id);
  get(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &tensor->type);
  get(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, tensor->sizes.data());
  get(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, tensor->strides.data());
  tensor->alignment = record.get<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1);  // which it does not give back
  get(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &tensor->inner);
  get(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &tensor->by_value);
  if (const auto offsets = record.reference(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC)) tensor->offsets = offsets->tensor;
  return tensor;
}

cudnnStatus_t finalize(cudnnBackendDescriptor_t descriptor) {
  if (const cudnnStatus_t failed = planned_status("cudnnBackendFinalize"); failed != CUDNN_STATUS_SUCCESS) return failed;
  const std::shared_ptr<Record> record = records().find(descriptor);
  if (!record) return refuse("a descriptor that there is not");
  if (record->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
    cudnnBackendDescriptor_t device = described_device();
    EMULATION_REAL(cudnnBackendSetAttribute)(descriptor, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &device);
  }
  if (record->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    if (const cudnnStatus_t failed = planned_status("plan"); failed != CUDNN_STATUS_SUCCESS) return failed;
    if (!record->reference(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)) return refuse("a plan without an engine");
    if (!settings().cudnn_plans) return CUDNN_STATUS_SUCCESS;  // compiling takes a second
    record->planned = true;
  }
  const cudnnStatus_t status = EMULATION_REAL(cudnnBackendFinalize)(descriptor);
  if (status == CUDNN_STATUS_SUCCESS && record->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) record->tensor = read_tensor(descriptor, *record);
  return status;
}

constexpr int64_t usual_workspace = 1 << 16;  ///< bytes, of a plan that was not compiled

cudnnStatus_t get(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t room, int64_t* count, void* values) {
  const std::shared_ptr<Record> record = records().find(descriptor);
  if (!record) return refuse("a descriptor that there is not");
  if (record->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR && !record->planned && name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    *count = 1;
    *static_cast<int64_t*>(values) = usual_workspace;
    return CUDNN_STATUS_SUCCESS;
  }
  const cudnnStatus_t status = EMULATION_REAL(cudnnBackendGetAttribute)(descriptor, name, type, room, count, values);
  if (status == CUDNN_STATUS_SUCCESS && name == CUDNN_ATTR_ENGINEHEUR_RESULTS && values != nullptr)
    for (int64_t i = 0; i < *count; ++i)  // configurations know the graph that they are of
      records().find(static_cast<cudnnBackendDescriptor_t*>(values)[i])->references[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH] = record->references[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH];
  return status;
}

GraphOperation operation_of(const Record& record) {
  GraphOperation op{};
  const auto tensor = [&](int name) { return record.reference(name) ? record.reference(name)->tensor : nullptr; };
  switch (record.type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
      const Record& what = *record.reference(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
      op.kind = GraphOperation::Kind::pointwise;
      op.pointwise = what.get<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
      op.axis = what.get<int64_t>(CUDNN_ATTR_POINTWISE_AXIS, -1);
      op.x = tensor(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
      op.b = tensor(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
      op.t = tensor(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
      op.y = tensor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
      break;
    }
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      op.kind = GraphOperation::Kind::reduction;
      op.reduction = record.reference(CUDNN_ATTR_OPERATION_REDUCTION_DESC)->get<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR);
      op.x = tensor(CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
      op.y = tensor(CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
      break;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      op.kind = GraphOperation::Kind::matmul;
      op.padding = record.reference(CUDNN_ATTR_OPERATION_MATMUL_DESC)->values.contains(CUDNN_ATTR_MATMUL_PADDING_VALUE);
      op.x = tensor(CUDNN_ATTR_OPERATION_MATMUL_ADESC);
      op.b = tensor(CUDNN_ATTR_OPERATION_MATMUL_BDESC);
      op.y = tensor(CUDNN_ATTR_OPERATION_MATMUL_CDESC);
      op.m_lengths = tensor(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC);
      op.n_lengths = tensor(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC);
      op.k_lengths = tensor(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC);
      break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      op.kind = GraphOperation::Kind::reshape;
      op.x = tensor(CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
      op.y = tensor(CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
      break;
    default: throw std::runtime_error("cudnn: an operation that is not emulated");
  }
  return op;
}

/// What is bound to the graph's tensors; throws where something is missing, too much, or not where it belongs.
void bind(GraphWork& work, const Record& pack) {
  const std::vector<int64_t> ids = pack.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const std::vector<void*> pointers = pack.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  if (ids.size() != pointers.size()) throw std::runtime_error("a pack of " + std::to_string(ids.size()) + " ids and " + std::to_string(pointers.size()) + " pointers");
  std::map<int64_t, void*> given;
  for (size_t i = 0; i < ids.size(); ++i)
    if (!given.emplace(ids[i], pointers[i]).second) throw std::runtime_error("tensor " + std::to_string(ids[i]) + " is given twice");
  for (const GraphTensorRef& tensor : tensors_in_memory(work.operations)) {
    const auto found = given.find(tensor->id);
    if (found == given.end()) throw std::runtime_error("tensor " + std::to_string(tensor->id) + " is not given");
    void* const data = found->second;
    if (is_device_memory(data, 1) == tensor->by_value) throw std::runtime_error("tensor " + std::to_string(tensor->id) + " lies on the wrong side");
    if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(tensor->by_value ? 4 : tensor->alignment) != 0) throw std::runtime_error("tensor " + std::to_string(tensor->id) + " is not aligned");
    if (tensor->by_value) work.values[tensor->id] = *static_cast<const float*>(data);
    else work.data[tensor->id] = data;
    given.erase(found);
  }
  if (!given.empty()) throw std::runtime_error("tensor " + std::to_string(given.begin()->first) + " is none of the graph's");
}

cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  if (const cudnnStatus_t failed = planned_status("cudnnBackendExecute"); failed != CUDNN_STATUS_SUCCESS) return failed;
  if (has_failed(current_device())) return CUDNN_STATUS_EXECUTION_FAILED;
  const std::shared_ptr<Record> planned = records().find(plan), given = records().find(pack);
  if (!planned || !given) return refuse("a descriptor that there is not");
  const std::shared_ptr<Stream> stream = stream_of(reinterpret_cast<Handle*>(handle)->stream);
  if (stream == nullptr || stream->device() != current_device()) return refuse("the handle's stream is not of this device");
  int64_t workspace_bytes = 0, count = 0;
  get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &workspace_bytes);
  void* const workspace = given->get<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  if (workspace_bytes > 0 && !is_device_memory(workspace, static_cast<size_t>(workspace_bytes))) return refuse("a workspace that is too small, or not the device's");
  static std::atomic<uint64_t> turns{0};
  GraphWork work;
  work.turn = turns++;
  try {
    const std::shared_ptr<Record> graph = planned->reference(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->reference(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    for (const std::shared_ptr<Record>& each : graph->references.at(CUDNN_ATTR_OPERATIONGRAPH_OPS)) work.operations.push_back(operation_of(*each));
    bind(work, *given);
  } catch (const std::exception& error) {
    return refuse(error.what());
  }
  ++counted().graphs;
  stream->push([=] {
    if (workspace_bytes > 0) std::memset(workspace, 0xff, static_cast<size_t>(workspace_bytes));  // the library owns it while it runs
    carry_out(work);
  });
  return CUDNN_STATUS_SUCCESS;
}

/// The functions that stand in place of the real library's.
void* stand_in(const std::string& name) {
  static const std::map<std::string, void*> functions = {
      {"cudnnGetVersion", reinterpret_cast<void*>(&version)},
      {"cudnnCreate", reinterpret_cast<void*>(&create_handle)},
      {"cudnnDestroy", reinterpret_cast<void*>(&destroy_handle)},
      {"cudnnSetStream", reinterpret_cast<void*>(&set_stream)},
      {"cudnnGetLastErrorString", reinterpret_cast<void*>(&last_error)},
      {"cudnnBackendCreateDescriptor", reinterpret_cast<void*>(&create)},
      {"cudnnBackendDestroyDescriptor", reinterpret_cast<void*>(&destroy)},
      {"cudnnBackendSetAttribute", reinterpret_cast<void*>(&set)},
      {"cudnnBackendGetAttribute", reinterpret_cast<void*>(&get)},
      {"cudnnBackendFinalize", reinterpret_cast<void*>(&finalize)},
      {"cudnnBackendExecute", reinterpret_cast<void*>(&execute)},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

}  // namespace

Library cudnn_library() {
  return {"libcudnn.so", [] { return real("cudnnGetVersion") != nullptr; },
          [](const char* name) { return stand_in(name) != nullptr ? stand_in(name) : real(name); }};
}

}  // namespace emulation
