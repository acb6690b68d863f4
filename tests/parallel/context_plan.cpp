// Plans of context parallelism: who holds what and what goes to whom, looked at token by token, and the check of that itself.
#include "parallel/context_plan.h"

#include <algorithm>
#include <limits>
#include <thread>

#include "check.h"
#include "parallel/context_planner.h"

namespace quire {
namespace {

constexpr ContextLayout layouts[] = {ContextLayout::contiguous, ContextLayout::zigzag, ContextLayout::balanced};
constexpr ContextExchange exchanges[] = {ContextExchange::ring, ContextExchange::gather, ContextExchange::heads};
const std::vector<int64_t> rank_counts{1, 2, 3, 4, 5, 7, 8, 16, 64};
const std::vector<int64_t> all_windows{0, 1, 3, 17, 1000};

/// Lengths of one microbatch: mixed, one-token documents only, one document, equal ones, a long one among short ones; totals are often prime.
std::vector<int64_t> random_row(std::mt19937_64& random) {
  const int64_t primes[] = {2, 3, 13, 61, 127, 251, 509, 1021};
  const int64_t tokens = random() % 2 ? primes[random() % 8] : static_cast<int64_t>(random() % 600);
  switch (random() % 6) {
    case 0: return std::vector<int64_t>(static_cast<size_t>(tokens), 1);
    case 1: return {tokens};
    case 2: return std::vector<int64_t>(1 + random() % 20, 1 + static_cast<int64_t>(random() % 50));
    case 3: {
      std::vector<int64_t> lengths = test::random_lengths(random, tokens / 4);
      lengths.insert(lengths.begin() + static_cast<int64_t>(random() % (lengths.size() + 1)), {tokens, 0});
      return lengths;
    }
    default: return test::random_lengths(random, tokens, 8);
  }
}

ContextCosts random_costs(std::mt19937_64& random) {
  ContextCosts costs;
  costs.windows.clear();
  const size_t count = 1 + random() % 3;
  for (size_t i = 0; i < count; ++i) {
    const int64_t window = all_windows[std::min(random() % 2 + 2 * i, all_windows.size() - 1)];
    costs.windows.push_back({window, 1 + static_cast<int64_t>(random() % 5)});
  }
  costs.token_cost = random() % 2 ? 0 : static_cast<int64_t>(random() % 3000);
  costs.tile = random() % 2 ? 64 : 1 + static_cast<int64_t>(random() % 16);
  return costs;
}

ContextPlan plan_of(const std::vector<int64_t>& lengths, int64_t ranks, ContextLayout layout = ContextLayout::zigzag,
                    ContextExchange exchange = ContextExchange::ring, int64_t window = 0) {
  ContextCosts costs;
  costs.windows = {{window, 1}};
  return make_context_plan(lengths, ranks, layout, exchange, costs);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(context_plan)

BOOST_AUTO_TEST_CASE(any_row_over_any_ranks_is_held_once_and_reads_what_it_needs) {
  std::mt19937_64 random(1);
  int64_t empty_shards = 0, dropped_steps = 0, plans = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    const std::vector<int64_t> lengths = random_row(random);
    const int64_t ranks = rank_counts[random() % rank_counts.size()];
    const ContextExchange exchange = exchanges[random() % 3];
    const ContextCosts costs = random_costs(random);
    for (const ContextLayout layout : layouts) {
      if (exchange == ContextExchange::heads && layout != ContextLayout::contiguous) continue;
      const ContextPlan plan = make_context_plan(lengths, ranks, layout, exchange, costs);
      BOOST_REQUIRE_NO_THROW(check_context_plan(plan, lengths));
      ++plans;
      for (const auto& shard : plan.shards) empty_shards += shard.empty();
      for (const KeyExchange& each : plan.exchanges) dropped_steps += exchange == ContextExchange::ring && static_cast<int64_t>(each.steps.size()) < ranks - 1;
    }
  }
  BOOST_TEST(plans > 3000);
  BOOST_TEST(empty_shards > 100);  // both have been met
  BOOST_TEST(dropped_steps > 100);
}

BOOST_AUTO_TEST_CASE(every_count_of_ranks_up_to_128) {
  const std::vector<int64_t> lengths{1, 130, 7, 1, 1, 250, 127};  // 517 tokens
  for (int64_t ranks = 1; ranks <= 128; ++ranks)
    for (const ContextLayout layout : layouts) BOOST_REQUIRE_NO_THROW(check_context_plan(plan_of(lengths, ranks, layout), lengths));
}

BOOST_AUTO_TEST_CASE(contiguous_and_zigzag_shards) {
  const ContextPlan contiguous = plan_of({4, 0, 6}, 4, ContextLayout::contiguous);
  BOOST_TEST((contiguous.shards == std::vector<std::vector<TokenRange>>{{{0, 2}}, {{2, 5}}, {{5, 7}}, {{7, 10}}}));
  BOOST_TEST(contiguous.tokens == 10);
  const ContextPlan zigzag = plan_of({9}, 2);
  BOOST_TEST((zigzag.shards == std::vector<std::vector<TokenRange>>{{{0, 2}, {6, 9}}, {{2, 6}}}));
  const ContextPlan few = plan_of({1, 1}, 4, ContextLayout::contiguous);
  BOOST_TEST((few.shards == std::vector<std::vector<TokenRange>>{{}, {{0, 1}}, {}, {{1, 2}}}));
  BOOST_TEST((plan_of({}, 3, ContextLayout::balanced).shards == std::vector<std::vector<TokenRange>>(3)));
}

BOOST_AUTO_TEST_CASE(a_ring_step_has_one_shift_and_a_step_that_nobody_needs_is_not_there) {
  // Documents [0,2) [2,6) over three ranks of two tokens: only rank 2 needs rank 1's keys.
  const ContextPlan plan = plan_of({2, 4}, 3, ContextLayout::contiguous);
  const KeyExchange expected{0, {{{{1, 2, {{2, 4}}}}}}};
  BOOST_TEST((plan.for_window(0) == expected));
  const ContextPlan zigzag = plan_of({8}, 2);  // rank 0: 0 1 6 7, rank 1: 2 3 4 5
  const KeyExchange both{0, {{{{1, 0, {{2, 6}}}, {0, 1, {{0, 2}}}}}}};
  BOOST_TEST((zigzag.for_window(0) == both));
  const ContextPlan whole = plan_of({5, 5}, 2, ContextLayout::contiguous);
  BOOST_TEST(whole.for_window(0).steps.empty());
  test::check_error<StateError>([&] { whole.for_window(3); }, {"window of 3"});
}

BOOST_AUTO_TEST_CASE(a_window_narrows_what_is_received) {
  const ContextPlan plan = plan_of({12}, 3, ContextLayout::contiguous, ContextExchange::ring, 3);
  const KeyExchange expected{3, {{{{0, 1, {{2, 4}}}, {1, 2, {{6, 8}}}}}}};
  BOOST_TEST((plan.for_window(3) == expected));
  BOOST_TEST(plan_of({12}, 3, ContextLayout::contiguous, ContextExchange::ring, 1).for_window(1).steps.empty());
  // Of a shard of several ranges each one's window counts: rank 0 holds 0, 1 and 6, 7.
  const ContextPlan zigzag = plan_of({8}, 2, ContextLayout::zigzag, ContextExchange::gather, 2);
  const KeyExchange gathered{2, {{{{1, 0, {{5, 6}}}, {0, 1, {{1, 2}}}}}}};
  BOOST_TEST((zigzag.for_window(2) == gathered));
}

BOOST_AUTO_TEST_CASE(the_exchange_of_given_shards_is_that_of_the_plan) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 100; ++trial) {
    const std::vector<int64_t> lengths = random_row(random);
    const int64_t window = all_windows[random() % all_windows.size()];
    const ContextExchange exchange = exchanges[random() % 2];
    const ContextPlan plan = plan_of(lengths, 4, ContextLayout::balanced, exchange, window);
    BOOST_TEST((plan_key_exchange(Documents::from_lengths(lengths), plan.shards, exchange, window) == plan.for_window(window)));
    BOOST_TEST((place_tokens(lengths, 4, ContextLayout::balanced, {{{window, 1}}}) == plan.shards));
  }
}

