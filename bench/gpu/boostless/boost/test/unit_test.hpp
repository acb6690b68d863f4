// The few of Boost.Test's macros that the cases of tests/ops use, where Boost is not there: tools/gpu_report runs these cases on a bare machine. A check that fails is
// kept with its text in `checks()`; one that must hold ends the case.
#pragma once
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace quire::boostless {

struct Checks {
  int64_t passed = 0;
  std::vector<std::string> failed;
};
/// Of the program's only thread that checks.
inline Checks& checks() {
  static Checks all;
  return all;
}
struct Required : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline bool note(bool holds, const std::string& text) {
  if (holds) ++checks().passed;
  else checks().failed.push_back(text);
  return holds;
}
inline void require(bool holds, const std::string& text) {
  if (!note(holds, text)) throw Required(text);
}

}  // namespace quire::boostless

// A message is what one would write to a stream: "text" << value.
#define QUIRE_CHECK_MESSAGE(message) ((std::ostringstream() << message).str())
#define QUIRE_CHECK_1(expression) ::quire::boostless::note(static_cast<bool>(expression), #expression)
#define QUIRE_CHECK_2(expression, message) ::quire::boostless::note(static_cast<bool>(expression), QUIRE_CHECK_MESSAGE(#expression << ": " << message))
#define QUIRE_CHECK_PICK(first, second, name, ...) name
#define BOOST_TEST(...) QUIRE_CHECK_PICK(__VA_ARGS__, QUIRE_CHECK_2, QUIRE_CHECK_1, none)(__VA_ARGS__)
#define BOOST_REQUIRE(expression) ::quire::boostless::require(static_cast<bool>(expression), #expression)
#define BOOST_TEST_REQUIRE(expression) BOOST_REQUIRE(expression)
#define BOOST_REQUIRE_EQUAL(a, b) ::quire::boostless::require((a) == (b), #a " == " #b)
#define BOOST_REQUIRE_SMALL(value, tolerance) ::quire::boostless::require(std::abs(value) <= (tolerance), #value " is small")
#define BOOST_ERROR(message) ::quire::boostless::note(false, QUIRE_CHECK_MESSAGE(message))
#define BOOST_FAIL(message) ::quire::boostless::require(false, QUIRE_CHECK_MESSAGE(message))
