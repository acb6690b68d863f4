#include "cudnn_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "state.h"

namespace emulation {

namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t tile = 16;  ///< tokens: kernels compute whole tiles, past the end of a document

[[noreturn]] void wrong(const std::string& what) { throw std::runtime_error("cudnn: " + what); }

float rounded_to_bf16(float value) {
  if (std::isnan(value)) return value;
  uint32_t bits = std::bit_cast<uint32_t>(value);
  bits += 0x7fffu + (bits >> 16 & 1);
  return std::bit_cast<float>(bits & 0xffff0000u);
}
float rounded_to(cudnnDataType_t type, float value) { return type == CUDNN_DATA_BFLOAT16 ? rounded_to_bf16(value) : value; }

/// A tensor's values in one batch: heads, rows, columns.
struct Values {
  int64_t heads = 1, rows = 1, columns = 1;
  std::vector<float> values;
  Values() = default;
  Values(int64_t h, int64_t r, int64_t c) : heads(h), rows(r), columns(c), values(static_cast<size_t>(h * r * c), nan) {}
  float& at(int64_t h, int64_t r, int64_t c) { return values[static_cast<size_t>((h * rows + r) * columns + c)]; }
  float at(int64_t h, int64_t r, int64_t c) const { return values[static_cast<size_t>((h * rows + r) * columns + c)]; }
  /// With dimensions of 1, and heads that several share, spread.
  float spread(int64_t h, int64_t r, int64_t c, int64_t of_heads) const { return at(h * heads / of_heads, rows == 1 ? 0 : r, columns == 1 ? 0 : c); }
};

/// One batch of a graph.
class Batch {
 public:
  Batch(const GraphWork& work, int64_t batch) : work_(work), batch_(batch) {
    for (const GraphOperation& each : work.operations)
      for (const GraphTensorRef& lengths : {each.m_lengths, each.n_lengths, each.k_lengths})
        if (lengths) {
          const int64_t length = integer(*lengths);
          if (length_ >= 0 && length != length_) wrong("lengths of queries and of keys differ");
          length_ = length;
        }
    if (length_ < 0) wrong("a graph without lengths");
  }

  void run() {
    check_offsets();
    if (length_ == 0) return;
    for (const GraphOperation& each : work_.operations) {
      Values result = each.kind == GraphOperation::Kind::pointwise   ? pointwise(each)
                      : each.kind == GraphOperation::Kind::reduction ? reduction(each)
                      : each.kind == GraphOperation::Kind::matmul    ? product(each)
                                                                     : reshaped(each);
      for (float& value : result.values) value = rounded_to(each.y->type, value);
      if (!each.y->inner) store(*each.y, result, each.kind == GraphOperation::Kind::matmul);
      inner_[each.y->id] = std::move(result);
    }
  }

 private:
  const char* memory(const GraphTensor& tensor) const { return static_cast<const char*>(work_.data.at(tensor.id)); }

  /// An element of lengths or offsets.
  int64_t integer(const GraphTensor& tensor, int64_t more = 0) const {
    const char* const at = memory(tensor) + (batch_ + more) * tensor.strides[0] * tensor.bytes_each();
    if (!is_device_memory(at, static_cast<size_t>(tensor.bytes_each()))) wrong("lengths or offsets end before the last batch");
    if (tensor.type == CUDNN_DATA_INT32) return *reinterpret_cast<const int32_t*>(at);
    return *reinterpret_cast<const int64_t*>(at);
  }

  void check_offsets() const {
    for (const GraphTensorRef& tensor : tensors_in_memory(work_.operations)) {
      if (!tensor->offsets) continue;
      const int64_t begin = integer(*tensor->offsets), end = integer(*tensor->offsets, 1), row = tensor->strides[static_cast<size_t>(tensor->token_axis())];
      if (length_ < 0 || length_ > tensor->sizes[static_cast<size_t>(tensor->token_axis())]) wrong("a document is longer than the graph's longest");
      if (begin < 0 || end - begin < length_ * row) wrong("the offsets leave a document of " + std::to_string(length_) + " tokens " + std::to_string(end - begin) + " elements");
      if (begin * tensor->bytes_each() % tensor->alignment != 0) wrong("an offset breaks the alignment of its tensor");
    }
  }

  int64_t extent(const GraphTensor& tensor) const {
    return std::min(tensor.sizes[static_cast<size_t>(tensor.token_axis())], (length_ + tile - 1) / tile * tile);
  }
  int64_t first(const GraphTensor& tensor) const { return tensor.offsets ? integer(*tensor.offsets) : batch_ * tensor.strides[0]; }

  /// f(place in memory, place in values) for every element of the tokens that there are; the whole range must be the device's.
  template <class F>
  void each_element(const GraphTensor& tensor, Values& values, F&& f) const {
    const bool columns_are_tokens = tensor.token_axis() == 3;
    const int64_t rows = columns_are_tokens ? values.rows : std::min(values.rows, length_), columns = columns_are_tokens ? std::min(values.columns, length_) : values.columns;
    const int64_t last = first(tensor) + (values.heads - 1) * tensor.strides[1] + (rows - 1) * tensor.strides[2] + (columns - 1) * tensor.strides[3];
    char* const data = static_cast<char*>(work_.data.at(tensor.id));
    if (!is_device_memory(data + first(tensor) * tensor.bytes_each(), static_cast<size_t>((last - first(tensor) + 1) * tensor.bytes_each())))
      wrong("tensor " + std::to_string(tensor.id) + " ends before its last element");
    for (int64_t h = 0; h < values.heads; ++h)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
          f(data + (first(tensor) + h * tensor.strides[1] + r * tensor.strides[2] + c * tensor.strides[3]) * tensor.bytes_each(), values.at(h, r, c));
  }

  Values load(const GraphTensor& tensor) const {
    if (const auto found = inner_.find(tensor.id); found != inner_.end()) return found->second;
    if (tensor.inner) wrong("an operation reads what no earlier one made");
    if (tensor.by_value) {
      Values one(1, 1, 1);
      one.values[0] = work_.values.at(tensor.id);
      return one;
    }
    if (tensor.type == CUDNN_DATA_INT32) {  // lengths
      Values one(1, 1, 1);
      one.values[0] = static_cast<float>(integer(tensor));
      return one;
    }
    Values values(tensor.sizes[1], tensor.sizes[2], tensor.sizes[3]);
    (tensor.token_axis() == 3 ? values.columns : values.rows) = extent(tensor);
    values.values.assign(static_cast<size_t>(values.heads * values.rows * values.columns), nan);
    each_element(tensor, values, [&](const char* at, float& value) {
      if (tensor.type == CUDNN_DATA_BFLOAT16) value = std::bit_cast<float>(static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(at)) << 16);
      else value = *reinterpret_cast<const float*>(at);
    });
    return values;
  }

  /// A product into f32 memory is added to what is there, as blocks do that come one after the other.
  void store(const GraphTensor& tensor, Values& values, bool adds) const {
    each_element(tensor, values, [&](char* at, float& value) {
      if (tensor.type == CUDNN_DATA_BFLOAT16) {
        *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      } else {
        if (adds) value += *reinterpret_cast<const float*>(at);
        *reinterpret_cast<float*>(at) = value;
      }
    });
  }

  Values pointwise(const GraphOperation& op) const {
    const Values x = load(*op.x), b = op.b ? load(*op.b) : x, t = op.t ? load(*op.t) : x;
    Values y(std::max(x.heads, b.heads), std::max(x.rows, b.rows), std::max(x.columns, b.columns));
    for (int64_t h = 0; h < y.heads; ++h)
      for (int64_t r = 0; r < y.rows; ++r)
        for (int64_t c = 0; c < y.columns; ++c) {
          const float left = x.spread(h, r, c, y.heads), right = b.spread(h, r, c, y.heads);
          float& result = y.at(h, r, c);
          switch (op.pointwise) {
            case CUDNN_POINTWISE_ADD: result = left + right; break;
            case CUDNN_POINTWISE_SUB: result = left - right; break;
            case CUDNN_POINTWISE_MUL: result = left * right; break;
            case CUDNN_POINTWISE_DIV: result = left / right; break;
            case CUDNN_POINTWISE_EXP: result = std::exp(left); break;
            case CUDNN_POINTWISE_LOG: result = std::log(left); break;
            case CUDNN_POINTWISE_IDENTITY: result = left; break;
            case CUDNN_POINTWISE_GEN_INDEX: result = static_cast<float>(op.axis == 2 ? r : c); break;
            case CUDNN_POINTWISE_CMP_LT: result = left < right; break;
            case CUDNN_POINTWISE_CMP_GE: result = left >= right; break;
            case CUDNN_POINTWISE_LOGICAL_AND: result = left != 0 && right != 0; break;
            case CUDNN_POINTWISE_BINARY_SELECT: result = t.spread(h, r, c, y.heads) != 0 ? left : right; break;
            default: wrong("a pointwise operation that is not emulated");
          }
        }
    return y;
  }