BOOST_AUTO_TEST_CASE(the_same_request_gives_the_same_plan_and_another_one_another_digest) {
  std::mt19937_64 random(3);
  std::vector<uint64_t> digests;
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<int64_t> lengths = random_row(random);
    const ContextLayout layout = layouts[random() % 3];
    const ContextPlan plan = plan_of(lengths, 5, layout);
    BOOST_TEST((plan == plan_of(lengths, 5, layout)));
  }
  // Same shards, other documents; other windows, exchanges, layouts, ranks.
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{{4, 4}, {8}, {4, 4, 1}, {1, 1, 1, 1, 1, 1, 1, 1}})
    for (const ContextLayout layout : {ContextLayout::contiguous, ContextLayout::zigzag})
      for (const int64_t ranks : {1, 2, 4})
        for (const int64_t window : {0, 2})
          for (const ContextExchange exchange : {ContextExchange::ring, ContextExchange::gather})
            digests.push_back(plan_of(lengths, ranks, layout, exchange, window).digest);
  std::sort(digests.begin(), digests.end());
  BOOST_TEST(digests.size() == 4u * 2 * 3 * 2 * 2);
  BOOST_TEST((std::adjacent_find(digests.begin(), digests.end()) == digests.end()));
  BOOST_TEST(plan_of({4, 4}, 2).digest == plan_of({4, 0, 4}, 2).digest);  // no tokens, no difference
}

