// Attention over context-parallel ranks equals one process's, whatever the documents, layout, exchange, backend, window and heads.
#include "parallel/context_case.h"

#include <numeric>

using namespace quire;
using namespace quire::test;

namespace {

const ContextLayout layouts[] = {ContextLayout::contiguous, ContextLayout::zigzag};

/// Lengths of a microbatch of `tokens`: one-token documents, long ones and short ones.
std::vector<int64_t> lengths_of(std::mt19937_64& random, int64_t tokens) { return random_lengths(random, tokens, 8); }

int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

}  // namespace

BOOST_AUTO_TEST_SUITE(context_attention)

BOOST_AUTO_TEST_CASE(equals_one_process_in_f64) {
  std::mt19937_64 random(1);
  for (const int ranks : {1, 2, 3, 4, 8})
    for (const ContextLayout layout : layouts)
      for (const ContextExchange exchange : {ContextExchange::ring, ContextExchange::gather})
        for (const AttentionBackend backend : {AttentionBackend::block, AttentionBackend::dense})
          for (const int64_t window : {0, 7}) {
            const int64_t tokens = 1 + static_cast<int64_t>(random() % 120);
            const AttentionOptions options{.heads = 4, .kv_heads = 2, .head_dim = 4, .window = window, .backend = backend};
            const ContextCase c = context_case(random, lengths_of(random, tokens), options, layout, exchange);
            const ContextResult single = run_single(c), many = run_ranks(c, ranks);
            BOOST_TEST_CONTEXT(ranks << " ranks, " << name_of(layout) << ", " << name_of(exchange) << ", " << name_of(backend) << ", window " << window << ", " << tokens
                                     << " tokens") {
              BOOST_TEST(largest_difference(many, single) <= 1e-11);
              BOOST_TEST(sum(many.forward_pairs) == sum(single.forward_pairs));
              BOOST_TEST(sum(many.backward_pairs) == sum(single.backward_pairs));
              BOOST_TEST(sum(many.forward_pairs) == options.heads * c.whole().useful_pairs(window));
              for (const auto& mismatch : many.mismatches) BOOST_TEST(!mismatch.has_value());
            }
          }
}

BOOST_AUTO_TEST_SUITE_END()
