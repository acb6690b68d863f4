// What the tests of CUDA kernels share: a device whose memory is poisoned, arrays on it between guards, orders of threads.
#pragma once
#include <span>
#include <string>

#include "emulation.h"
#include "ops/kernel_test.h"
#include "runtime/accelerator.h"
#include "runtime/tensor.h"

namespace quire::test {

/// A rank with an emulated device. One per test case.
struct DeviceRank {
  emulation::Fresh fresh;
  Rank rank{RankOptions{.device = {DeviceKind::cuda, 0}, .poison = true}};
  operator Rank&() { return rank; }
};

/// Runs f() in eight orders of threads: one in which they stand, one against it, six by chance.
template <class F>
void in_eight_orders(F&& f) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    emulation::order(seed == 0 ? emulation::Order::ascending : seed == 1 ? emulation::Order::descending : seed < 5 ? emulation::Order::random : emulation::Order::random_lanes, seed + 1);
    BOOST_TEST_CONTEXT("order " << seed) f();
  }
  emulation::order(emulation::Order::ascending);
}

/// An array on the device with 64 bytes of guard before and behind, `shift` elements (fewer than 16 bytes) from where vectors begin.
template <class T>
class DeviceArray {
 public:
  DeviceArray(Rank& rank, const std::vector<T>& values, int64_t shift = 0) : before_(64 / sizeof(T) + shift), count_(static_cast<int64_t>(values.size())) {
    std::vector<T> all = guards();
    std::copy(values.begin(), values.end(), all.begin() + before_);
    tensor_ = Tensor::from<T>(rank, {static_cast<int64_t>(all.size())}, all);
  }
  /// Nobody has written it yet: NaN.
  DeviceArray(Rank& rank, int64_t count, int64_t shift = 0) : before_(64 / sizeof(T) + shift), count_(count) {
    tensor_ = Tensor::from<T>(rank, {static_cast<int64_t>(guards().size())}, guards());
  }
  T* data() const { return static_cast<T*>(tensor_.raw()) + before_; }
  /// The values; checks the guards.
  std::vector<T> values() const {
    const std::vector<T> all = tensor_.to_vector<T>(), untouched = guards();
    const auto same = [&](int64_t begin, int64_t count) {
      return std::memcmp(all.data() + begin, untouched.data() + begin, static_cast<size_t>(count) * sizeof(T)) == 0;
    };
    BOOST_TEST((same(0, before_) && same(before_ + count_, behind())), "wrote beside an array");
    return part(all, before_, count_);
  }

 private:
  static int64_t behind() { return 64 / static_cast<int64_t>(sizeof(T)); }
  std::vector<T> guards() const {
    std::vector<T> all(static_cast<size_t>(before_ + count_ + behind()));
    std::memset(static_cast<void*>(all.data()), 0xff, all.size() * sizeof(T));
    return all;
  }
  int64_t before_, count_;
  Tensor tensor_;
};

/// Runs the first CUDA kernel of the operation that can.
template <class Args>
void run_on_device(Rank& rank, const Args& args) {
  dispatch(rank, args);
}

}  // namespace quire::test