// Every break below is made on purpose in a right plan, and must be seen.
BOOST_AUTO_TEST_CASE(the_check_sees_broken_plans) {
  const std::vector<int64_t> lengths{10, 30, 3};
  const auto broken = [&](const auto& change, std::initializer_list<std::string> parts, ContextExchange exchange = ContextExchange::ring, int64_t window = 0) {
    ContextPlan plan = plan_of(lengths, 4, ContextLayout::zigzag, exchange, window);
    check_context_plan(plan, lengths);
    change(plan);
    test::check_error<ScheduleError>([&] { check_context_plan(plan, lengths); }, parts);
  };
  const auto transfers = [](ContextPlan& plan) -> std::vector<KeyTransfer>& { return plan.exchanges[0].steps[0].transfers; };

  broken([](ContextPlan& plan) { --plan.shards[1].back().end; }, {"token", "held by no rank"});
  broken([](ContextPlan& plan) { ++plan.shards[1].front().end; }, {"is held by rank 1 and by rank 2"});
  broken([](ContextPlan& plan) { std::swap(plan.shards[1][0], plan.shards[1][1]); }, {"shard of rank 1", "ascend"});
  broken([](ContextPlan& plan) {  // one token moves, and its key is still sent by its owner of before
    --plan.shards[2].front().end;
    --plan.shards[3].front().begin;
  }, {"sender does not hold token 15, rank 3 does"});
  broken([](ContextPlan& plan) {  // one token moves to a rank that reads nothing of its document so far
    --plan.shards[1].front().end;
    --plan.shards[2].front().begin;
  }, {"rank 2 reads the key of token 0 and neither holds nor receives it"});
  broken([](ContextPlan& plan) { plan.shards.pop_back(); }, {"3 shards for 4 ranks"});
  broken([](ContextPlan& plan) { plan.tokens = 42; }, {"42 tokens", "43"});

  broken([&](ContextPlan& plan) { transfers(plan).erase(transfers(plan).begin()); }, {"rank 0 reads the key of token", "neither holds nor receives"});
  broken([&](ContextPlan& plan) { --transfers(plan)[0].rows.back().end; }, {"rank 0 reads the key of token", "neither holds nor receives"});
  broken([&](ContextPlan& plan) { transfers(plan)[0].rows.insert(transfers(plan)[0].rows.begin(), {15, 16}); }, {"rank 3 to rank 0", "token"});
  broken([&](ContextPlan& plan) { plan.exchanges[0].steps[0].transfers.push_back(transfers(plan)[0]); }, {"rank 0 receives the key of token", "twice"});
  broken([&](ContextPlan& plan) { plan.exchanges[0].steps.push_back(plan.exchanges[0].steps[0]); }, {"rank 0 receives the key of token", "twice"});
  broken([&](ContextPlan& plan) { std::swap(transfers(plan)[0], transfers(plan)[1]); }, {"transfers ascend"});
  broken([&](ContextPlan& plan) { std::swap(plan.exchanges[0].steps[0], plan.exchanges[0].steps[1]); }, {"no more than in the step before"});
  broken([&](ContextPlan& plan) { plan.exchanges[0].steps.emplace_back(); }, {"step 3", "no such step"});
  broken([&](ContextPlan& plan) {   // a transfer of another shift in the first step
    std::vector<ContextStep>& steps = plan.exchanges[0].steps;
    for (KeyTransfer& each : steps[1].transfers) steps[0].transfers.push_back(each);
    steps.erase(steps.begin() + 1);
    std::sort(transfers(plan).begin(), transfers(plan).end(),
              [](const KeyTransfer& a, const KeyTransfer& b) { return std::pair(a.to, a.from) < std::pair(b.to, b.from); });
  }, {"step 0", "around the ring"});
  broken([&](ContextPlan& plan) { transfers(plan)[0].to = 7; }, {"rank 3 to rank 7"});
  broken([&](ContextPlan& plan) { plan.exchanges.push_back(plan.exchanges[0]); }, {"two exchanges"});
  broken([&](ContextPlan& plan) { plan.exchanges[0].window = 5; }, {"none of its queries reads"});
  broken([](ContextPlan& plan) { ++plan.digest; }, {"digest"});
  broken([](ContextPlan& plan) { plan.layout = ContextLayout::balanced; }, {"digest"});

  broken([](ContextPlan& plan) {  // gathered in two steps
    ContextStep last{{plan.exchanges[0].steps[0].transfers.back()}};
    plan.exchanges[0].steps[0].transfers.pop_back();
    plan.exchanges[0].steps.push_back(last);
  }, {"step 1", "gathered in one step"}, ContextExchange::gather);
  broken([](ContextPlan& plan) { plan.exchange = ContextExchange::ring; }, {"around the ring"}, ContextExchange::gather);
  broken([](ContextPlan& plan) { plan.exchange = ContextExchange::heads; }, {"heads has no exchange of keys"});
}

