// Attention over context-parallel ranks equals one process's, whatever the documents, layout, exchange, backend, window and heads.
#include "parallel/context_case.h"

#include "tier.h"

using namespace quire;
using namespace quire::test;

namespace {

std::string describe_case(const ContextCase& c, int ranks) {
  return fmt::format("{} ranks, {}, {}, {}, window {}, {} and {} heads, {} tokens", ranks, name_of(c.context.layout), name_of(c.context.exchange),
                     name_of(c.attention.backend), c.attention.window, c.attention.heads, c.attention.kv_heads, c.whole().tokens());
}

void check_equal(const ContextCase& c, int ranks) {
  const ContextResult single = run_single(c), many = run_ranks(c, ranks);
  BOOST_TEST_CONTEXT(describe_case(c, ranks)) {
    BOOST_TEST(largest_difference(many, single) <= 1e-11);
    BOOST_TEST(sum(many.forward_pairs) == c.attention.heads * c.whole().useful_pairs(c.attention.window));
    BOOST_TEST(sum(many.backward_pairs) == sum(many.forward_pairs));
    BOOST_TEST(sum(single.forward_pairs) == sum(many.forward_pairs));
    for (const auto& mismatch : many.mismatches) BOOST_TEST(!mismatch.has_value());
  }
}

/// Errors against f64 of one process and of several ranks, of one result, relative to its largest magnitude.
struct ResultErrors {
  double single = 0, many = 0;
  void add(const std::vector<double>& one, const std::vector<double>& several, const std::vector<double>& exact) {
    single = std::max(single, relative_difference(one, exact));
    many = std::max(many, relative_difference(several, exact));
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(context_attention)

BOOST_AUTO_TEST_CASE(equals_one_process_in_f64) {
  std::mt19937_64 random(1);
  const int times = all_tier() ? 8 : 1;
  for (int time = 0; time < times; ++time)
    for (const int ranks : {1, 2, 3, 4, 8})
      for (const auto& [layout, exchange] : context_ways)
        for (const AttentionBackend backend : {AttentionBackend::block, AttentionBackend::dense})
          for (const int64_t window : {0, 7})
            for (const int64_t kv_heads : exchange == ContextExchange::heads ? heads_for(ranks) : std::vector<int64_t>{1, 2, 4}) {
              const int64_t heads = exchange == ContextExchange::heads ? std::max<int64_t>(kv_heads, ranks) * 2 : 4;
              const int64_t tokens = 1 + static_cast<int64_t>(random() % 120);
              const AttentionOptions options{.heads = heads, .kv_heads = kv_heads, .head_dim = 4, .window = window, .backend = backend};
              check_equal(context_case(random, random_lengths(random, tokens, 8), options, layout, exchange), ranks);
            }
}

BOOST_AUTO_TEST_CASE(any_number_of_tokens_with_any_number_of_ranks) {
  std::mt19937_64 random(2);
  for (const int ranks : {2, 3, 4, 8})
    for (int64_t tokens = 1; tokens <= 4 * ranks + 1; ++tokens) {  // fewer than ranks, and every residue of twice the ranks
      const auto& [layout, exchange] = context_ways[random() % std::size(context_ways)];
      const AttentionOptions options{.heads = ranks, .kv_heads = 1, .head_dim = 2, .window = static_cast<int64_t>(random() % 2) * 3};
      check_equal(context_case(random, random_lengths(random, tokens, 4), options, layout, exchange), ranks);
    }
}

BOOST_AUTO_TEST_CASE(documents_longer_than_shards_and_blocks_of_the_kernels) {
  std::mt19937_64 random(3);
  for (const auto& [layout, exchange] : context_ways)
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{1009}, {1, 700, 1, 1, 301, 5}}) {
      const AttentionOptions options{.heads = 2, .kv_heads = 1, .head_dim = 3, .window = lengths.size() > 1 ? 150 : 0};
      check_equal(context_case(random, lengths, options, layout, exchange), 2);
    }
}

BOOST_AUTO_TEST_CASE(f32_and_bf16_hold_the_rule) {
  std::mt19937_64 random(4);
  for (const auto& [layout, exchange] : context_ways)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      ResultErrors errors[4];
      for (int time = 0; time < 6; ++time) {
        const AttentionOptions options{.heads = 4, .kv_heads = 2, .head_dim = 16, .window = time % 2 * 20};
        ContextCase c = context_case(random, random_lengths(random, 150, 16), options, layout, exchange);
        const ContextResult exact = run_single(c);
        c.dtype = dtype;
        const ContextResult single = run_single(c), many = run_ranks(c, time % 3 == 0 ? 2 : 4);
        errors[0].add(single.out, many.out, exact.out);
        errors[1].add(single.dq, many.dq, exact.dq);
        errors[2].add(single.dk, many.dk, exact.dk);
        errors[3].add(single.dv, many.dv, exact.dv);
      }
      const double ulp = dtype == DType::bf16 ? 0x1p-7 : 0x1p-23;
      for (int i = 0; i < 4; ++i)
        BOOST_TEST(errors[i].many <= std::max(2 * errors[i].single, 4 * ulp),
                   name_of(layout) << ", " << name_of(exchange) << ", " << name_of(dtype) << ", result " << i << ": " << errors[i].many << " and " << errors[i].single);
    }
}

