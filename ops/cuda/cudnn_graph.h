// Graphs of operations for cuDNN, through its backend interface: tensors, operations, engines that can compute them, plans.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/cudnn_library.h"

namespace quire::cudnn_graph {

/// A descriptor of the library, which goes with its last owner.
using Descriptor = std::shared_ptr<void>;
using Sizes = std::vector<int64_t>;

/// Throws DeviceError where the library refuses.
Descriptor make(cudnnBackendDescriptorType_t type);
void set(const Descriptor& descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values);
void set(const Descriptor& descriptor, cudnnBackendAttributeName_t name, const Descriptor& value);
void set(const Descriptor& descriptor, cudnnBackendAttributeName_t name, int64_t value);
Descriptor finalized(Descriptor descriptor);

/// Sizes and strides in elements.
struct TensorLayout {
  Sizes sizes, strides;
  /// Contiguous.
  static TensorLayout dense(Sizes sizes);
};

/// Operations in the order in which they are added. Four-dimensional tensors: batch, heads, rows, columns.
class Graph {
 public:
  /// A tensor in memory that a variant pack names by `id`. `offsets`: where each batch begins, in elements, instead of its stride.
  Descriptor tensor(int64_t id, cudnnDataType_t type, const TensorLayout& layout, const Descriptor& offsets = nullptr, int64_t alignment = 16);
  /// One value in host memory.
  Descriptor scalar(int64_t id, cudnnDataType_t type);
  /// A tensor that lives inside of the graph.
  Descriptor inner(cudnnDataType_t type, const TensorLayout& layout);

  void pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t precision, const Descriptor& x, const Descriptor& b, const Descriptor& y);
  /// y = condition ? x : b
  void select(const Descriptor& condition, const Descriptor& x, const Descriptor& b, const Descriptor& y);
  /// y = index along `axis`
  void indices(const Descriptor& like, int64_t axis, const Descriptor& y);
  void reduce(cudnnReduceTensorOp_t mode, const Descriptor& x, const Descriptor& y);
  /// Lengths, one per batch, which stand in for sizes; null for none.
  struct Lengths { Descriptor m, n, k; };
  /// c = a b. `padding`: what lies beyond the lengths counts as 0.
  void matmul(const Descriptor& a, const Descriptor& b, const Descriptor& c, const Lengths& lengths, bool padding = false);
  /// Another view of x.
  void reshape(const Descriptor& x, const Descriptor& y);

  const std::vector<Descriptor>& operations() const { return operations_; }

 private:
  Descriptor any(int64_t id, cudnnDataType_t type, const TensorLayout& layout, bool is_inner, bool by_value, const Descriptor& offsets, int64_t alignment);
  void operation(Descriptor operation) { operations_.push_back(finalized(std::move(operation))); }
  Descriptor pointwise_operation(cudnnPointwiseMode_t mode, cudnnDataType_t precision, int64_t axis);
  Descriptor kept(Descriptor descriptor) { return others_.emplace_back(finalized(std::move(descriptor))); }
  std::vector<Descriptor> operations_, others_;  ///< operations refer to the others
  int64_t inner_ids_ = 1 << 20;
};

/// A way to compute a graph.
struct Engine {
  Descriptor configuration;
  std::string text;  ///< `engine=6 knob24=26`: its number and what is set of it
};
/// The operation graph of these operations, and the engines that the library's heuristics propose for it, best first; none where it has none, which cudnn_reason()
/// explains. They keep the graph.
std::vector<Engine> engines(cudnnHandle_t handle, const Graph& graph);

struct Plan {
  Descriptor plan;
  int64_t workspace_bytes = 0;
};
/// Compiles the engine; nothing (an empty plan) where it can not be.
Plan compile(cudnnHandle_t handle, const Engine& engine);

struct Binding {
  int64_t id;
  const void* data;  ///< of the device, or of the host for scalars
};
/// Puts the plan's work into the handle's stream.
void execute(cudnnHandle_t handle, const Plan& plan, const std::vector<Binding>& bindings, void* workspace);

}  // namespace quire::cudnn_graph