BOOST_AUTO_TEST_CASE(the_check_sees_a_key_sent_twice_and_one_that_nobody_reads) {
  // Contiguous over two ranks: rank 1 needs tokens 2..4 of rank 0 (document [2, 8)).
  const std::vector<int64_t> lengths{2, 6};
  ContextPlan plan = plan_of(lengths, 2, ContextLayout::contiguous);
  BOOST_TEST((plan.exchanges[0].steps[0].transfers[0].rows == std::vector<TokenRange>{{2, 4}}));
  plan.exchanges[0].steps[0].transfers[0].rows = {{1, 4}};
  test::check_error<ScheduleError>([&] { check_context_plan(plan, lengths); }, {"rank 1 receives the key of token 1, which none of its queries reads"});
  plan.exchanges[0].steps[0].transfers[0].rows = {{2, 4}, {3, 4}};
  test::check_error<ScheduleError>([&] { check_context_plan(plan, lengths); }, {"rank 0 to rank 1", "token 3 follows token 3"});
}

BOOST_AUTO_TEST_CASE(loads_count_what_a_walk_over_pairs_counts) {
  std::mt19937_64 random(4);
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<int64_t> lengths = test::random_lengths(random, 1 + static_cast<int64_t>(random() % 120), 8);
    const int64_t ranks = rank_counts[random() % 7];
    const ContextCosts costs = random_costs(random);
    const ContextPlan plan = make_context_plan(lengths, ranks, layouts[random() % 3], exchanges[random() % 2], costs);
    const Documents whole = Documents::from_lengths(lengths);
    const ContextLoad load = load_of(plan, whole, costs);
    int64_t layers = 0;
    std::vector<int64_t> received(static_cast<size_t>(ranks), 0), sent = received;
    for (const LayerWindow& each : costs.windows) layers += each.layers;
    for (size_t rank = 0; rank < plan.shards.size(); ++rank) {
      const Documents own = documents_of(whole, plan.shards[rank]);
      int64_t pairs = 0;
      for (int64_t i = 0; i < own.tokens(); ++i)
        for (const LayerWindow& each : costs.windows) {
          const int64_t read = int64_t{own.indices()[static_cast<size_t>(i)]} - own.starts()[static_cast<size_t>(i)] + 1;
          pairs += each.layers * (each.window == 0 ? read : std::min(read, each.window));
        }
      BOOST_TEST(load.tokens[rank] == own.tokens());
      BOOST_TEST(load.pairs[rank] == pairs);
      BOOST_TEST(load.cost[rank] == pairs + costs.token_cost * own.tokens());
      BOOST_TEST(load.tiles[rank] * costs.tile * costs.tile >= pairs);  // every pair lies in a visited tile
    }
    int64_t steps = 0, transfers = 0;
    for (const LayerWindow& each : costs.windows)
      for (const ContextStep& step : plan.for_window(each.window).steps) {
        steps += each.layers;
        for (const KeyTransfer& transfer : step.transfers) {
          transfers += each.layers;
          received[static_cast<size_t>(transfer.to)] += each.layers * tokens_of(transfer.rows);
          sent[static_cast<size_t>(transfer.from)] += each.layers * tokens_of(transfer.rows);
        }
      }
    BOOST_TEST(load.received == received, boost::test_tools::per_element());
    BOOST_TEST(load.sent == sent, boost::test_tools::per_element());
    BOOST_TEST(load.steps == steps);
    BOOST_TEST(load.transfers == transfers);
    BOOST_TEST(load.full_ring_rows == (ranks - 1) * whole.tokens() * layers);
  }
}

