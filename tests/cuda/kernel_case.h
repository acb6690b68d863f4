// What the tests of CUDA kernels share: a device whose memory is poisoned, orders of threads.
#pragma once
#include "emulation.h"
#include "ops/kernel_test.h"
#include "runtime/accelerator.h"

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
    using enum emulation::Order;
    emulation::order(seed == 0 ? ascending : seed == 1 ? descending : seed < 5 ? random : random_lanes, seed + 1);
    BOOST_TEST_CONTEXT("order " << seed) f();
  }
  emulation::order(emulation::Order::ascending);
}

}  // namespace quire::test
