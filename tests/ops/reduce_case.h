// What `reduce` is compared with.
#pragma once
#include <cmath>
#include <vector>

#include "ops/kernel_test.h"

namespace quire::test {

struct LiteralSum { Exact sum = 0, magnitude = 0; };

/// Of the values (power 1) or their squares (power 2), and of their magnitudes.
template <class T>
LiteralSum literal_sum(const std::vector<T>& x, int power) {
  LiteralSum result;
  for (const T v : x) {
    const Exact value = to_double(v), term = power == 1 ? value : value * value;
    result.sum += term;
    result.magnitude += std::abs(term);
  }
  return result;
}

}  // namespace quire::test
