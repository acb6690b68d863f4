// Helpers shared by all tests.
#pragma once
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "runtime/error.h"

namespace quire::test {

/// Passes when `code` throws E and its text holds every one of `parts`.
template <class E, class F>
void check_error(F&& code, std::initializer_list<std::string> parts) {
  try {
    code();
  } catch (const E& error) {
    for (const std::string& part : parts)
      BOOST_TEST(std::string(error.what()).find(part) != std::string::npos, "'" << error.what() << "' lacks '" << part << "'");
    return;
  } catch (const std::exception& other) {
    BOOST_ERROR("another error: " << other.what());
    return;
  }
  BOOST_ERROR("no error; expected one with '" << (parts.size() ? *parts.begin() : std::string()) << "'");
}

/// Random document lengths that sum to `tokens`, with one-token documents and lengths around multiples of `tile` (+-1) over-represented.
inline std::vector<int64_t> random_lengths(std::mt19937_64& random, int64_t tokens, int64_t tile = 64) {
  std::vector<int64_t> lengths;
  while (tokens > 0) {
    int64_t length = 1;
    switch (random() % 5) {
      case 0: length = 1; break;
      case 1: length = tile * (1 + static_cast<int64_t>(random() % 3)) + static_cast<int64_t>(random() % 3) - 1; break;
      case 2: length = 1 + static_cast<int64_t>(random() % 8); break;
      case 3: length = 1 + static_cast<int64_t>(random() % 200); break;
      default: length = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(tokens)); break;
    }
    length = std::min(length, tokens);
    lengths.push_back(length);
    tokens -= length;
  }
  return lengths;
}

/// Largest |a - b| over the largest |b| (0 where both are all zero).
template <class A, class B>
double relative_difference(const A& a, const B& b) {
  double difference = 0, largest = 0;
  BOOST_REQUIRE_EQUAL(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    difference = d > difference || std::isnan(d) ? d : difference;
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return largest > 0 ? difference / largest : difference;
}

}  // namespace quire::test
