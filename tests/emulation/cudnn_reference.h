// Graphs of operations as cuDNN describes them, computed on the CPU one operation after the other.
#pragma once
#include <cudnn.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace emulation {

/// A tensor's descriptor. Four dimensions: batch, heads, rows, columns; sizes and strides in elements.
struct GraphTensor {
  int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::array<int64_t, 4> sizes{}, strides{};
  int64_t alignment = 1;  ///< bytes
  bool inner = false, by_value = false;
  std::shared_ptr<GraphTensor> offsets;  ///< of each batch, null for none

  int64_t bytes_each() const;
  /// The dimension that counts tokens: rows, or columns where it is transposed.
  int token_axis() const { return sizes[3] == 1 || strides[3] == 1 ? 2 : 3; }
};
using GraphTensorRef = std::shared_ptr<GraphTensor>;

struct GraphOperation {
  enum class Kind { pointwise, reduction, matmul, reshape } kind;
  cudnnPointwiseMode_t pointwise = CUDNN_POINTWISE_ADD;
  cudnnReduceTensorOp_t reduction = CUDNN_REDUCE_TENSOR_ADD;
  int64_t axis = -1;      ///< of indices
  bool padding = false;   ///< what lies beyond the lengths of a product counts as 0, else as NaN
  GraphTensorRef x, b, t, y;                       ///< inputs, a select's condition, output
  GraphTensorRef m_lengths, n_lengths, k_lengths;  ///< of a product
};

struct GraphWork {
  std::vector<GraphOperation> operations;
  std::map<int64_t, void*> data;  ///< by id: device memory
  std::map<int64_t, float> values;  ///< by id: scalars of the host
  uint64_t turn = 0;  ///< sums that meet in memory are added in an order that depends on this
};

/// Every tensor in memory that the operations name, offsets and lengths included, once each.
std::vector<GraphTensorRef> tensors_in_memory(const std::vector<GraphOperation>& operations);

/// Computes each batch for as many tokens as its length says, and some behind that, which are NaN. Throws std::runtime_error where offsets and lengths do not fit
/// together, or memory that is not the device's would be touched.
void carry_out(const GraphWork& work);

}  // namespace emulation
