// FAULTS.md 16 and 24: no length has to be divisible by anything when a microbatch is cut over context-parallel ranks.
#include "parallel/context_case.h"

namespace quire::test {
namespace {

bool finite(const ContextResult& result) {
  for (const std::vector<double>* values : {&result.out, &result.dq, &result.dk, &result.dv})
    for (const double value : *values)
      if (!std::isfinite(value)) return false;
  return true;
}

int64_t heads_of(ContextExchange exchange, int ranks) { return exchange == ContextExchange::heads ? ranks : 2; }

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_16_any_length)

BOOST_AUTO_TEST_CASE(every_residue_is_right_and_poisoned_memory_changes_no_bit_16_24) {
  std::mt19937_64 random(16);
  for (const int ranks : {2, 3, 4})
    for (int64_t tokens = 12 * ranks; tokens < 14 * ranks; ++tokens)
      for (const auto& [layout, exchange] : context_ways) {
        const AttentionOptions options{.heads = heads_of(exchange, ranks), .kv_heads = 1, .head_dim = 3, .window = static_cast<int64_t>(random() % 2) * 10};
        ContextCase c = context_case(random, random_lengths(random, tokens, 8), options, layout, exchange);
        BOOST_TEST(largest_difference(run_ranks(c, ranks), run_single(c)) <= 1e-11);
        c.dtype = DType::f32;
        const ContextResult poisoned = run_ranks(c, ranks), clean = run_ranks(c, ranks, {.poison = false});
        BOOST_TEST(finite(poisoned));
        BOOST_TEST((poisoned.out == clean.out && poisoned.dq == clean.dq && poisoned.dk == clean.dk && poisoned.dv == clean.dv));
      }
}

// Keys of a shard's end were dropped: the last token of a document must read itself.
BOOST_AUTO_TEST_CASE(the_last_token_of_every_document_attends_to_itself_16) {
  std::mt19937_64 random(17);
  for (const int ranks : {2, 3, 5})
    for (const auto& [layout, exchange] : context_ways) {
      const AttentionOptions options{.heads = heads_of(exchange, ranks), .kv_heads = 1, .head_dim = 2};
      ContextCase c = context_case(random, random_lengths(random, 1 + static_cast<int64_t>(random() % 50), 8), options, layout, exchange);
      const Documents whole = c.whole();
      std::fill(c.v.begin(), c.v.end(), 0.0);
      for (const DocumentRun& run : whole.runs()) std::fill_n(c.v.begin() + (run.global + run.length - 1) * c.key_width(), c.key_width(), 1.0);
      const ContextResult many = run_ranks(c, ranks);
      for (int64_t token = 0; token < whole.tokens(); ++token) {
        const bool last = token + 1 == whole.tokens() || whole.starts()[static_cast<size_t>(token) + 1] == token + 1;
        for (int64_t i = 0; i < c.query_width(); ++i) {
          const double value = many.out[static_cast<size_t>(token * c.query_width() + i)];
          BOOST_REQUIRE((last ? value > 1e-30 : value == 0));
        }
      }
    }
}

// A thousand random length vectors, backward too.
BOOST_AUTO_TEST_CASE(a_thousand_length_vectors_stay_finite_17) {
  std::mt19937_64 random(18);
  for (int time = 0; time < 1000; ++time) {
    const auto& [layout, exchange] = context_ways[static_cast<size_t>(time) % std::size(context_ways)];
    const int ranks = 2 + static_cast<int>(random() % 3);
    AttentionOptions options{.heads = heads_of(exchange, ranks), .kv_heads = 1, .head_dim = 1 + static_cast<int64_t>(random() % 5)};
    options.window = static_cast<int64_t>(random() % 3) * 6;
    ContextCase c = context_case(random, random_lengths(random, 1 + static_cast<int64_t>(random() % 40), 8), options, layout, exchange);
    if (time % 2) c.dtype = DType::f32;
    BOOST_REQUIRE(finite(run_ranks(c, ranks)));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
