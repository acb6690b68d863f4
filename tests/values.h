// Values of every type: to f64 and back, what is accumulated in, and bits that are compared.
#pragma once
#include <cstring>
#include <type_traits>
#include <vector>

#include "runtime/dtype.h"

namespace quire::test {

/// What kernels accumulate values of T in.
template <class T> using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

inline double to_double(double x) { return x; }
inline double to_double(float x) { return x; }
inline double to_double(bf16 x) { return static_cast<float>(x); }
template <class T> T from_double(double x) { return static_cast<T>(static_cast<Accumulator<T>>(x)); }

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace quire::test
