// FAULTS.md 29: head exchange with fewer key/value heads than ranks.
#include "parallel/context_case.h"

namespace quire::test {

BOOST_AUTO_TEST_SUITE(fault_29_head_exchange)

BOOST_AUTO_TEST_CASE(fewer_key_value_heads_than_ranks_are_right_29) {
  std::mt19937_64 random(29);
  for (const int ranks : {2, 3, 4, 6, 8})
    for (int64_t kv_heads = 1; kv_heads < ranks; ++kv_heads) {
      if (ranks % kv_heads != 0) continue;
      for (const int64_t heads : {ranks, 2 * ranks})
        for (const int64_t window : {0, 5}) {
          const AttentionOptions options{.heads = heads, .kv_heads = kv_heads, .head_dim = 3, .window = window};
          const std::vector<int64_t> lengths = random_lengths(random, 1 + static_cast<int64_t>(random() % 60), 8);
          const ContextCase c = context_case(random, lengths, options, ContextLayout::contiguous, ContextExchange::heads);
          BOOST_TEST(largest_difference(run_ranks(c, ranks), run_single(c)) <= 1e-11, ranks << " ranks, " << heads << " and " << kv_heads << " heads");
        }
    }
}

BOOST_AUTO_TEST_CASE(gradients_of_shared_heads_are_summed_exactly_once_control_of_29) {
  // The share of one of two ranks with the same key/value head is lost, or counts twice: what a wrong sum would give.
  std::mt19937_64 random(30);
  const AttentionOptions options{.heads = 4, .kv_heads = 1, .head_dim = 4};
  const ContextCase c = context_case(random, {3, 20, 1}, options, ContextLayout::contiguous, ContextExchange::heads);
  const ContextResult single = run_single(c);
  for (const double factor : {1.0, 0.0, 2.0}) {
    ContextRun run;
    run.wire.change = [&](const Tensor& message, int, const MessageLabel& label) {
      if (std::string_view(label.purpose) != "gradients") return message;
      static thread_local Rank rank;
      std::vector<double> values = message.to_vector<double>();
      for (size_t i = 0; i < values.size(); ++i)
        if (i % 16 >= 8) values[i] *= factor;  // 2 query heads of 4, then the key and the value head
      return Tensor::from<double>(rank, message.shape(), values);
    };
    const ContextResult many = run_ranks(c, 2, run);
    BOOST_TEST(relative_difference(many.dq, single.dq) <= 1e-11);
    BOOST_TEST((std::max(relative_difference(many.dk, single.dk), relative_difference(many.dv, single.dv)) <= 1e-11) == (factor == 1.0));
  }
}

BOOST_AUTO_TEST_CASE(heads_that_do_not_fit_are_refused_29) {
  for (const auto& [heads, kv_heads, ranks] : {std::array<int64_t, 3>{8, 8, 4}, {8, 2, 4}, {8, 1, 8}, {6, 3, 3}, {12, 12, 2}})
    check_head_exchange(heads, kv_heads, ranks);
  check_error<ConfigError>([] { check_head_exchange(6, 6, 4); },
                           {"[context]", "6 query heads and 6 key/value heads", "4 context ranks", "'heads'", "'ring' and 'gather'"});
  check_error<ConfigError>([] { check_head_exchange(12, 6, 4); }, {"[context]", "12 query heads and 6 key/value heads", "multiple or a divisor"});
  check_error<ConfigError>([] { check_head_exchange(2, 1, 4); }, {"[context]", "2 query heads"});
  // Where nobody asked before, the executor refuses, on every rank alike.
  std::mt19937_64 random(31);
  const ContextCase c = context_case(random, {9}, {.heads = 3, .kv_heads = 3, .head_dim = 2}, ContextLayout::contiguous, ContextExchange::heads);
  check_error<ConfigError>([&] { run_ranks(c, 2); }, {"[context]", "3 query heads"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
