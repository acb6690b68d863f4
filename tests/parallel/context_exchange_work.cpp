// What context-parallel ranks do and send is what the plan says, in the order that it says.
#include "parallel/boundary_record.h"
#include "in_rank.h"
#include "parallel/context_case.h"
#include "parallel/context_traffic.h"

using namespace quire;
using namespace quire::test;

namespace {

ContextModel model_of(const ContextCase& c) {
  return {.heads = c.attention.heads, .kv_heads = c.attention.kv_heads, .head_dim = c.attention.head_dim, .dtype = c.dtype, .costs = c.context.costs};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(context_exchange_work)

BOOST_AUTO_TEST_CASE(pairs_and_bytes_are_those_of_the_plan) {
  std::mt19937_64 random(1);
  for (const int ranks : {2, 3, 8})
    for (const auto& [layout, exchange] : context_ways)
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
        for (const int64_t window : {0, 11}) {
          if (exchange == ContextExchange::heads) continue;
          const AttentionOptions options{.heads = 4, .kv_heads = 2, .head_dim = 4, .window = window};
          ContextCase c = context_case(random, random_lengths(random, 1 + static_cast<int64_t>(random() % 150), 8), options, layout, exchange);
          c.dtype = dtype;
          const ContextResult many = run_ranks(c, ranks);
          const ContextModel model = model_of(c);
          const auto loads = step_loads(*many.plan, c.whole(), window);
          const int64_t times = exchange == ContextExchange::ring ? 2 : 1;  // a ring sends keys and values again in backward
          for (size_t rank = 0; rank < loads.size(); ++rank) {
            ContextStepLoad sum;
            for (const ContextStepLoad& step : loads[rank]) {
              sum.pairs += step.pairs;
              sum.sent_rows += step.sent_rows;
              sum.received_rows += step.received_rows;
              sum.sent_words += step.sent_words;
              sum.sent_messages += step.sent_messages;
              sum.received_messages += step.received_messages;
            }
            const TrafficCounters& traffic = many.traffic[rank];
            BOOST_TEST(many.forward_pairs[rank] == options.heads * sum.pairs);
            BOOST_TEST(many.backward_pairs[rank] == options.heads * sum.pairs);
            BOOST_TEST(traffic[MessageKind::keys_values].bytes == times * sum.sent_rows * model.row_bytes());
            BOOST_TEST(traffic[MessageKind::keys_values].messages == times * sum.sent_messages);
            BOOST_TEST(traffic[MessageKind::boundaries].bytes == times * 4 * sum.sent_words);
            BOOST_TEST(traffic[MessageKind::boundaries].messages == times * sum.sent_messages);
            BOOST_TEST(traffic[MessageKind::key_value_gradients].bytes == sum.received_rows * model.row_gradient_bytes());
            BOOST_TEST(traffic[MessageKind::key_value_gradients].messages == sum.received_messages);
            int64_t all = 0;
            for (const TrafficCounters::Entry& entry : traffic.sent) all += entry.messages;
            BOOST_TEST(all == 2 * times * sum.sent_messages + sum.received_messages);
          }
        }
}

BOOST_AUTO_TEST_CASE(heads_send_what_the_plan_says) {
  std::mt19937_64 random(2);
  for (const int ranks : {2, 4})
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (const int64_t kv_heads : heads_for(ranks)) {
        const AttentionOptions options{.heads = 8, .kv_heads = kv_heads, .head_dim = 4};
        ContextCase c = context_case(random, {1, 40, 3, 1, 22}, options, ContextLayout::contiguous, ContextExchange::heads);
        c.dtype = dtype;
        const ContextResult many = run_ranks(c, ranks);
        const int64_t size = size_of(dtype), wide = size_of(accumulator_of(dtype));
        const int64_t queries = 8 / ranks * 4, keys = std::max<int64_t>(1, kv_heads / ranks) * 4;
        for (int rank = 0; rank < ranks; ++rank) {
          const int64_t own = tokens_of(many.plan->shards[static_cast<size_t>(rank)]), others = c.whole().tokens() - own;
          const TrafficCounters& traffic = many.traffic[static_cast<size_t>(rank)];
          BOOST_TEST(traffic[MessageKind::head_parts].bytes ==
                     own * (ranks - 1) * ((queries + 2 * keys) * size + queries * size) + others * (queries * size + (queries + 2 * keys) * wide));
          BOOST_TEST(traffic[MessageKind::head_parts].messages == 4 * (ranks - 1));
          BOOST_TEST(traffic[MessageKind::boundaries].bytes == (ranks - 1) * 4 * (boundary_header_words + (rank == 0 ? 1 : 2) * own));
          BOOST_TEST(many.forward_pairs[static_cast<size_t>(rank)] == 8 / ranks * c.whole().useful_pairs());
        }
      }
}

BOOST_AUTO_TEST_CASE(everything_sent_is_predicted) {
  std::mt19937_64 random(5);
  for (const int ranks : {2, 4})
    for (const auto& [layout, exchange] : context_ways)
      for (const DType dtype : {DType::f64, DType::bf16})
        for (const bool recomputes : {false, true})
          for (const int64_t tokens : {3, 61}) {
            const AttentionOptions options{.heads = 4, .kv_heads = 2, .head_dim = 4, .window = tokens == 3 ? 0 : 9};
            ContextCase c = context_case(random, random_lengths(random, tokens, 8), options, layout, exchange);
            c.dtype = dtype;
            const ContextResult many = run_ranks(c, ranks, {.recomputes = recomputes});
            ContextModel model = model_of(c);
            model.recomputes = recomputes;
            const ContextBytes bytes = bytes_of(*many.plan, c.whole(), model);
            int64_t messages = 0;
            for (size_t rank = 0; rank < many.traffic.size(); ++rank) {
              int64_t sent = 0;
              for (const TrafficCounters::Entry& entry : many.traffic[rank].sent) {
                sent += entry.bytes;
                messages += entry.messages;
              }
              BOOST_TEST(sent == bytes.sent_forward[rank] + bytes.sent_backward[rank],
                         name_of(layout) << ", " << name_of(exchange) << ", rank " << rank << ", " << name_of(dtype));
            }
            BOOST_TEST(messages == bytes.messages);
            BOOST_TEST(sum(bytes.received_forward) == sum(bytes.sent_forward));
            BOOST_TEST(sum(bytes.received_backward) == sum(bytes.sent_backward));
          }
}

BOOST_AUTO_TEST_CASE(a_step_that_nobody_needs_makes_no_message) {
  std::mt19937_64 random(3);
  const AttentionOptions options{.heads = 2, .kv_heads = 2, .head_dim = 4};
  for (const ContextExchange exchange : {ContextExchange::ring, ContextExchange::gather}) {
    const ContextCase apart = context_case(random, {7, 1, 8, 3, 5}, options, ContextLayout::contiguous, exchange);  // the cuts of 3 ranks are documents' ends
    const ContextResult many = run_ranks(apart, 3);
    BOOST_TEST(largest_difference(many, run_single(apart)) <= 1e-11);
    for (const TrafficCounters& traffic : many.traffic)
      for (const TrafficCounters::Entry& entry : traffic.sent) BOOST_TEST(entry.messages == 0);
    // The second document crosses a cut by one token.
    const ContextCase across = context_case(random, {7, 2, 7, 3, 5}, options, ContextLayout::contiguous, exchange);
    const ContextResult some = run_ranks(across, 3);
    BOOST_TEST(some.traffic[0][MessageKind::keys_values].messages == (exchange == ContextExchange::ring ? 2 : 1));
    BOOST_TEST(some.traffic[1][MessageKind::keys_values].messages == 0);
    BOOST_TEST(some.traffic[1][MessageKind::key_value_gradients].messages == 1);
    BOOST_TEST(some.traffic[2][MessageKind::boundaries].messages == 0);
  }
}

BOOST_AUTO_TEST_CASE(an_exchange_is_started_before_the_step_before_it_is_computed) {
  // One document, cut in four: in step s rank r computes 16 x 16 pairs with the keys of rank r - s, after 16 x 17 / 2 with its own.
  std::mt19937_64 random(4);
  const AttentionOptions options{.heads = 1, .kv_heads = 1, .head_dim = 4};
  const ContextCase c = context_case(random, {64}, options, ContextLayout::contiguous, ContextExchange::ring);
  ContextPlanner planner(4, c.context);
  run_local(4, {.watchdog_seconds = 60}, [&](Communicator& world) {
    Rank rank;
    std::vector<int64_t> done;  // pairs, at each message of keys and values
    Wire wire(world, {.sent = [&](int, const MessageLabel& label) {
      if (label.kind == MessageKind::keys_values) done.push_back(rank.work().attended_pairs);
    }});
    ContextAttention executor(rank, wire, planner);
    const Documents whole = c.whole(), own = executor.shard(whole);
    Microbatch microbatch;
    microbatch.work = executor.begin(whole, own, 0, 0, 0);
    Tape tape(rank, false);
    const auto value = [&](const std::vector<double>& values) { return tape.constant(rows_tensor(rank, values, own.indices(), 4, DType::f64)); };
    executor.attend(tape, 0, value(c.q), value(c.k), value(c.v), microbatch, options);
    executor.finish();
    const int r = world.rank();
    std::vector<int64_t> expected;
    for (int step = 1; step <= 3 - r; ++step) expected.push_back(step == 1 ? 0 : 136 + std::min(step - 2, r) * 256);
    require_in_rank(done == expected, "pairs that were done when each step's keys were sent");
  });
}

BOOST_AUTO_TEST_SUITE_END()