BOOST_AUTO_TEST_CASE(tiles_are_those_that_queries_by_tiles_read) {
  ContextCosts costs;
  costs.tile = 4;
  const auto tiles = [&](const std::vector<int64_t>& lengths, int64_t ranks, ContextLayout layout, int64_t window) {
    costs.windows = {{window, 1}};
    return load_of(make_context_plan(lengths, ranks, layout, ContextExchange::ring, costs), Documents::from_lengths(lengths), costs).tiles;
  };
  using Tiles = std::vector<int64_t>;
  BOOST_TEST(tiles({16}, 1, ContextLayout::contiguous, 0) == (Tiles{10}), boost::test_tools::per_element());
  BOOST_TEST(tiles({8, 8}, 1, ContextLayout::contiguous, 0) == (Tiles{6}), boost::test_tools::per_element());
  BOOST_TEST(tiles({16}, 2, ContextLayout::contiguous, 0) == (Tiles{3, 3 + 4}), boost::test_tools::per_element());
  BOOST_TEST(tiles({16}, 1, ContextLayout::contiguous, 1) == (Tiles{4}), boost::test_tools::per_element());
  BOOST_TEST(tiles({16}, 1, ContextLayout::contiguous, 2) == (Tiles{7}), boost::test_tools::per_element());
  // Rank 1 reads key 7 with query 8 alone.
  BOOST_TEST(tiles({16}, 2, ContextLayout::contiguous, 2) == (Tiles{3, 3 + 1}), boost::test_tools::per_element());
  costs.windows = {{}};
  BOOST_TEST(load_of(plan_of({16}, 2), Documents::from_lengths(std::vector<int64_t>{16}), costs).full_ring_tiles == 10);
}

BOOST_AUTO_TEST_CASE(heads_share_pairs_and_exchange_tokens) {
  const std::vector<int64_t> lengths{3, 4};
  const ContextPlan plan = plan_of(lengths, 2, ContextLayout::contiguous, ContextExchange::heads);
  check_context_plan(plan, lengths);
  BOOST_TEST(plan.exchanges.empty());
  const ContextLoad load = load_of(plan, Documents::from_lengths(lengths), {});
  BOOST_TEST(load.tokens == (std::vector<int64_t>{3, 4}), boost::test_tools::per_element());
  BOOST_TEST(load.pairs == (std::vector<int64_t>{8, 8}), boost::test_tools::per_element());
  BOOST_TEST(load.received == (std::vector<int64_t>{4, 3}), boost::test_tools::per_element());
  BOOST_TEST(load.sent == (std::vector<int64_t>{3, 4}), boost::test_tools::per_element());
  ContextPlan swapped = plan;
  std::swap(swapped.shards[0], swapped.shards[1]);
  test::check_error<ScheduleError>([&] { check_context_plan(swapped, lengths); }, {"contiguous"});
  swapped = plan;
  swapped.exchanges.emplace_back();
  test::check_error<ScheduleError>([&] { check_context_plan(swapped, lengths); }, {"heads"});
}