  Values reduction(const GraphOperation& op) const {
    const Values x = load(*op.x);
    Values y(op.y->sizes[1] == op.x->sizes[1] ? x.heads : op.y->sizes[1], x.rows, op.y->sizes[3] == op.x->sizes[3] ? x.columns : 1);
    const int64_t group = x.heads / y.heads, width = x.columns / y.columns;
    for (int64_t h = 0; h < y.heads; ++h)
      for (int64_t r = 0; r < y.rows; ++r)
        for (int64_t c = 0; c < y.columns; ++c) {
          float total = op.reduction == CUDNN_REDUCE_TENSOR_MAX ? -std::numeric_limits<float>::infinity() : 0;
          for (int64_t i = 0; i < group; ++i)
            for (int64_t j = 0; j < width; ++j) {
              const float value = x.at(h * group + i, r, c * width + j);
              total = op.reduction == CUDNN_REDUCE_TENSOR_MAX ? (value > total || std::isnan(value) ? value : total) : total + value;
            }
          y.at(h, r, c) = total;
        }
    return y;
  }

  /// On tensor cores: operands are rounded where one of them is bf16, sums are f32.
  Values product(const GraphOperation& op) const {
    const bool half = op.x->type == CUDNN_DATA_BFLOAT16 || op.b->type == CUDNN_DATA_BFLOAT16;
    Values a = load(*op.x), b = load(*op.b);
    if (half)
      for (Values* const operand : {&a, &b})
        for (float& value : operand->values) value = rounded_to_bf16(value);
    Values c(std::max(a.heads, b.heads), a.rows, b.columns);
    const int64_t rows = op.m_lengths ? std::min(a.rows, length_) : a.rows, columns = op.n_lengths ? std::min(b.columns, length_) : b.columns,
                  inside = op.k_lengths ? std::min(a.columns, length_) : a.columns;
    if (op.padding) std::fill(c.values.begin(), c.values.end(), 0.0f);
    const bool meets_in_memory = !op.y->inner && op.y->type == CUDNN_DATA_FLOAT;
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < columns; ++j) {
          float total = 0;
          const int64_t blocks = (inside + tile - 1) / tile;
          for (int64_t i = 0; i < blocks; ++i) {
            const int64_t block = meets_in_memory ? static_cast<int64_t>((static_cast<uint64_t>(i) + work_.turn) % static_cast<uint64_t>(blocks)) : i;
            float part = meets_in_memory ? 0 : total;
            for (int64_t k = block * tile; k < std::min(inside, (block + 1) * tile); ++k) part += a.at(h * a.heads / c.heads, r, k) * b.at(h * b.heads / c.heads, k, j);
            total = meets_in_memory ? total + part : part;
          }
          c.at(h, r, j) = total;
        }
    return c;
  }

  /// The same memory seen through other strides: as it is, or with rows and columns exchanged.
  Values reshaped(const GraphOperation& op) const {
    const Values x = load(*op.x);
    const bool same = op.y->strides[2] == op.x->strides[2] && op.y->strides[3] == op.x->strides[3] && op.y->sizes == op.x->sizes;
    const bool exchanged = op.y->strides[2] == op.x->strides[3] && op.y->strides[3] == op.x->strides[2] && op.y->sizes[2] == op.x->sizes[3] && op.y->sizes[3] == op.x->sizes[2];
    if (op.x->sizes[1] != op.y->sizes[1] || (!same && !exchanged)) wrong("a reshape that is no transposition");
    if (same) return x;
    Values y(x.heads, x.columns, x.rows);
    for (int64_t h = 0; h < y.heads; ++h)
      for (int64_t r = 0; r < y.rows; ++r)
        for (int64_t c = 0; c < y.columns; ++c) y.at(h, r, c) = x.at(h, c, r);
    return y;
  }

  const GraphWork& work_;
  const int64_t batch_;
  int64_t length_ = -1;
  std::map<int64_t, Values> inner_;
};

}  // namespace

int64_t GraphTensor::bytes_each() const {
  switch (type) {
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32: return 4;
    case CUDNN_DATA_BFLOAT16: return 2;
    case CUDNN_DATA_INT64: return 8;
    case CUDNN_DATA_BOOLEAN: return 1;
    default: wrong("a type that is not emulated");
  }
}

std::vector<GraphTensorRef> tensors_in_memory(const std::vector<GraphOperation>& operations) {
  std::vector<GraphTensorRef> all;
  const auto add = [&](const GraphTensorRef& tensor, const auto& self) -> void {
    if (!tensor || tensor->inner) return;
    if (tensor->offsets) self(tensor->offsets, self);
    if (std::none_of(all.begin(), all.end(), [&](const GraphTensorRef& each) { return each->id == tensor->id; })) all.push_back(tensor);
  };
  for (const GraphOperation& each : operations)
    for (const GraphTensorRef& tensor : {each.x, each.b, each.t, each.y, each.m_lengths, each.n_lengths, each.k_lengths}) add(tensor, add);
  return all;
}

void carry_out(const GraphWork& work) {
  const int64_t batches = work.operations.back().y->sizes[0];
  for (int64_t batch = 0; batch < batches; ++batch) Batch(work, batch).run();
}

}  // namespace emulation
