// Tensors: value semantics over shared storage. The last dimension is always contiguous; views share storage.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/dtype.h"
#include "runtime/error.h"
#include "runtime/rank.h"

namespace quire {

class Download;

/// Up to six sizes, each int64.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes);
  explicit Shape(std::span<const int64_t> sizes);
  int dims() const { return dims_; }
  int64_t operator[](int i) const { return sizes_[static_cast<size_t>(i)]; }
  int64_t& operator[](int i) { return sizes_[static_cast<size_t>(i)]; }
  int64_t back() const { return sizes_[static_cast<size_t>(dims_ - 1)]; }
  int64_t elements() const;
  void push_back(int64_t size);
  const int64_t* begin() const { return sizes_.data(); }
  const int64_t* end() const { return sizes_.data() + dims_; }
  bool operator==(const Shape& other) const;

 private:
  std::array<int64_t, 6> sizes_{};
  int dims_ = 0;
};
std::string to_string(const Shape& shape);  ///< `(4,128,768)`

/// Owned bytes of one allocation.
class Storage {
 public:
  Storage(Rank& rank, int64_t bytes, Category category);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  Accelerator* accelerator() const { return accelerator_.get(); }  ///< null for host memory

 private:
  std::shared_ptr<Accelerator> accelerator_;
  std::shared_ptr<Allocator> allocator_;
  char* data_;
  int64_t bytes_;
  Device device_;
};

class Tensor {
 public:
  Tensor() = default;  ///< undefined: `defined()` is false
  static Tensor empty(Rank& rank, const Shape& shape, DType dtype, Category category = Category::activations);
  static Tensor zeros(Rank& rank, const Shape& shape, DType dtype, Category category = Category::activations);
  /// Copies host values to the rank's device. Throws ShapeError unless the counts agree.
  template <class T>
  static Tensor from(Rank& rank, const Shape& shape, std::span<const T> values, Category category = Category::activations);

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int64_t size(int dim) const { return shape_[dim < 0 ? shape_.dims() + dim : dim]; }
  int64_t stride(int dim) const { return strides_[dim < 0 ? shape_.dims() + dim : dim]; }
  int64_t elements() const { return shape_.elements(); }
  int64_t bytes() const { return elements() * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const { return storage_->device(); }
  bool is_contiguous() const;

  /// Untyped and typed address of the first element. `data<T>` throws DTypeError unless T is the dtype.
  void* raw() const { return storage_->data() + offset_ * size_of(dtype_); }
  template <class T> T* data() const {
    if (dtype_ != dtype_of<T>::value) wrong_type(dtype_of<T>::value);
    return static_cast<T*>(raw());
  }
  /// Host copy of the values (contiguous order). Waits for a device's work; for tests, logs and files, never inside a step.
  template <class T> std::vector<T> to_vector() const;
  /// Bytes [begin, begin + size) of a contiguous tensor, to and from host memory; for files. `to_host` waits for a device's work.
  void to_host(int64_t begin, std::span<std::byte> into) const;
  void from_host(int64_t begin, std::span<const std::byte> bytes) const;
  /// Whether the values lie in host memory, where `raw` and `data` may be read.
  bool on_host() const { return storage_->device().kind == DeviceKind::cpu; }

  /// Views. Throw ShapeError.
  Tensor reshape(const Shape& shape) const;                                  ///< contiguous tensors only
  Tensor slice(int dim, int64_t begin, int64_t end) const;
  Tensor drop_first() const;                                                 ///< without a first dimension of size 1

  bool shares_storage(const Tensor& other) const { return storage_ == other.storage_; }
  /// Tensors (and saved copies) that keep this storage alive.
  long storage_users() const { return storage_.use_count(); }

 private:
  [[noreturn]] void wrong_type(DType asked) const;
  std::shared_ptr<Storage> storage_;
  Shape shape_, strides_;
  int64_t offset_ = 0;
  DType dtype_ = DType::f32;
};

/// Values of a tensor on their way to the host: what a step reports is read when the next one is under way. Keeps the tensor's memory.
class Readback {
 public:
  Readback() = default;
  Readback(Rank& rank, const Tensor& tensor);  ///< contiguous tensors only
  bool defined() const { return tensor_.defined(); }
  /// Waits where they are not here yet. Throws DTypeError unless T is the tensor's, and what the device's work threw.
  template <class T> std::vector<T> values();

 private:
  Tensor tensor_;
  std::shared_ptr<Download> download_;
  std::vector<std::byte> here_;
};

/// `(4,128,768) f32`
std::string describe(const Tensor& tensor);

/// Throws ShapeError unless the tensor is contiguous: for operations whose kernels take no strides.
void require_contiguous(std::string_view op, const Tensor& tensor);

/// Same values in contiguous memory (the same tensor where it is contiguous already); copies between tensors of equal shape and dtype; fills. All run on the rank's pool.
Tensor contiguous(Rank& rank, const Tensor& tensor);
void copy(Rank& rank, const Tensor& from, const Tensor& to);
void fill_zero(Rank& rank, const Tensor& tensor);
/// Host values into a contiguous tensor, in the order of the work on it. Throws ShapeError unless the counts agree, DTypeError unless T is the tensor's.
template <class T> void write(Rank& rank, const Tensor& tensor, std::span<const T> values);

}  // namespace quire
