// Attention on an emulated device: ranks, and cases that one or the other of its kernels takes.
#pragma once
#include "emulation.h"
#include "ops/attention_case.h"

namespace quire::test {

inline RankOptions device_rank() { return {.device = {DeviceKind::cuda, 0}, .poison = true}; }

/// Rows whose stride the tensor-core kernels take; others have a gap of 3.
constexpr int64_t aligned_gap = 8;

/// Sizes of a case, and which kernel takes it in bf16. In f32 there is one.
struct DeviceSizes {
  int64_t heads, kv_heads, head_dim, window;
  int64_t gap = aligned_gap;
  const char* kernel() const { return (head_dim == 64 || head_dim == 128) && gap % 8 == 0 ? "tensor_cores" : "f32"; }
};

inline AttentionCase device_case(std::mt19937_64& random, std::span<const int64_t> lengths, const DeviceSizes& s) {
  AttentionCase c = random_case(random, lengths, s.heads, s.kv_heads, s.head_dim, s.window);
  c.gap = s.gap;
  return c;
}

/// Orders of threads and blocks.
struct ThreadOrder { emulation::Order order; uint64_t seed; };
constexpr ThreadOrder eight_orders[] = {{emulation::Order::ascending, 1}, {emulation::Order::descending, 1}, {emulation::Order::random, 1}, {emulation::Order::random, 2},
                                        {emulation::Order::random, 3},    {emulation::Order::random_lanes, 1}, {emulation::Order::random_lanes, 2}, {emulation::Order::random_lanes, 3}};

/// Default settings for each test, and errors of the device taken away after it.
struct DeviceTest {
  emulation::Fresh fresh;
  std::mt19937_64 random{7};
  Rank rank{device_rank()};
};

inline bool same_result(const AttentionResult& a, const AttentionResult& b) {
  const auto same = [](const std::vector<double>& x, const std::vector<double>& y) { return x.size() == y.size() && same_rows(x, y, 1, 0, static_cast<int64_t>(x.size()), 0); };
  return same(a.forward.out, b.forward.out) && same(a.forward.lse, b.forward.lse) && same(a.backward.dq, b.backward.dq) && same(a.backward.dk, b.backward.dk) &&
         same(a.backward.dv, b.backward.dv);
}

}  // namespace quire::test
