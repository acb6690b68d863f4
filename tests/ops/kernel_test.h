// Helpers for tests of raw kernels: ranks of every instruction set and thread count, values in a rank's memory, random values, and the rule of
// DESIGN section 6 for the error against f64.
#pragma once
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string_view>

#include "check.h"
#include "ops/cpu/instruction_set.h"
#include "ops/kernels.h"
#include "runtime/dispatch.h"
#include "runtime/tensor.h"
#include "values.h"

namespace quire::test {

/// What literal computations are done in: more digits than f64.
using Exact = long double;

/// Ranks that differ in threads alone; memory is poisoned.
struct ThreadRanks {
  std::string instruction_set;
  std::vector<std::unique_ptr<Rank>> by_threads;  ///< 1, 2 and 3 threads
  Rank& one() const { return *by_threads.front(); }
};

/// For every instruction set of this machine.
inline std::vector<ThreadRanks> every_rank() {
  std::vector<ThreadRanks> all;
  for (const std::string& name : instruction_sets()) {
    ThreadRanks ranks{name, {}};
    for (int threads = 1; threads <= 3; ++threads)
      ranks.by_threads.push_back(std::make_unique<Rank>(RankOptions{.threads = threads, .poison = true, .instruction_set = name}));
    all.push_back(std::move(ranks));
  }
  return all;
}

/// Runs the kernel `name` of an operation on the rank's device.
template <class Args>
void run_kernel(Rank& rank, const Args& args, std::string_view name = "vector") {
  for (const Kernel<Args>& kernel : rank.device().kind == DeviceKind::cuda ? cuda_kernels<Args>() : cpu_kernels<Args>())
    if (kernel.name == name) {
      BOOST_REQUIRE(kernel.can_run(args));
      return kernel.run(rank, args);
    }
  BOOST_FAIL("no kernel " << name << " of " << Args::op);
}

template <class T>
std::vector<T> random_values(std::mt19937_64& random, int64_t count, double scale = 1) {
  std::normal_distribution<double> normal(0, scale);
  std::vector<T> values(static_cast<size_t>(count));
  for (T& v : values) v = from_double<T>(normal(random));
  return values;
}

/// An output nobody has written yet: NaN, and one element more that nobody may write.
template <class T>
std::vector<T> unwritten(int64_t count) {
  std::vector<T> values(static_cast<size_t>(count) + 1);
  std::memset(static_cast<void*>(values.data()), 0xff, values.size() * sizeof(T));
  return values;
}

/// Checks that the guard element behind an output of `unwritten` is untouched, and drops it.
template <class T>
void close_output(std::vector<T>& values) {
  const std::vector<T> guard = unwritten<T>(0);
  BOOST_TEST(std::memcmp(&values.back(), guard.data(), sizeof(T)) == 0, "wrote past the end");
  values.pop_back();
}

template <class T>
std::vector<T> part(const std::vector<T>& values, int64_t begin, int64_t count) {
  return {values.begin() + begin, values.begin() + begin + count};
}

/// An array in a rank's memory between guards of 64 bytes, `shift` elements (fewer than 16 bytes) behind where a vector of a device may begin.
template <class T>
class Placed {
 public:
  Placed(Rank& rank, const std::vector<T>& values, int64_t shift = 0) : Placed(rank, values, static_cast<int64_t>(values.size()), shift) {}
  /// Nobody has written it yet: NaN.
  Placed(Rank& rank, int64_t count, int64_t shift = 0) : Placed(rank, {}, count, shift) {}
  T* data() const { return static_cast<T*>(tensor_.raw()) + before_; }
  /// The values; checks the guards.
  std::vector<T> values() const {
    const std::vector<T> all = tensor_.to_vector<T>(), surroundings = guards();
    const auto same = [&](int64_t begin, int64_t count) {
      return std::memcmp(all.data() + begin, surroundings.data() + begin, static_cast<size_t>(count) * sizeof(T)) == 0;
    };
    BOOST_TEST((same(0, before_) && same(before_ + count_, guard)), "wrote beside an array");
    return part(all, before_, count_);
  }

 private:
  static constexpr int64_t guard = 64 / static_cast<int64_t>(sizeof(T));
  Placed(Rank& rank, const std::vector<T>& values, int64_t count, int64_t shift) : before_(guard + shift), count_(count) {
    std::vector<T> all = guards();
    std::copy(values.begin(), values.end(), all.begin() + before_);
    tensor_ = Tensor::from<T>(rank, {static_cast<int64_t>(all.size())}, all);
  }
  std::vector<T> guards() const {
    std::vector<T> all(static_cast<size_t>(before_ + count_ + guard));
    std::memset(static_cast<void*>(all.data()), 0xff, all.size() * sizeof(T));
    return all;
  }
  int64_t before_, count_;
  Tensor tensor_;
};

/// Distance between neighbouring values of type T at the magnitude of x.
template <class T>
double ulp_at(double x) {
  const int digits = std::is_same_v<T, double> ? 53 : std::is_same_v<T, float> ? 24 : 8;
  return x == 0 ? 0 : std::ldexp(1.0, std::ilogb(x) + 1 - digits);
}

template <class T>
double largest_error(const std::vector<T>& values, const std::vector<Exact>& exact) {
  double error = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double e = static_cast<double>(std::abs(static_cast<Exact>(to_double(values[i])) - exact[i]));
    error = e > error || std::isnan(e) ? e : error;
    if (std::isnan(error)) return error;
  }
  return error;
}

/// DESIGN section 6: error at most max(2 x that of the plain computation, 4 ulp of the largest magnitude). `plain` may be empty.
template <class T>
bool within_rule(const std::vector<T>& values, const std::vector<Exact>& exact, const std::vector<T>& plain = {}) {
  if (values.size() != exact.size()) return false;
  double largest = 0;
  for (const Exact e : exact) largest = std::max(largest, static_cast<double>(std::abs(e)));
  double allowed = 4 * ulp_at<T>(largest);
  if (!plain.empty()) allowed = std::max(allowed, 2 * largest_error(plain, exact));
  return largest_error(values, exact) <= allowed;  // false for NaN
}

/// Checks a gradient of f at x (f64) by central differences, to `tolerance` of the gradient's largest magnitude.
template <class F>
void check_gradient(F&& f, std::vector<double> x, const std::vector<double>& gradient, double tolerance = 1e-7) {
  constexpr double h = 1e-5;
  std::vector<double> differences(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + h;
    const double above = f(x);
    x[i] = at - h;
    const double below = f(x);
    x[i] = at;
    differences[i] = (above - below) / (2 * h);
  }
  BOOST_TEST(relative_difference(gradient, differences) <= tolerance);
}

}  // namespace quire::test