BOOST_AUTO_TEST_CASE(heads_give_the_bits_of_one_process) {
  std::mt19937_64 random(5);
  for (const int ranks : {2, 3, 4, 8})
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const AttentionOptions options{.heads = 2 * ranks, .kv_heads = ranks, .head_dim = 5, .window = ranks == 3 ? 9 : 0};
      ContextCase c = context_case(random, random_lengths(random, 101, 8), options, ContextLayout::contiguous, ContextExchange::heads);
      c.dtype = dtype;
      const ContextResult single = run_single(c), many = run_ranks(c, ranks);
      BOOST_TEST((many.out == single.out && many.dq == single.dq && many.dk == single.dk && many.dv == single.dv), ranks << " ranks, " << name_of(dtype));
    }
}

BOOST_AUTO_TEST_CASE(threads_change_no_bit) {
  std::mt19937_64 random(6);
  for (const auto& [layout, exchange] : context_ways) {
    const AttentionOptions options{.heads = 4, .kv_heads = 2, .head_dim = 8};
    ContextCase c = context_case(random, random_lengths(random, 173, 16), options, layout, exchange);
    c.dtype = DType::f32;
    const ContextResult one = run_ranks(c, 2), three = run_ranks(c, 2, {.threads = 3});
    BOOST_TEST((one.out == three.out && one.dq == three.dq && one.dk == three.dk && one.dv == three.dv), name_of(layout) << ", " << name_of(exchange));
  }
}

BOOST_AUTO_TEST_CASE(recomputing_makes_the_exchange_again_and_changes_no_bit) {
  std::mt19937_64 random(7);
  for (const auto& [layout, exchange] : context_ways) {
    const AttentionOptions options{.heads = 4, .kv_heads = 2, .head_dim = 8};
    const ContextCase c = context_case(random, {60, 1, 30, 10}, options, layout, exchange);
    const ContextResult plain = run_ranks(c, 2), again = run_ranks(c, 2, {.recomputes = true});
    BOOST_TEST((plain.out == again.out && plain.dq == again.dq && plain.dk == again.dk && plain.dv == again.dv), name_of(layout) << ", " << name_of(exchange));
    const MessageKind kind = exchange == ContextExchange::heads ? MessageKind::head_parts : MessageKind::keys_values;
    for (size_t rank = 0; rank < 2; ++rank)
      if (plain.traffic[rank][kind].messages > 0) BOOST_TEST(again.traffic[rank][kind].messages > plain.traffic[rank][kind].messages);
  }
}

