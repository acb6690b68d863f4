#include "products.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

namespace emulation {

namespace {

/// Rows are packed without gaps, in f32.
struct Packed {
  int64_t rows, columns;
  std::vector<float> values;
};

float widen(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
uint16_t narrow(float value) {
  if (std::isnan(value)) return 0x7fff;
  uint32_t bits = std::bit_cast<uint32_t>(value);
  bits += 0x7fffu + (bits >> 16 & 1);  // to nearest, ties to even
  return static_cast<uint16_t>(bits >> 16);
}

float element(const Matrix& m, int64_t batch, int64_t row, int64_t column) {
  const int64_t at = batch * m.batch_stride + (m.row_major ? row * m.stride + column : column * m.stride + row);
  return m.bf16 ? widen(static_cast<const uint16_t*>(m.data)[at]) : static_cast<const float*>(m.data)[at];
}

Packed pack(const Matrix& m, int64_t batch) {
  Packed packed{m.rows, m.columns, std::vector<float>(static_cast<size_t>(m.rows * m.columns))};
  // Memory is read along its lines, in blocks where the packed matrix is the transposed one.
  constexpr int64_t block = 32;
  for (int64_t row0 = 0; row0 < m.rows; row0 += block)
    for (int64_t column0 = 0; column0 < m.columns; column0 += m.row_major ? m.columns : block) {
      const int64_t row1 = std::min(row0 + block, m.rows), column1 = m.row_major ? m.columns : std::min(column0 + block, m.columns);
      for (int64_t row = row0; row < row1; ++row)
        for (int64_t column = column0; column < column1; ++column)
          packed.values[static_cast<size_t>(row * m.columns + column)] = element(m, batch, row, column);
    }
  return packed;
}

/// sum [rows, n] += a [rows, k0..k1) b [k0..k1, n): four rows at a time, so that a line of b is read once for them.
__attribute__((always_inline)) inline void add_product(const float* a, int64_t a_stride, const float* b, float* sum, int64_t rows, int64_t n,
                                                       int64_t k0, int64_t k1) {
  constexpr int64_t strip = 64;
  for (int64_t row = 0; row < rows; row += 4) {
    const int64_t count = std::min<int64_t>(4, rows - row);
    for (int64_t j = 0; j < n; j += strip) {
      const int64_t width = std::min(strip, n - j);
      alignas(64) float part[4][strip] = {};
      if (count == 4 && width == strip) {
        for (int64_t k = k0; k < k1; ++k) {
          const float* const line = b + k * n + j;
          const float a0 = a[row * a_stride + k], a1 = a[(row + 1) * a_stride + k], a2 = a[(row + 2) * a_stride + k], a3 = a[(row + 3) * a_stride + k];
          for (int64_t i = 0; i < strip; ++i) {
            part[0][i] += a0 * line[i];
            part[1][i] += a1 * line[i];
            part[2][i] += a2 * line[i];
            part[3][i] += a3 * line[i];
          }
        }
      } else {
        for (int64_t k = k0; k < k1; ++k)
          for (int64_t r = 0; r < count; ++r)
            for (int64_t i = 0; i < width; ++i) part[r][i] += a[(row + r) * a_stride + k] * b[k * n + j + i];
      }
      for (int64_t r = 0; r < count; ++r)
        for (int64_t i = 0; i < width; ++i) sum[(row + r) * n + j + i] += part[r][i];
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void add_product_avx2(const float* a, int64_t a_stride, const float* b, float* sum, int64_t rows, int64_t n,
                                                      int64_t k0, int64_t k1) {
  add_product(a, a_stride, b, sum, rows, n, k0, k1);
}
bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}
#endif
void add_product_plain(const float* a, int64_t a_stride, const float* b, float* sum, int64_t rows, int64_t n, int64_t k0, int64_t k1) {
  add_product(a, a_stride, b, sum, rows, n, k0, k1);
}

}  // namespace

size_t Matrix::bytes() const {
  if (rows == 0 || columns == 0) return 0;
  const int64_t last = (batch - 1) * batch_stride + (row_major ? (rows - 1) * stride + columns : (columns - 1) * stride + rows);
  return static_cast<size_t>(last) * (bf16 ? 2 : 4);
}

void carry_out(const Product& product) {
  const int64_t m = product.d.rows, n = product.d.columns, k = product.a.columns;
  const float alpha = product.device_scalars ? *product.alpha_on_device : product.alpha, beta = product.device_scalars ? *product.beta_on_device : product.beta;
  for (int64_t batch = 0; batch < product.d.batch; ++batch) {
    const Packed a = pack(product.a, batch), b = pack(product.b, batch);
    std::vector<float> sum(static_cast<size_t>(m * n), 0.0f);
    for (int part = 0; part < product.parts; ++part) {
      const int64_t k0 = k * part / product.parts, k1 = k * (part + 1) / product.parts;
#if defined(__x86_64__)
      (has_avx2() ? add_product_avx2 : add_product_plain)(a.values.data(), k, b.values.data(), sum.data(), m, n, k0, k1);
#else
      add_product_plain(a.values.data(), k, b.values.data(), sum.data(), m, n, k0, k1);
#endif
    }
    for (int64_t row = 0; row < m; ++row)
      for (int64_t column = 0; column < n; ++column) {
        const float before = beta == 0 ? 0 : beta * element(product.c, batch, row, column);
        const float value = alpha * sum[static_cast<size_t>(row * n + column)] + before;
        const int64_t at = batch * product.d.batch_stride + (product.d.row_major ? row * product.d.stride + column : column * product.d.stride + row);
        if (product.d.bf16) static_cast<uint16_t*>(product.d.data)[at] = narrow(value);
        else static_cast<float*>(product.d.data)[at] = value;
      }
  }
}

}  // namespace emulation
