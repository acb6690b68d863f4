// Attention's kernels on an emulated device against literal loops.
#include "cuda/attention_device.h"

#include "ops/attention_rule.h"

namespace quire::test {
namespace {

/// Both kernels in bf16, f32, and that the right one ran.
struct Rules {
  AttentionRule f32, half;
  void add(Rank& rank, const AttentionCase& c, const char* kernel) {
    const AttentionCase single = rounded_case<float>(c), rounded = rounded_case<bf16>(c);
    f32.add<float>(both<float>(rank, single), single);
    BOOST_TEST(rank.chosen_kernels()["attention_forward"] == "f32");
    half.add<bf16>(both<bf16>(rank, rounded), rounded);
    BOOST_TEST(rank.chosen_kernels()["attention_forward"] == kernel);
    BOOST_TEST(rank.chosen_kernels()["attention_backward"] == kernel);
  }
  void check() const {
    BOOST_TEST_CONTEXT("f32") { f32.check(); }
    BOOST_TEST_CONTEXT("bf16") { half.check(); }
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(cuda_attention_kernel, DeviceTest)

BOOST_AUTO_TEST_CASE(tensor_cores_hold_the_rule) {
  AttentionRule rule;
  for (const DeviceSizes& s : {DeviceSizes{1, 1, 64, 0}, {4, 2, 64, 33}, {2, 1, 128, 0}, {1, 1, 128, 70}, {3, 1, 64, 1}}) {
    const AttentionCase c = rounded_case<bf16>(device_case(random, random_lengths(random, 60 + static_cast<int64_t>(random() % 140)), s));
    emulation::order(emulation::Order::random, random());
    rule.add<bf16>(both<bf16>(rank, c), c);
    BOOST_TEST(rank.chosen_kernels()["attention_forward"] == "tensor_cores");
    BOOST_TEST(rank.chosen_kernels()["attention_backward"] == "tensor_cores");
  }
  rule.check();
}

BOOST_AUTO_TEST_CASE(other_head_sizes_and_strides_hold_the_rule) {
  Rules rules;
  for (const DeviceSizes& s : {DeviceSizes{2, 1, 16, 0, 3}, {1, 1, 80, 20}, {2, 2, 96, 0}, {1, 1, 256, 100}, {6, 2, 17, 0, 1}, {1, 1, 64, 9, 3}, {2, 1, 1, 0, 0}, {1, 1, 128, 0, 4}}) {
    emulation::order(emulation::Order::random, random());
    rules.add(rank, device_case(random, random_lengths(random, 1 + static_cast<int64_t>(random() % 130)), s), s.kernel());
  }
  rules.check();
}

BOOST_AUTO_TEST_CASE(documents_that_end_at_tile_edges) {
  Rules rules;
  const std::vector<std::vector<int64_t>> shapes = {{1}, {5, 6, 7}, std::vector<int64_t>(70, 1), {63, 64, 65}, {127, 1}, {64, 64}, {1, 129}};
  for (const std::vector<int64_t>& lengths : shapes)
    for (int64_t window : {0, 64}) {
      const DeviceSizes s{1, 1, 64, lengths.size() % 2 ? window : window + 1 - 2 * (window == 0)};
      rules.add(rank, device_case(random, lengths, {s.heads, s.kv_heads, s.head_dim, std::max<int64_t>(s.window, 0)}), "tensor_cores");
    }
  rules.check();
}

BOOST_AUTO_TEST_CASE(the_order_of_threads_changes_no_bit) {
  const std::vector<int64_t> lengths = {3, 64, 1};
  for (const DeviceSizes& s : {DeviceSizes{2, 1, 64, 0}, {1, 1, 128, 5}, {2, 1, 10, 7}}) {
    const AttentionCase c = rounded_case<bf16>(device_case(random, lengths, s));
    emulation::order(emulation::Order::ascending);
    const AttentionResult first = both<bf16>(rank, c);
    BOOST_TEST(finite(first));
    for (const ThreadOrder& order : eight_orders) {
      emulation::order(order.order, order.seed);
      BOOST_TEST(same_result(both<bf16>(rank, c), first));
    }
  }
}

BOOST_AUTO_TEST_CASE(many_tiles_are_searched) {
  // More tiles than a warp looks at in a round, on either side of those that meet.
  std::vector<int64_t> lengths(45, 64);
  for (size_t i = 0; i < lengths.size(); i += 3) lengths[i] = 90;
  for (int64_t window : {0, 20}) {
    const AttentionCase c = rounded_case<float>(device_case(random, lengths, {1, 1, 2, window}));
    AttentionRule rule;
    rule.add<float>(both<float>(rank, c), c);
    rule.check();
  }
}

BOOST_AUTO_TEST_CASE(large_scores_stay_exact) {
  AttentionCase c = device_case(random, std::vector<int64_t>{70, 20}, {1, 1, 64, 0});
  c.scale = 30;  // differences of hundreds: most probabilities vanish, the rows' maxima move often
  const AttentionCase half = rounded_case<bf16>(c), single = rounded_case<float>(c);
  const AttentionResult a = both<bf16>(rank, half), b = both<float>(rank, single);
  BOOST_TEST(finite(a));
  BOOST_TEST(finite(b));
  BOOST_TEST(relative_difference(b.forward.out, literal<double>(single).forward.out) <= 1e-3);
  BOOST_TEST(relative_difference(a.forward.out, literal<double>(half).forward.out) <= 2e-2);
  c.q[17 * 64] = std::numeric_limits<double>::quiet_NaN();  // a value that is no number must be seen in its own row, and there alone
  for (const AttentionForward& spoiled : {forward<bf16>(rank, c), forward<float>(rank, c)})
    for (int64_t i = 0; i < c.tokens(); ++i) {
      BOOST_TEST(std::isnan(spoiled.out[static_cast<size_t>(i * 64)]) == (i == 17));
      BOOST_TEST(std::isnan(spoiled.lse[static_cast<size_t>(i)]) == (i == 17));
    }
}

BOOST_AUTO_TEST_CASE(backward_adds_or_is_the_first_to_write) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const auto check = [&]<class T>(T, const AttentionCase& c, double tolerance) {
    const AttentionForward result = forward<T>(rank, c);
    const std::vector<double> deltas = delta<T>(rank, c, result.out);
    const AttentionBackward added = backward<T>(rank, c, result), five = backward<T>(rank, c, result, 5);
    const AttentionBackward written = backward<T>(rank, c, c.documents, c.documents, result.lse, deltas, none, true);
    BOOST_TEST((written.dq == added.dq && written.dk == added.dk && written.dv == added.dv));
    for (const auto& [more, less] : {std::pair(&five.dq, &added.dq), std::pair(&five.dk, &added.dk), std::pair(&five.dv, &added.dv)})
      for (size_t i = 0; i < more->size(); ++i) BOOST_REQUIRE_SMALL((*more)[i] - (*less)[i] - 5, tolerance);
    // Control: added to what is there, it shows.
    BOOST_TEST(std::isnan(backward<T>(rank, c, c.documents, c.documents, result.lse, deltas, none).dq[0]));
  };
  const std::vector<int64_t> lengths = {1, 30, 60, 7};
  check(bf16(), rounded_case<bf16>(device_case(random, lengths, {2, 1, 64, 0})), 1e-5);
  check(float(), device_case(random, lengths, {2, 1, 6, 20}), 1e-5);
}

BOOST_AUTO_TEST_CASE(what_no_kernel_computes_is_refused) {
  AttentionCase c = device_case(random, std::vector<int64_t>{5}, {1, 1, 64, 0});
  c.dense = true;
  check_error<UnsupportedError>([&] { forward<float>(rank, c); }, {"attention_forward", "cuda"});
  check_error<UnsupportedError>([&] { backward<bf16>(rank, c, c.documents, c.documents, std::vector<double>(5, 0), std::vector<double>(5, 0)); }, {"attention_backward", "cuda"});
  c.dense = false;
  check_error<UnsupportedError>([&] { forward<double>(rank, c); }, {"attention_forward"});
  const AttentionCase wide = device_case(random, std::vector<int64_t>{5}, {1, 1, 257, 0});
  check_error<UnsupportedError>([&] { forward<float>(rank, wide); }, {"attention_forward"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