BOOST_AUTO_TEST_CASE(gathers_keep_what_they_received_and_rings_do_not) {
  std::mt19937_64 random(8);
  const AttentionOptions options{.heads = 2, .kv_heads = 2, .head_dim = 8};
  const ContextCase ring = context_case(random, {96}, options, ContextLayout::contiguous, ContextExchange::ring);
  ContextCase gather = ring;
  gather.context.exchange = ContextExchange::gather;
  const ContextResult rings = run_ranks(ring, 3), gathers = run_ranks(gather, 3);
  for (size_t rank = 0; rank < 3; ++rank) {
    const int64_t rows = static_cast<int64_t>(rank) * 32, row = 2 * ring.key_width() * 8;
    BOOST_TEST(gathers.saved_bytes[rank] == rings.saved_bytes[rank] + rows * row);
  }
}

BOOST_AUTO_TEST_CASE(what_is_no_part_of_a_plan_is_refused) {
  Rank rank;
  const std::unique_ptr<Communicator> single = single_communicator();
  ContextPlanner planner(1, {}), other(2, {});
  check_error<StateError>([&] { ContextAttention(rank, *single, other); }, {"[context]", "plans for 2 ranks in a group of 1"});
  ContextAttention executor(rank, *single, planner);
  const Documents whole = Documents::from_lengths(std::vector<int64_t>{3, 4});
  const AttentionOptions options{.heads = 1, .kv_heads = 1, .head_dim = 4};
  Tape tape(rank);
  const Value x = tape.leaf(Tensor::zeros(rank, {7, 4}, DType::f64)), few = tape.leaf(Tensor::zeros(rank, {6, 4}, DType::f64));
  Microbatch microbatch;
  check_error<StateError>([&] { executor.attend(tape, 0, x, x, x, microbatch, options); }, {"[context]", "not begun"});
  microbatch.work = executor.begin(whole, executor.shard(whole), 0, 0, 0);
  executor.attend(tape, 0, x, x, x, microbatch, options);
  check_error<ShapeError>([&] { executor.attend(tape, 0, few, few, few, microbatch, options); }, {"[context]", "q (6,4) f64", "7 tokens"});
  check_error<StateError>([&] { executor.begin(whole, Documents::from_lengths(std::vector<int64_t>{6}), 0, 0, 0); }, {"[context]", "6 tokens", "holds 7"});
}

BOOST_AUTO_TEST_CASE(queries_that_read_keys_are_found) {
  std::mt19937_64 random(9);
  for (int time = 0; time < 300; ++time) {
    const Documents whole = Documents::from_lengths(random_lengths(random, 1 + static_cast<int64_t>(random() % 60), 8));
    const int64_t window = static_cast<int64_t>(random() % 3) * 4;
    std::vector<int32_t> indices[2], starts[2];  // of queries and of keys, some tokens in none
    for (int32_t i = 0; i < whole.tokens();) {
      const size_t side = random() % 3;
      for (const int32_t end = std::min<int32_t>(i + 1 + static_cast<int32_t>(random() % 9), static_cast<int32_t>(whole.tokens())); i < end; ++i) {
        if (side == 2) continue;
        indices[side].push_back(i);
        starts[side].push_back(whole.starts()[static_cast<size_t>(i)]);
      }
    }
    const Documents queries = Documents::shard(indices[0], starts[0]), keys = Documents::shard(indices[1], starts[1]);
    std::vector<int32_t> found, expected;
    const DocumentRuns runs = queries_that_read(queries.runs(), keys.runs(), window);
    for (const DocumentRun& run : *runs)
      for (int32_t i = 0; i < run.length; ++i) {
        BOOST_TEST(queries.indices()[static_cast<size_t>(run.local + i)] == run.global + i);
        BOOST_TEST(queries.starts()[static_cast<size_t>(run.local + i)] == run.start);
        found.push_back(run.local + i);
      }
    for (size_t q = 0; q < indices[0].size(); ++q)
      for (size_t k = 0; k < indices[1].size(); ++k)
        if (starts[0][q] == starts[1][k] && indices[1][k] <= indices[0][q] && (window == 0 || indices[1][k] > indices[0][q] - window)) {
          expected.push_back(static_cast<int32_t>(q));
          break;
        }
    BOOST_TEST(found == expected, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_SUITE_END()
