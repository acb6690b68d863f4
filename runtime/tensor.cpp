#include "runtime/tensor.h"

#include <algorithm>
#include <cstring>

#include "runtime/accelerator.h"

namespace quire {

Shape::Shape(std::initializer_list<int64_t> sizes) : Shape(std::span<const int64_t>(sizes.begin(), sizes.size())) {}

Shape::Shape(std::span<const int64_t> sizes) {
  for (int64_t size : sizes) push_back(size);
}

void Shape::push_back(int64_t size) {
  if (dims_ == static_cast<int>(sizes_.size())) fail<ShapeError>("shape", "more than {} dimensions", sizes_.size());
  if (size < 0) fail<ShapeError>("shape", "size {} is negative", size);
  sizes_[static_cast<size_t>(dims_++)] = size;
}

int64_t Shape::elements() const {
  int64_t count = 1;
  for (int64_t size : *this)
    if (__builtin_mul_overflow(count, size, &count)) fail<ShapeError>("shape", "{} has more elements than 63 bits count", to_string(*this));
  return count;
}

bool Shape::operator==(const Shape& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

std::string to_string(const Shape& shape) {
  std::string text = "(";
  for (int i = 0; i < shape.dims(); ++i) text += fmt::format("{}{}", i > 0 ? "," : "", shape[i]);
  return text + ")";
}

Storage::Storage(Rank& rank, int64_t bytes, Category category)
    : accelerator_(rank.shared_accelerator()), allocator_(rank.shared_allocator()), data_(static_cast<char*>(allocator_->allocate(bytes, category))), bytes_(bytes),
      device_(rank.device()) {}

Storage::~Storage() { allocator_->release(data_); }

namespace {

Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  int64_t stride = 1;
  for (int i = shape.dims() - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

}  // namespace

Tensor Tensor::empty(Rank& rank, const Shape& shape, DType dtype, Category category) {
  Tensor tensor;
  tensor.storage_ = std::make_shared<Storage>(rank, shape.elements() * size_of(dtype), category);
  tensor.shape_ = shape;
  tensor.strides_ = contiguous_strides(shape);
  tensor.dtype_ = dtype;
  return tensor;
}

Tensor Tensor::zeros(Rank& rank, const Shape& shape, DType dtype, Category category) {
  Tensor tensor = empty(rank, shape, dtype, category);
  fill_zero(rank, tensor);
  return tensor;
}

template <class T>
Tensor Tensor::from(Rank& rank, const Shape& shape, std::span<const T> values, Category category) {
  if (static_cast<int64_t>(values.size()) != shape.elements())
    fail<ShapeError>("tensor", "{} values for shape {}", values.size(), to_string(shape));
  Tensor tensor = empty(rank, shape, dtype_of<T>::value, category);
  write(rank, tensor, values);
  return tensor;
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  if (dtype_ != dtype_of<T>::value) wrong_type(dtype_of<T>::value);
  if (storage_->device().kind == DeviceKind::null) fail<StateError>("tensor", "the null device holds no values");
  std::vector<T> values(static_cast<size_t>(elements()));
  const auto take = [accelerator = storage_->accelerator()](const void* from, void* to, int64_t bytes) {
    if (accelerator != nullptr) accelerator->download(from, to, bytes);
    else std::memcpy(to, from, static_cast<size_t>(bytes));
  };
  if (is_contiguous()) {
    if (!values.empty()) take(raw(), values.data(), bytes());
    return values;
  }
  const int64_t columns = shape_.dims() == 0 ? 1 : shape_.back();
  std::array<int64_t, 6> index{};
  for (size_t at = 0; at < values.size(); at += static_cast<size_t>(columns)) {
    int64_t offset = 0;
    for (int d = 0; d + 1 < shape_.dims(); ++d) offset += index[static_cast<size_t>(d)] * strides_[d];
    take(static_cast<const T*>(raw()) + offset, values.data() + at, columns * static_cast<int64_t>(sizeof(T)));
    for (int d = shape_.dims() - 2; d >= 0 && ++index[static_cast<size_t>(d)] == shape_[d]; --d) index[static_cast<size_t>(d)] = 0;
  }
  return values;
}

namespace {

void check_range(const Tensor& tensor, int64_t begin, size_t size) {
  require_contiguous("tensor", tensor);
  if (begin < 0 || begin > tensor.bytes() || static_cast<int64_t>(size) > tensor.bytes() - begin)
    fail<ShapeError>("tensor", "bytes [{}, {}) of {}", begin, begin + static_cast<int64_t>(size), describe(tensor));
}

}  // namespace

void Tensor::to_host(int64_t begin, std::span<std::byte> into) const {
  check_range(*this, begin, into.size());
  if (storage_->device().kind == DeviceKind::null) fail<StateError>("tensor", "the null device holds no values");
  if (into.empty()) return;
  const char* const from = static_cast<const char*>(raw()) + begin;
  if (storage_->accelerator() != nullptr) storage_->accelerator()->download(from, into.data(), static_cast<int64_t>(into.size()));
  else std::memcpy(into.data(), from, into.size());
}

void Tensor::from_host(int64_t begin, std::span<const std::byte> bytes) const {
  check_range(*this, begin, bytes.size());
  if (storage_->device().kind == DeviceKind::null || bytes.empty()) return;
  char* const to = static_cast<char*>(raw()) + begin;
  if (storage_->accelerator() != nullptr) storage_->accelerator()->upload(bytes.data(), to, static_cast<int64_t>(bytes.size()));
  else std::memcpy(to, bytes.data(), bytes.size());
}

template <class T>
void write(Rank& rank, const Tensor& tensor, std::span<const T> values) {
  require_contiguous("write", tensor);
  if (static_cast<int64_t>(values.size()) != tensor.elements()) fail<ShapeError>("write", "{} values for {}", values.size(), describe(tensor));
  void* const to = tensor.data<T>();
  if (!rank.computes() || values.empty()) return;
  if (rank.accelerator() != nullptr) rank.accelerator()->upload(values.data(), to, tensor.bytes());
  else std::memcpy(to, values.data(), values.size_bytes());
}

Readback::Readback(Rank& rank, const Tensor& tensor) : tensor_(tensor) {
  require_contiguous("readback", tensor);
  if (!rank.computes()) return;
  if (rank.accelerator() != nullptr) download_ = rank.accelerator()->start_download(tensor.raw(), tensor.bytes());
  else here_.assign(static_cast<const std::byte*>(tensor.raw()), static_cast<const std::byte*>(tensor.raw()) + tensor.bytes());
}

template <class T>
std::vector<T> Readback::values() {
  static_cast<void>(tensor_.data<T>());  // the right type
  const std::span<const std::byte> bytes = download_ ? download_->wait() : std::span<const std::byte>(here_);
  std::vector<T> result(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

#define QUIRE_INSTANTIATE(T)                                                                 \
  template void write<T>(Rank&, const Tensor&, std::span<const T>);                          \
  template std::vector<T> Readback::values<T>();                                             \
  template Tensor Tensor::from<T>(Rank&, const Shape&, std::span<const T>, Category);        \
  template std::vector<T> Tensor::to_vector<T>() const;
QUIRE_INSTANTIATE(double)
QUIRE_INSTANTIATE(float)
QUIRE_INSTANTIATE(bf16)
QUIRE_INSTANTIATE(int32_t)
QUIRE_INSTANTIATE(int64_t)
#undef QUIRE_INSTANTIATE

bool Tensor::is_contiguous() const {
  if (elements() == 0) return true;
  int64_t stride = 1;
  for (int i = shape_.dims() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != stride) return false;
    stride *= shape_[i];
  }
  return true;
}

Tensor Tensor::reshape(const Shape& shape) const {
  if (shape.elements() != elements()) fail<ShapeError>("reshape", "{} to {}: {} and {} elements", to_string(shape_), to_string(shape), elements(), shape.elements());
  require_contiguous("reshape", *this);
  Tensor view = *this;
  view.shape_ = shape;
  view.strides_ = contiguous_strides(shape);
  return view;
}

Tensor Tensor::slice(int dim, int64_t begin, int64_t end) const {
  if (dim < 0 || dim >= shape_.dims() || begin < 0 || begin > end || end > shape_[dim])
    fail<ShapeError>("slice", "[{}, {}) of dimension {} of {}", begin, end, dim, describe(*this));
  Tensor view = *this;
  view.offset_ += begin * strides_[dim];
  view.shape_[dim] = end - begin;
  return view;
}

void Tensor::wrong_type(DType asked) const { fail<DTypeError>("tensor", "{} read as {}", describe(*this), name_of(asked)); }

std::string describe(const Tensor& tensor) {
  return tensor.defined() ? fmt::format("{} {}", to_string(tensor.shape()), name_of(tensor.dtype())) : "undefined";
}

namespace {

constexpr int64_t copy_chunk = int64_t{1} << 18;  ///< bytes

/// Where the row-th run of the last dimension begins, counted over all other dimensions.
char* row_address(const Tensor& tensor, int64_t row) {
  int64_t offset = 0;
  for (int d = tensor.shape().dims() - 2; d >= 0; --d) {
    offset += row % tensor.size(d) * tensor.stride(d);
    row /= tensor.size(d);
  }
  return static_cast<char*>(tensor.raw()) + offset * size_of(tensor.dtype());
}

/// On a device: runs of the last dimension, as many at once as lie evenly spaced.
void copy_on(Accelerator& accelerator, const Tensor& from, const Tensor& to) {
  if (from.is_contiguous() && to.is_contiguous()) return accelerator.copy(from.raw(), to.raw(), from.bytes());
  const int64_t width = size_of(from.dtype()), row_bytes = from.size(-1) * width;
  const int64_t rows = from.shape().dims() > 1 ? from.size(-2) : 1, blocks = from.bytes() / row_bytes / rows;
  for (int64_t block = 0; block < blocks; ++block)
    accelerator.copy_rows(row_address(from, block * rows), rows > 1 ? from.stride(-2) * width : row_bytes, row_address(to, block * rows),
                          rows > 1 ? to.stride(-2) * width : row_bytes, row_bytes, rows);
}

}  // namespace

void copy(Rank& rank, const Tensor& from, const Tensor& to) {
  if (!(from.shape() == to.shape()) || from.dtype() != to.dtype()) fail<ShapeError>("copy", "{} to {}", describe(from), describe(to));
  if (!rank.computes() || from.elements() == 0) return;
  if (rank.accelerator() != nullptr) return copy_on(*rank.accelerator(), from, to);
  if (from.is_contiguous() && to.is_contiguous()) {
    const int64_t bytes = from.bytes();
    rank.pool().parallel_for(chunks_of(bytes, copy_chunk), [&](int64_t chunk, int) {
      const int64_t begin = chunk * copy_chunk, count = std::min(copy_chunk, bytes - begin);
      std::memcpy(static_cast<char*>(to.raw()) + begin, static_cast<const char*>(from.raw()) + begin, static_cast<size_t>(count));
    });
    return;
  }
  // Rows (runs of the last dimension) are contiguous whatever the strides.
  const int64_t row_bytes = from.size(-1) * size_of(from.dtype()), rows = from.bytes() / row_bytes;
  const int64_t rows_per_chunk = std::max<int64_t>(1, copy_chunk / row_bytes);
  rank.pool().parallel_for(chunks_of(rows, rows_per_chunk), [&](int64_t chunk, int) {
    for (int64_t row = chunk * rows_per_chunk; row < std::min(rows, (chunk + 1) * rows_per_chunk); ++row)
      std::memcpy(row_address(to, row), row_address(from, row), static_cast<size_t>(row_bytes));
  });
}

void require_contiguous(std::string_view op, const Tensor& tensor) {
  if (!tensor.is_contiguous()) fail<ShapeError>(op, "{} is not contiguous; use contiguous() first", describe(tensor));
}

Tensor contiguous(Rank& rank, const Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor;
  Tensor result = Tensor::empty(rank, tensor.shape(), tensor.dtype());
  copy(rank, tensor, result);
  return result;
}

Tensor Tensor::drop_first() const {
  if (shape_.dims() == 0 || shape_[0] != 1) fail<ShapeError>("drop_first", "the first dimension of {} is not 1", describe(*this));
  Tensor view = *this;
  view.shape_ = Shape(std::span(shape_.begin() + 1, shape_.end()));
  view.strides_ = Shape(std::span(strides_.begin() + 1, strides_.end()));
  return view;
}

void fill_zero(Rank& rank, const Tensor& tensor) {
  require_contiguous("fill_zero", tensor);
  if (!rank.computes()) return;
  const int64_t bytes = tensor.bytes();
  if (rank.accelerator() != nullptr) return bytes > 0 ? rank.accelerator()->fill(tensor.raw(), 0, bytes) : void();
  rank.pool().parallel_for(chunks_of(bytes, copy_chunk), [&](int64_t chunk, int) {
    const int64_t begin = chunk * copy_chunk;
    std::memset(static_cast<char*>(tensor.raw()) + begin, 0, static_cast<size_t>(std::min(copy_chunk, bytes - begin)));
  });
}

}  // namespace quire
