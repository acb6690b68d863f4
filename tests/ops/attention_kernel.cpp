// Attention's kernels against literal loops, finite differences and each other.
#include "ops/attention_rule.h"

namespace quire::test {
namespace {

struct Sizes { int64_t heads, kv_heads, head_dim, window; };

void check_near(const AttentionResult& a, const AttentionResult& b, double tolerance) {
  BOOST_TEST(relative_difference(a.forward.out, b.forward.out) <= tolerance);
  BOOST_TEST(AttentionRule::largest_difference(a.forward.lse, b.forward.lse) <= tolerance);
  BOOST_TEST(relative_difference(a.backward.dq, b.backward.dq) <= tolerance);
  BOOST_TEST(relative_difference(a.backward.dk, b.backward.dk) <= tolerance);
  BOOST_TEST(relative_difference(a.backward.dv, b.backward.dv) <= tolerance);
}

const Sizes attention_sizes[] = {{1, 1, 64, 0}, {2, 1, 32, 0}, {4, 2, 10, 7}, {2, 2, 1, 0},   {3, 1, 8, 1},
                       {2, 2, 96, 64}, {1, 1, 128, 33}, {6, 2, 17, 0}, {1, 1, 256, 100}, {2, 1, 48, 200}};

}  // namespace

BOOST_AUTO_TEST_SUITE(attention_kernel)

BOOST_AUTO_TEST_CASE(block_and_dense_equal_literal_loops_in_f64) {
  std::mt19937_64 random(1);
  for (const RankOptions& options : poisoned_ranks()) {
    Rank rank(options);
    for (const Sizes& s : attention_sizes) {
      AttentionCase c = random_case(random, random_lengths(random, 1 + static_cast<int64_t>(random() % 250), 32), s.heads, s.kv_heads, s.head_dim, s.window);
      const AttentionResult exact = literal<double>(c);
      check_near(both<double>(rank, c), exact, 2e-14);
      BOOST_TEST(rank.chosen_kernels()["attention_forward"] == "block");
      c.dense = true;
      check_near(both<double>(rank, c), exact, 2e-14);
      BOOST_TEST(rank.chosen_kernels()["attention_backward"] == "dense");
    }
  }
}

BOOST_AUTO_TEST_CASE(f32_and_bf16_hold_the_rule) {
  std::mt19937_64 random(2);
  for (const RankOptions& options : poisoned_ranks()) {
    Rank rank(options);
    AttentionRule rules[2][2];
    for (const Sizes& s : attention_sizes) {
      const AttentionCase c = random_case(random, random_lengths(random, 1 + static_cast<int64_t>(random() % 250)), s.heads, s.kv_heads, s.head_dim, s.window);
      AttentionCase f32 = rounded_case<float>(c), half = rounded_case<bf16>(c);
      for (bool dense : {false, true}) {
        f32.dense = half.dense = dense;
        rules[0][dense].add<float>(both<float>(rank, f32), f32);
        rules[1][dense].add<bf16>(both<bf16>(rank, half), half);
      }
    }
    for (int type : {0, 1})
      for (int dense : {0, 1})
        BOOST_TEST_CONTEXT(options.instruction_set << (type ? ", bf16" : ", f32") << (dense ? ", dense" : ", block")) { rules[type][dense].check(); }
  }
}

BOOST_AUTO_TEST_CASE(documents_that_end_at_tile_edges) {
  std::mt19937_64 random(3);
  const std::vector<std::vector<int64_t>> shapes = {
      {1}, {2}, {5, 6, 7}, std::vector<int64_t>(40, 1), {31, 32, 33}, {47, 48, 49}, {63, 64, 65}, {127, 1, 129}, {128}, {1, 255, 1}, {257}, {96, 97}};
  for (const RankOptions& options : poisoned_ranks()) {
    Rank rank(options);
    for (const std::vector<int64_t>& lengths : shapes)
      for (int64_t window : {0, 1, 31, 32, 33, 64}) {
        const AttentionCase c = random_case(random, lengths, 1, 1, 6, window);
        check_near(both<double>(rank, c), literal<double>(c), 1e-11);
      }
  }
}

BOOST_AUTO_TEST_CASE(long_documents_cut_into_units) {
  std::mt19937_64 random(4);
  Rank rank(poisoned_ranks(3).front());
  for (int64_t window : {0, 300}) {
    const AttentionCase c = random_case(random, std::vector<int64_t>{3, 513, 1, 2000, 20}, 2, 1, 4, window);
    check_near(both<double>(rank, c), literal<double>(c), 1e-12);
    const AttentionCase single = rounded_case<float>(c);
    AttentionRule rule;
    rule.add<float>(both<float>(rank, single), single);
    rule.check();
  }
}

BOOST_AUTO_TEST_CASE(large_scores_stay_exact) {
  std::mt19937_64 random(5);
  Rank rank(poisoned_ranks().front());
  AttentionCase c = random_case(random, std::vector<int64_t>{90, 40}, 1, 1, 16);
  c.scale = 30;  // differences of hundreds: most probabilities vanish, the rows' maxima move often
  check_near(both<double>(rank, c), literal<double>(c), 1e-11);
  const AttentionResult single = both<float>(rank, rounded_case<float>(c));
  for (double value : single.backward.dq) BOOST_REQUIRE(std::isfinite(value));
  c.q[17 * 16] = std::numeric_limits<double>::quiet_NaN();  // a value that is no number must be seen in its own row, and there alone
  const AttentionForward spoiled = forward<double>(rank, c);
  for (int64_t i = 0; i < c.tokens(); ++i) BOOST_TEST(std::isnan(spoiled.out[static_cast<size_t>(i * 16)]) == (i == 17));
}

BOOST_AUTO_TEST_CASE(gradients_equal_finite_differences) {
  std::mt19937_64 random(6);
  for (const Sizes& s : {Sizes{1, 1, 5, 0}, Sizes{4, 2, 3, 4}}) {
    Rank rank(poisoned_ranks().front());
    AttentionCase c = random_case(random, std::vector<int64_t>{1, 9, 4, 1}, s.heads, s.kv_heads, s.head_dim, s.window);
    const AttentionBackward gradients = both<double>(rank, c).backward;
    const auto loss = [&] {
      const AttentionForward result = forward<double>(rank, c);
      double sum = 0;
      for (size_t i = 0; i < result.out.size(); ++i) sum += result.out[i] * c.dout[i];
      return sum;
    };
    const auto check = [&](std::vector<double>& values, const std::vector<double>& gradient) {
      std::vector<double> differences;
      for (double& value : values) {
        const double kept = value, step = 1e-5;
        value = kept + step;
        const double up = loss();
        value = kept - step;
        differences.push_back((up - loss()) / (2 * step));
        value = kept;
      }
      BOOST_TEST(relative_difference(differences, gradient) <= 1e-8);
    };
    check(c.q, gradients.dq);
    check(c.k, gradients.dk);
    check(c.v, gradients.dv);
  }
}

BOOST_AUTO_TEST_CASE(backward_adds_to_what_is_there) {
  std::mt19937_64 random(7);
  Rank rank(poisoned_ranks().front());
  AttentionCase c = random_case(random, std::vector<int64_t>{30, 70}, 2, 1, 8);
  for (bool dense : {false, true}) {
    c.dense = dense;
    const AttentionForward result = forward<double>(rank, c);
    const AttentionBackward zero = backward<double>(rank, c, result), five = backward<double>(rank, c, result, 5);
    for (size_t i = 0; i < zero.dq.size(); ++i) BOOST_REQUIRE_SMALL(five.dq[i] - zero.dq[i] - 5, 1e-12);
    for (size_t i = 0; i < zero.dk.size(); ++i) BOOST_REQUIRE_SMALL(five.dk[i] - zero.dk[i] - 5, 1e-12);
    for (size_t i = 0; i < zero.dv.size(); ++i) BOOST_REQUIRE_SMALL(five.dv[i] - zero.dv[i] - 5, 1e-12);
  }
}

BOOST_AUTO_TEST_CASE(backward_may_be_the_first_to_write) {
  std::mt19937_64 random(9);
  for (const RankOptions& options : poisoned_ranks(2)) {
    Rank rank(options);
    for (int64_t window : {0, 40})
      for (bool dense : {false, true}) {
        AttentionCase c = random_case(random, std::vector<int64_t>{1, 30, dense ? 100 : 2500, 70}, 2, 1, 4, window);  // parts, blocks that some parts do not read
        c.dense = dense;
        const AttentionForward result = forward<float>(rank, c);
        const std::vector<double> deltas = delta<float>(rank, c, result.out);
        const double none = std::numeric_limits<double>::quiet_NaN();
        const AttentionBackward added = backward<float>(rank, c, c.documents, c.documents, result.lse, deltas);
        const AttentionBackward written = backward<float>(rank, c, c.documents, c.documents, result.lse, deltas, none, true);
        BOOST_TEST((written.dq == added.dq && written.dk == added.dk && written.dv == added.dv));
        // Control: added to what is there, it shows.
        BOOST_TEST(std::isnan(backward<float>(rank, c, c.documents, c.documents, result.lse, deltas, none).dq[0]));
      }
  }
}

BOOST_AUTO_TEST_CASE(computed_pairs_follow_useful_pairs) {
  std::mt19937_64 random(8);
  std::lognormal_distribution<double> lengths(std::log(128.0) - 0.5, 1);  // mean 128
  for (const RankOptions& options : poisoned_ranks()) {
    Rank rank(options);
    const auto ratios = [&](const std::vector<int64_t>& documents, int64_t window) {
      const AttentionCase c = random_case(random, documents, 1, 1, 4, window);
      const double useful = static_cast<double>(c.documents.useful_pairs(window));
      const AttentionForward result = forward<float>(rank, c);
      const double forwards = static_cast<double>(rank.work().computed_pairs.exchange(0)) / useful;
      backward<float>(rank, c, result);
      return std::pair(forwards, static_cast<double>(rank.work().computed_pairs.exchange(0)) / useful);
    };
    std::vector<int64_t> mean128;
    for (int64_t left = 8192; left > 0; left -= mean128.back())
      mean128.push_back(std::clamp<int64_t>(static_cast<int64_t>(lengths(random)), 1, left));
    for (const auto& [ratio, limit] : {std::pair(ratios(mean128, 0), 1.5), std::pair(ratios({2048}, 0), 1.1), std::pair(ratios({2048}, 256), 1.2)}) {
      BOOST_TEST(ratio.first >= 1);
      BOOST_TEST(ratio.first <= limit);
      BOOST_TEST(ratio.second >= 1);
      BOOST_TEST(ratio.second <= limit);
    }
    // Control: the reference computes every pair, and the counter says so.
    AttentionCase c = random_case(random, std::vector<int64_t>{100, 100}, 2, 1, 4);
    c.dense = true;
    forward<float>(rank, c);
    BOOST_TEST(rank.work().computed_pairs.exchange(0) == 2 * 200 * 200);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