BOOST_AUTO_TEST_CASE(the_busiest_over_the_mean) {
  BOOST_TEST(max_over_mean(std::vector<int64_t>{1, 3}) == 1.5);
  BOOST_TEST(max_over_mean(std::vector<int64_t>{0, 0}) == 1.0);
}

BOOST_AUTO_TEST_CASE(documents_of_a_shard_keep_their_indices_and_starts) {
  const Documents whole = Documents::from_lengths(std::vector<int64_t>{3, 5});
  const Documents part = documents_of(whole, std::vector<TokenRange>{{1, 2}, {4, 6}});
  BOOST_TEST(part.indices() == (std::vector<int32_t>{1, 4, 5}), boost::test_tools::per_element());
  BOOST_TEST(part.starts() == (std::vector<int32_t>{0, 3, 3}), boost::test_tools::per_element());
  test::check_error<DataError>([&] { documents_of(whole, std::vector<TokenRange>{{7, 9}}); }, {"7 to 9", "8"});
}

BOOST_AUTO_TEST_CASE(names_and_wrong_requests) {
  for (const ContextLayout each : layouts) BOOST_TEST((context_layout_from(name_of(each)) == each));
  for (const ContextExchange each : exchanges) BOOST_TEST((context_exchange_from(name_of(each)) == each));
  test::check_error<ConfigError>([] { context_layout_from("zigzga"); }, {"'zigzga'", "contiguous, zigzag, balanced", "did you mean 'zigzag'"});
  test::check_error<ConfigError>([] { context_exchange_from("all"); }, {"ring, gather, heads"});
  test::check_error<ConfigError>([] { plan_of({4}, 2, ContextLayout::zigzag, ContextExchange::heads); }, {"heads", "contiguous", "zigzag"});
  test::check_error<ConfigError>([] { plan_of({4}, 0); }, {"0 ranks"});
  test::check_error<DataError>([] { plan_of({4, -1}, 2); }, {"document 1", "-1"});
  test::check_error<DataError>([] { plan_of({int64_t{1} << 30, int64_t{1} << 30}, 2); }, {"2^31"});
  BOOST_TEST(plan_of({std::numeric_limits<int32_t>::max()}, 2, ContextLayout::contiguous).shards[1][0].end == std::numeric_limits<int32_t>::max());
}

BOOST_AUTO_TEST_CASE(a_planner_makes_a_plan_once_and_forgets_the_one_used_longest_ago) {
  ContextPlanner planner(2, {ContextLayout::zigzag, ContextExchange::gather, {}}, 2);
  const auto documents = [](int64_t length) { return Documents::from_lengths(std::vector<int64_t>{length, 3}); };
  const auto first = planner.plan(documents(5)), second = planner.plan(documents(6));
  BOOST_TEST((*first == plan_of({5, 3}, 2, ContextLayout::zigzag, ContextExchange::gather)));
  BOOST_TEST(planner.plan(documents(5)).get() == first.get());
  planner.plan(documents(7));  // the second goes
  BOOST_TEST(planner.plan(documents(5)).get() == first.get());
  const auto again = planner.plan(documents(6));
  BOOST_TEST(again.get() != second.get());
  BOOST_TEST((*again == *second));
}

BOOST_AUTO_TEST_CASE(threads_share_a_planner) {
  ContextPlanner planner(3, {}, 4);
  std::vector<std::vector<uint64_t>> digests(4);
  std::vector<std::thread> threads;
  for (std::vector<uint64_t>& mine : digests)
    threads.emplace_back([&] {
      for (int64_t i = 0; i < 40; ++i) mine.push_back(planner.plan(Documents::from_lengths(std::vector<int64_t>{20 + i % 8, 9}))->digest);
    });
  for (std::thread& each : threads) each.join();
  for (const std::vector<uint64_t>& each : digests) BOOST_TEST(each == digests[0], boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire
