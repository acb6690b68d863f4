// Matrix products as cuBLASLt describes them, on the CPU.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emulation {

struct Matrix {
  void* data = nullptr;
  int64_t rows = 0, columns = 0, stride = 0, batch_stride = 0;  ///< strides in elements
  int32_t batch = 1;
  bool bf16 = false, row_major = false;
  bool known = false;  ///< a type and layout that is emulated
  Matrix transposed() const {
    Matrix t = *this;
    t.rows = columns;
    t.columns = rows;
    t.row_major = !row_major;
    return t;
  }
  size_t bytes() const;  ///< from the first to the last element, all batches
};

/// d = alpha a b + beta c, accumulated in f32.
struct Product {
  Matrix a, b, c, d;
  float alpha = 1, beta = 0;
  bool device_scalars = false;
  const float *alpha_on_device = nullptr, *beta_on_device = nullptr;
  int parts = 1;  ///< of the contracted dimension, summed apart: algorithms differ in bits as real ones do
};
void carry_out(const Product& product);

}  // namespace emulation
