#include "ops/cuda/cudnn_graph.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace quire::cudnn_graph {

Descriptor make(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made = nullptr;
  check_cudnn(cudnn().cudnnBackendCreateDescriptor(type, &made), "cudnnBackendCreateDescriptor");
  return Descriptor(made, [](void* descriptor) { cudnn().cudnnBackendDestroyDescriptor(descriptor); });
}

void set(const Descriptor& descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  check_cudnn(cudnn().cudnnBackendSetAttribute(descriptor.get(), name, type, count, values), "cudnnBackendSetAttribute");
}

void set(const Descriptor& descriptor, cudnnBackendAttributeName_t name, const Descriptor& value) {
  void* const raw = value.get();
  set(descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
}

void set(const Descriptor& descriptor, cudnnBackendAttributeName_t name, int64_t value) { set(descriptor, name, CUDNN_TYPE_INT64, 1, &value); }

Descriptor finalized(Descriptor descriptor) {
  check_cudnn(cudnn().cudnnBackendFinalize(descriptor.get()), "cudnnBackendFinalize");
  return descriptor;
}

namespace {

void set_type(const Descriptor& descriptor, cudnnBackendAttributeName_t name, cudnnDataType_t value) { set(descriptor, name, CUDNN_TYPE_DATA_TYPE, 1, &value); }
void set_flag(const Descriptor& descriptor, cudnnBackendAttributeName_t name, bool value) { set(descriptor, name, CUDNN_TYPE_BOOLEAN, 1, &value); }
void set_sizes(const Descriptor& descriptor, cudnnBackendAttributeName_t name, const Sizes& values) {
  set(descriptor, name, CUDNN_TYPE_INT64, static_cast<int64_t>(values.size()), values.data());
}

/// The first of what an attribute holds; nothing where the library does not say.
template <class T>
T attribute(const Descriptor& descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) {
  T value{};
  int64_t count = 0;
  check_cudnn(cudnn().cudnnBackendGetAttribute(descriptor.get(), name, type, 1, &count, &value), "cudnnBackendGetAttribute");
  return value;
}

/// The descriptors that an attribute holds.
std::vector<Descriptor> attribute_descriptors(const Descriptor& descriptor, cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type) {
  int64_t count = 0;
  check_cudnn(cudnn().cudnnBackendGetAttribute(descriptor.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr), "cudnnBackendGetAttribute");
  std::vector<Descriptor> all;
  std::vector<void*> raw;
  for (int64_t i = 0; i < count; ++i) raw.push_back(all.emplace_back(make(type)).get());
  if (count > 0)
    check_cudnn(cudnn().cudnnBackendGetAttribute(descriptor.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, raw.data()), "cudnnBackendGetAttribute");
  all.resize(static_cast<size_t>(count));
  return all;
}

std::string text_of(const Descriptor& configuration) {
  const Descriptor engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  void* raw = engine.get();
  int64_t count = 0;
  check_cudnn(cudnn().cudnnBackendGetAttribute(configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw), "cudnnBackendGetAttribute");
  std::string text = fmt::format("engine={}", attribute<int64_t>(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64));
  std::vector<std::pair<int, int64_t>> knobs;
  for (const Descriptor& knob : attribute_descriptors(configuration, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR))
    knobs.emplace_back(static_cast<int>(attribute<cudnnBackendKnobType_t>(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE)),
                       attribute<int64_t>(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64));
  std::sort(knobs.begin(), knobs.end());
  for (const auto& [type, value] : knobs) text += fmt::format(" knob{}={}", type, value);
  return text;
}

}  // namespace

TensorLayout TensorLayout::dense(Sizes sizes) {
  Sizes strides(sizes.size());
  for (int64_t i = static_cast<int64_t>(sizes.size()) - 1, stride = 1; i >= 0; --i) {
    strides[static_cast<size_t>(i)] = stride;
    stride *= sizes[static_cast<size_t>(i)];
  }
  return {std::move(sizes), std::move(strides)};
}

Descriptor Graph::any(int64_t id, cudnnDataType_t type, const TensorLayout& layout, bool is_inner, bool by_value, const Descriptor& offsets, int64_t alignment) {
  const Descriptor tensor = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  set(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  set_type(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  set_sizes(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, layout.sizes);
  set_sizes(tensor, CUDNN_ATTR_TENSOR_STRIDES, layout.strides);
  set(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, alignment);
  set_flag(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, is_inner);
  set_flag(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, by_value);
  if (offsets) set(tensor, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, offsets);
  return kept(tensor);
}

Descriptor Graph::tensor(int64_t id, cudnnDataType_t type, const TensorLayout& layout, const Descriptor& offsets, int64_t alignment) {
  return any(id, type, layout, false, false, offsets, alignment);
}
Descriptor Graph::scalar(int64_t id, cudnnDataType_t type) { return any(id, type, TensorLayout::dense({1, 1, 1, 1}), false, true, nullptr, 16); }
Descriptor Graph::inner(cudnnDataType_t type, const TensorLayout& layout) { return any(inner_ids_++, type, layout, true, false, nullptr, 16); }

Descriptor Graph::pointwise_operation(cudnnPointwiseMode_t mode, cudnnDataType_t precision, int64_t axis) {
  const Descriptor what = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR), operation = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  set(what, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  set_type(what, CUDNN_ATTR_POINTWISE_MATH_PREC, precision);
  if (axis >= 0) set(what, CUDNN_ATTR_POINTWISE_AXIS, axis);
  set(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kept(what));
  return operation;
}

void Graph::pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t precision, const Descriptor& x, const Descriptor& b, const Descriptor& y) {
  const Descriptor made = pointwise_operation(mode, precision, -1);
  set(made, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b) set(made, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  set(made, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  operation(made);
}

void Graph::select(const Descriptor& condition, const Descriptor& x, const Descriptor& b, const Descriptor& y) {
  const Descriptor made = pointwise_operation(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1);
  set(made, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  set(made, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  set(made, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, condition);
  set(made, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  operation(made);
}

void Graph::indices(const Descriptor& like, int64_t axis, const Descriptor& y) {
  const Descriptor made = pointwise_operation(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, axis);
  set(made, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, like);
  set(made, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  operation(made);
}

void Graph::reduce(cudnnReduceTensorOp_t mode, const Descriptor& x, const Descriptor& y) {
  const Descriptor what = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR), made = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  set(what, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
  set_type(what, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  set(made, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kept(what));
  set(made, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  set(made, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  operation(made);
}

void Graph::matmul(const Descriptor& a, const Descriptor& b, const Descriptor& c, const Lengths& lengths, bool padding) {
  const Descriptor what = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR), made = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  set_type(what, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  const double zero = 0;
  if (padding) set(what, CUDNN_ATTR_MATMUL_PADDING_VALUE, CUDNN_TYPE_DOUBLE, 1, &zero);
  set(made, CUDNN_ATTR_OPERATION_MATMUL_DESC, kept(what));
  set(made, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  set(made, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  set(made, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  if (lengths.m) set(made, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, lengths.m);
  if (lengths.n) set(made, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, lengths.n);
  if (lengths.k) set(made, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, lengths.k);
  operation(made);
}

void Graph::reshape(const Descriptor& x, const Descriptor& y) {
  const Descriptor made = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  set(made, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  set(made, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  operation(made);
}

std::vector<Engine> engines(cudnnHandle_t handle, const Graph& graph) {
  std::vector<void*> raw;
  for (const Descriptor& operation : graph.operations()) raw.push_back(operation.get());
  const Descriptor whole = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  set(whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(raw.size()), raw.data());
  const cudnnStatus_t status = cudnn().cudnnBackendFinalize(whole.get());
  if (status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000) return {};
  check_cudnn(status, "cudnnBackendFinalize of a graph");
  const Descriptor heuristics = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  set(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole);
  set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  const cudnnStatus_t asked = cudnn().cudnnBackendFinalize(heuristics.get());
  if (asked / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000) return {};
  check_cudnn(asked, "cudnnBackendFinalize of heuristics");
  std::vector<Engine> all;
  for (Descriptor& configuration : attribute_descriptors(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)) {
    std::string text = text_of(configuration);
    all.push_back({Descriptor(configuration.get(), [configuration, whole, graph](void*) {}), std::move(text)});  // it refers to the graph
  }
  return all;
}

Plan compile(cudnnHandle_t handle, const Engine& engine) {
  Plan result;
  const Descriptor plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine.configuration);
  const cudnnStatus_t status = cudnn().cudnnBackendFinalize(plan.get());
  if (status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000) return result;
  check_cudnn(status, "cudnnBackendFinalize of a plan");
  result.workspace_bytes = attribute<int64_t>(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64);
  result.plan = Descriptor(plan.get(), [plan, kept = engine.configuration](void*) {});
  return result;
}

void execute(cudnnHandle_t handle, const Plan& plan, const std::vector<Binding>& bindings, void* workspace) {
  std::vector<int64_t> ids;
  std::vector<const void*> data;
  for (const Binding& each : bindings) {
    ids.push_back(each.id);
    data.push_back(each.data);
  }
  const Descriptor pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, static_cast<int64_t>(ids.size()), ids.data());
  set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, static_cast<int64_t>(data.size()), data.data());
  set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  check_cudnn(cudnn().cudnnBackendExecute(handle, plan.plan.get(), finalized(pack).get()), "cudnnBackendExecute");
}

}  // namespace quire::cudnn_graph
