// FAULTS.md 25, 26 and 45, at the level of kernels.
#include "ops/attention_case.h"
#include "runtime/dispatch.h"

#include <numeric>

namespace quire::test {

BOOST_AUTO_TEST_SUITE(fault_25_26_45_attention_bounds)

// Bounds above the true ones, one-token documents, no queries, no keys, tokens past the last offset.
BOOST_AUTO_TEST_CASE(memory_beyond_the_tokens_does_not_matter_25_45) {
  std::mt19937_64 random(18);
  for (const RankOptions& options : poisoned_ranks()) {
    Rank rank(options);
    AttentionCase c = random_case(random, std::vector<int64_t>{1, 33, 1, 1, 64}, 2, 1, 10);
    for (bool dense : {false, true}) {
      c.dense = dense;
      BOOST_TEST(finite(both<double>(rank, c)));  // rows past the tokens, gaps between rows and new memory hold NaN
      BOOST_TEST(finite(both<float>(rank, c)));
      BOOST_TEST(finite(both<bf16>(rank, c)));
    }
    // Control: a run that claims one token more than there is reads the NaN.
    const Rows<double> q(c.q, c.documents.indices(), c.query_width()), k(c.k, c.documents.indices(), c.key_width());
    std::vector<DocumentRun> runs = c.documents.runs();
    runs.back().length += 1;
    std::vector<double> out(static_cast<size_t>(101 * q.stride)), lse(static_cast<size_t>(101 * c.heads));
    dispatch(rank, AttentionForwardArgs{DType::f64, c.heads, c.kv_heads, c.head_dim, 101, 101, runs, runs, 0, c.scale, q.data.data(), q.stride,
                                        k.data.data(), k.stride, k.data.data(), k.stride, out.data(), q.stride, lse.data()});
    BOOST_TEST(!std::isfinite(lse[static_cast<size_t>(100 * c.heads)]));  // infinite or no number, as the compiler orders maxima
    BOOST_TEST(std::isfinite(lse[static_cast<size_t>(99 * c.heads)]));
  }
}

BOOST_AUTO_TEST_CASE(one_token_documents_return_their_value_26) {
  std::mt19937_64 random(19);
  Rank rank(poisoned_ranks().front());
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>(50, 1), std::vector<int64_t>{1, 0, 70, 1, 0, 1}}) {
    AttentionCase c = random_case(random, lengths, 1, 1, 8);
    for (bool dense : {false, true}) {
      c.dense = dense;
      const AttentionResult r = both<double>(rank, c);
      for (int64_t i = 0; i < c.tokens(); ++i) {
        if (c.documents.starts()[static_cast<size_t>(i)] != i) continue;
        BOOST_TEST(same_rows(r.forward.out, c.v, 8, i, i + 1, i));  // a first token reads itself alone
      }
      if (lengths.size() == 50)
        for (double value : r.backward.dk) BOOST_REQUIRE_SMALL(value, 1e-13);
    }
  }
}

BOOST_AUTO_TEST_CASE(every_output_is_written_without_keys_or_queries_45) {
  std::mt19937_64 random(20);
  for (const RankOptions& options : poisoned_ranks()) {
    Rank rank(options);
    AttentionCase c = random_case(random, std::vector<int64_t>{5, 60, 5}, 2, 1, 8);
    const auto part = [&](int32_t begin, int32_t end) {
      std::vector<int32_t> indices(static_cast<size_t>(end - begin));
      std::iota(indices.begin(), indices.end(), begin);
      return Documents::shard(indices, {c.documents.starts().begin() + begin, c.documents.starts().begin() + end});
    };
    for (bool dense : {false, true}) {
      c.dense = dense;
      const std::vector<double> lse = both<float>(rank, c).forward.lse, deltas(lse.size(), 1.0);
      // Keys after the queries, keys of another document, no keys at all: nothing is read, everything is written.
      for (const Documents& keys : {part(40, 65), part(65, 70), part(0, 5), Documents()}) {
        const AttentionForward r = forward<float>(rank, c, part(10, 40), keys);
        for (double value : r.lse) BOOST_REQUIRE(value == -std::numeric_limits<double>::infinity());
        for (double value : r.out) BOOST_REQUIRE(value == 0);
        const AttentionBackward g = backward<float>(rank, c, part(10, 40), keys, lse, deltas);
        for (const std::vector<double>* values : {&g.dq, &g.dk, &g.dv})
          for (double value : *values) BOOST_REQUIRE(value == 0);
      }
      BOOST_TEST(forward<float>(rank, c, Documents(), part(0, 70)).out.empty());
      // Rows whose log-sum-exp is -infinity contribute nothing, even where keys are at hand.
      const std::vector<double> none(lse.size(), -std::numeric_limits<double>::infinity());
      const AttentionBackward g = backward<float>(rank, c, c.documents, c.documents, none, deltas);
      for (const std::vector<double>* values : {&g.dq, &g.dk, &g.dv})
        for (double value : *values) BOOST_REQUIRE(value == 0);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
