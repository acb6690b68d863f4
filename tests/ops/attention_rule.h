// The rule for attention's errors, over many shapes.
#pragma once
#include <map>
#include <string>

#include "ops/attention_case.h"

namespace quire::test {

/// DESIGN section 6: at most twice the error of the plain computation, or 4 units in the last place of the largest magnitude. Errors are relative
/// to the tensor's largest magnitude and are compared by their largest over many shapes: single small tensors have errors of a few roundings.
class AttentionRule {
 public:
  static double largest(const std::vector<double>& values) {
    double most = 0;
    for (double value : values) most = std::max(most, std::abs(value));
    return most;
  }

  static double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
    BOOST_REQUIRE_EQUAL(a.size(), b.size());
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double difference = std::abs(a[i] - b[i]);
      if (!(difference <= most)) most = difference;
    }
    return most;
  }
  template <class T>
  void add(const AttentionResult& value, const AttentionCase& c) {
    const AttentionResult exact = literal<double>(c), plain = literal<float>(c, rounded<T>);
    const double terms = c.scale * largest(c.v) * largest(c.dout), storage = std::is_same_v<T, bf16> ? 0x1p-7 : 0x1p-23;
    add("out", value.forward.out, exact.forward.out, plain.forward.out, storage, 0);
    add("lse", value.forward.lse, exact.forward.lse, plain.forward.lse, 0x1p-23, 0);
    add("dq", value.backward.dq, exact.backward.dq, plain.backward.dq, 0x1p-23, terms * largest(c.k));
    add("dk", value.backward.dk, exact.backward.dk, plain.backward.dk, 0x1p-23, terms * largest(c.q));
    add("dv", value.backward.dv, exact.backward.dv, plain.backward.dv, 0x1p-23, 0);
  }
  void check() const {
    for (const auto& [what, e] : errors_)
      BOOST_TEST(e.value <= std::max(2 * e.plain, 4 * e.epsilon), what << ": error " << e.value << ", plain computation's " << e.plain);
  }

 private:
  struct Errors { double value = 0, plain = 0, epsilon = 0; };
  std::map<std::string, Errors> errors_;

  /// `terms` is the magnitude to use where all is zero in exact arithmetic, as the score gradient of a row that reads one key.
  void add(const char* what, const std::vector<double>& value, const std::vector<double>& exact, const std::vector<double>& plain, double epsilon,
           double terms) {
    const double most = largest(exact) > 0 ? largest(exact) : terms, error = largest_difference(value, exact) / most;
    BOOST_TEST(!std::isnan(error));
    Errors& e = errors_[what];
    e.value = std::max(e.value, error);
    e.plain = std::max(e.plain, largest_difference(plain, exact) / most);
    e.epsilon = epsilon;
  }
};

}  // namespace quire::test
