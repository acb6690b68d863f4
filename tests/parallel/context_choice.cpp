// Choosing layout and exchange: what plans come to per step and in bytes, and which one a slow or a fast link makes best.
#include "parallel/context_choice.h"

#include <limits>
#include <numeric>

#include "check.h"
#include "parallel/boundary_record.h"

using namespace quire;
using quire::test::check_error;
using quire::test::random_lengths;

namespace {

constexpr std::pair<ContextLayout, ContextExchange> all_plans[] = {
    {ContextLayout::balanced, ContextExchange::ring},   {ContextLayout::balanced, ContextExchange::gather},
    {ContextLayout::contiguous, ContextExchange::ring}, {ContextLayout::contiguous, ContextExchange::gather},
    {ContextLayout::zigzag, ContextExchange::ring},     {ContextLayout::zigzag, ContextExchange::gather},
    {ContextLayout::contiguous, ContextExchange::heads}};

ContextModel model_of(int64_t token_cost = 0) {
  ContextModel model;
  model.heads = 8;
  model.kv_heads = 2;
  model.head_dim = 16;
  model.token_flops = 1e5;
  model.costs.windows = {{0, 2}, {24, 3}};
  model.costs.token_cost = token_cost;
  return model;
}

constexpr ContextSpeeds fast_links{1e8, 1e11, 1e15, 0};
constexpr ContextSpeeds slow_links{1e12, 1e15, 1e6, 1e-4};

/// A long document for the first of four ranks and short ones for the others: contiguous sends nothing and is uneven, balanced is even and sends.
std::vector<Documents> uneven_rows() {
  std::vector<Documents> rows;
  for (const int64_t length : {32, 64, 16}) {
    std::vector<int64_t> lengths{512};
    lengths.insert(lengths.end(), static_cast<size_t>(1536 / length), length);
    rows.push_back(Documents::from_lengths(lengths));
  }
  return rows;
}

double seconds_of(const ContextChoice& choice, ContextLayout layout, ContextExchange exchange) {
  for (const ContextCandidate& candidate : choice.candidates)
    if (candidate.layout == layout && candidate.exchange == exchange) return candidate.seconds;
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(context_choice)

BOOST_AUTO_TEST_CASE(pairs_between_ranges_are_those_counted_one_by_one) {
  std::mt19937_64 random(1);
  const auto below = [&](int32_t limit) { return static_cast<int32_t>(random() % static_cast<uint64_t>(limit)); };
  int64_t some = 0;
  for (int round = 0; round < 2000; ++round) {
    const int32_t shift = below(50), a = shift + below(40), b = a + below(30), c = shift + below(40), d = c + below(30);
    const int64_t window = round % 3 == 0 ? 0 : 1 + below(40);
    int64_t counted = 0;
    for (int64_t i = a; i < b; ++i)
      for (int64_t j = c; j < d; ++j) counted += j <= i && (window == 0 || i - j < window);
    some += counted > 0;
    BOOST_REQUIRE_EQUAL(pairs_between({a, b}, {c, d}, window), counted);
  }
  BOOST_TEST(some > 500);
}

BOOST_AUTO_TEST_CASE(steps_add_up_to_what_the_plan_computes_and_sends) {
  std::mt19937_64 random(2);
  const ContextModel model = model_of();
  for (int round = 0; round < 60; ++round) {
    const std::vector<int64_t> lengths = random_lengths(random, 1 + static_cast<int64_t>(random() % 700));
    const Documents whole = Documents::from_lengths(lengths);
    for (const int64_t ranks : {1, 2, 3, 8})
      for (const auto& [layout, exchange] : all_plans) {
        if (exchange == ContextExchange::heads) continue;
        const ContextPlan plan = make_context_plan(lengths, ranks, layout, exchange, model.costs);
        const ContextLoad load = load_of(plan, whole, model.costs);
        std::vector<int64_t> pairs(static_cast<size_t>(ranks), 0), received = pairs, sent = pairs, words = pairs;
        for (const LayerWindow& layer : model.costs.windows) {
          const auto steps = step_loads(plan, whole, layer.window);
          BOOST_REQUIRE_EQUAL(steps.size(), static_cast<size_t>(ranks));
          for (size_t r = 0; r < steps.size(); ++r)
            for (const ContextStepLoad& step : steps[r]) {
              pairs[r] += layer.layers * step.pairs;
              received[r] += layer.layers * step.received_rows;
              sent[r] += layer.layers * step.sent_rows;
              words[r] += layer.layers * step.received_words;
            }
        }
        BOOST_TEST(pairs == load.pairs, boost::test_tools::per_element());
        BOOST_TEST(received == load.received, boost::test_tools::per_element());
        BOOST_TEST(sent == load.sent, boost::test_tools::per_element());
        const ContextBytes bytes = bytes_of(plan, whole, model);
        for (size_t r = 0; r < pairs.size(); ++r) BOOST_TEST(bytes.received_forward[r] == 4 * words[r] + model.row_bytes() * received[r]);
        const int64_t again = exchange == ContextExchange::ring ? 1 : 0;
        for (size_t r = 0; r < pairs.size(); ++r)
          BOOST_TEST(bytes.received_backward[r] == again * bytes.received_forward[r] + model.row_gradient_bytes() * sent[r]);
      }
  }
}

BOOST_AUTO_TEST_CASE(records_are_counted_as_they_are_made) {
  std::mt19937_64 random(3);
  Rank rank;
  for (int round = 0; round < 20; ++round) {
    const std::vector<int64_t> lengths = random_lengths(random, 200);
    const Documents whole = Documents::from_lengths(lengths);
    for (const ContextLayout layout : {ContextLayout::contiguous, ContextLayout::zigzag}) {
      const ContextPlan plan = make_context_plan(lengths, 3, layout, ContextExchange::ring);
      std::vector<int64_t> made(3, 0), counted(3, 0);
      for (const ContextStep& step : plan.exchanges.front().steps)
        for (const KeyTransfer& transfer : step.transfers)
          made[static_cast<size_t>(transfer.to)] += make_boundary_record(rank, {}, documents_of(whole, transfer.rows)).elements();
      const auto steps = step_loads(plan, whole, 0);
      for (size_t r = 0; r < 3; ++r)
        for (const ContextStepLoad& step : steps[r]) counted[r] += step.received_words;
      BOOST_TEST(made == counted, boost::test_tools::per_element());
    }
  }
}

BOOST_AUTO_TEST_CASE(slow_links_choose_traffic_and_fast_ones_balance) {
  const std::vector<Documents> rows = uneven_rows();
  ContextModel model = model_of();
  model.heads = 6;  // 3 key/value heads: over 4 ranks `heads` can not be
  model.kv_heads = 3;
  model.costs.windows = {{0, 4}};
  const ContextChoice slow = choose_context(rows, 4, model, slow_links), fast = choose_context(rows, 4, model, fast_links);
  const auto received = [&](const ContextChoice& choice) {
    int64_t sum = 0;
    for (const Documents& whole : rows) {
      std::vector<int64_t> lengths;
      for (const DocumentRun& run : whole.runs()) lengths.push_back(run.length);
      sum += bytes_of(make_context_plan(lengths, 4, choice.layout, choice.exchange, model.costs), whole, model).total();
    }
    return sum;
  };
  BOOST_TEST(static_cast<int>(slow.layout) == static_cast<int>(ContextLayout::contiguous));
  BOOST_TEST(static_cast<int>(fast.layout) == static_cast<int>(ContextLayout::balanced));
  BOOST_TEST(received(slow) < received(fast));
  BOOST_TEST(slow.reason.find("contiguous") == 0U);
  BOOST_TEST(fast.reason.find("ms per microbatch") != std::string::npos);
  // The model's two terms, each where the other is nothing: balance decides with free links, and nobody waits.
  BOOST_TEST(seconds_of(fast, ContextLayout::contiguous, ContextExchange::ring) > 1.2 * seconds_of(fast, ContextLayout::balanced, ContextExchange::ring));
  BOOST_TEST(seconds_of(slow, ContextLayout::contiguous, ContextExchange::ring) < seconds_of(slow, ContextLayout::zigzag, ContextExchange::ring));
  for (const ContextCandidate& candidate : fast.candidates) BOOST_TEST(candidate.exposed < 1e-6 * candidate.seconds);
  for (const ContextCandidate& candidate : slow.candidates)
    BOOST_TEST((candidate.layout == ContextLayout::contiguous ? candidate.exposed == 0 : candidate.exposed > 0.9 * candidate.seconds));
}

BOOST_AUTO_TEST_CASE(messages_hide_behind_tiles) {
  // Links exactly as fast as needed to hide each step's keys behind own tiles add nothing in forward; what is gathered waits for its whole.
  const std::vector<int64_t> lengths{1024};
  const Documents whole = Documents::from_lengths(lengths);
  ContextModel model = model_of();
  model.costs.windows = {{0, 1}};
  const ContextPlan plan = make_context_plan(lengths, 4, ContextLayout::zigzag, ContextExchange::ring, model.costs);
  const double free = predict_context(plan, whole, model, {1e6, 1e12, 1e15, 0}).seconds,
               hidden = predict_context(plan, whole, model, {1e6, 1e12, 1e8, 0}).seconds;
  const double exposed = predict_context(plan, whole, model, {1e12, 1e12, 1e8, 0}).exposed;
  BOOST_TEST(exposed > 0);
  BOOST_TEST(hidden - free < 0.3 * exposed);  // the last gradients alone have nothing to hide behind
}

BOOST_AUTO_TEST_CASE(near_ties_go_to_the_first_and_noise_decides_nothing) {
  // Documents that lie whole on their ranks in every layout: all candidates compute the same and send nothing.
  const std::vector<int64_t> lengths(16, 64);
  const std::vector<Documents> rows{Documents::from_lengths(lengths)};
  ContextModel model = model_of();
  model.costs.windows = {{0, 2}};
  std::mt19937_64 random(4);
  for (int round = 0; round < 50; ++round) {
    const auto noisy = [&](double value) { return value * (0.9 + 0.2 * static_cast<double>(random() % 1000) / 1000); };
    const ContextChoice choice = choose_context(rows, 2, model, {noisy(1e8), noisy(1e10), noisy(1e9), noisy(1e-6)});
    BOOST_TEST(choice.candidates.size() == 7U);
    BOOST_TEST(static_cast<int>(choice.layout) == static_cast<int>(ContextLayout::balanced));
    BOOST_TEST(static_cast<int>(choice.exchange) == static_cast<int>(ContextExchange::ring));
  }
  // Control: the one chosen need not be the fastest, but within the tie.
    for (const ContextSpeeds& speeds : {fast_links, slow_links, ContextSpeeds{1e9, 1e11, 1e9, 1e-5}}) {
    const ContextChoice choice = choose_context(uneven_rows(), 4, model, speeds);
    double best = std::numeric_limits<double>::infinity();
    for (const ContextCandidate& candidate : choice.candidates) best = std::min(best, candidate.seconds);
    BOOST_TEST(seconds_of(choice, choice.layout, choice.exchange) <= best * (1 + context_choice_tie));
    for (const ContextCandidate& candidate : choice.candidates) {
      if (candidate.layout == choice.layout && candidate.exchange == choice.exchange) break;
      BOOST_TEST(candidate.seconds > best * (1 + context_choice_tie));
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_given_is_kept) {
  const std::vector<Documents> rows = uneven_rows();
  const ContextModel model = model_of();
  for (const auto& [layout, exchange] : all_plans) {
    const ContextChoice choice = choose_context(rows, 2, model, {}, layout, exchange);  // no speeds are needed
    BOOST_TEST((choice.layout == layout && choice.exchange == exchange));
    BOOST_TEST(choice.reason.find("as given") != std::string::npos);
    const ContextChoice half = choose_context(rows, 2, model, slow_links, layout), other = choose_context(rows, 2, model, slow_links, {}, exchange);
    BOOST_TEST((half.layout == layout && other.exchange == exchange));
  }
}

BOOST_AUTO_TEST_CASE(what_can_not_be_is_left_out_or_refused) {
  const std::vector<Documents> rows = uneven_rows();
  ContextModel model = model_of();
  BOOST_TEST(std::isnan(seconds_of(choose_context(rows, 3, model, fast_links), ContextLayout::contiguous, ContextExchange::heads)));
  BOOST_TEST(!std::isnan(seconds_of(choose_context(rows, 4, model, fast_links), ContextLayout::contiguous, ContextExchange::heads)));
  check_error<ConfigError>([&] { choose_context(rows, 3, model, fast_links, {}, ContextExchange::heads); },
                           {"cp_exchange", "8 heads", "2 key/value heads", "3 ranks", "ring"});
  check_error<ConfigError>([&] { choose_context(rows, 2, model, fast_links, ContextLayout::zigzag, ContextExchange::heads); },
                           {"cp_exchange", "zigzag", "contiguous"});
  check_error<StateError>([&] { choose_context(rows, 2, model, {}); }, {"speeds"});
  for (const auto& [heads, kv_heads, ranks, fits] :
       {std::tuple{8, 2, 2, true}, {8, 2, 4, true}, {8, 2, 8, true}, {8, 2, 16, false}, {6, 3, 2, false}, {6, 3, 6, true}, {6, 2, 3, false}})
    BOOST_TEST(heads_fit(heads, kv_heads, ranks) == fits);
}

BOOST_AUTO_TEST_CASE(heads_send_what_does_not_depend_on_documents) {
  const ContextModel model = model_of();
  const std::vector<int64_t> one{100}, many(100, 1);
  const ContextBytes a =
      bytes_of(make_context_plan(one, 4, ContextLayout::contiguous, ContextExchange::heads, model.costs), Documents::from_lengths(one), model);
  const ContextBytes b =
      bytes_of(make_context_plan(many, 4, ContextLayout::contiguous, ContextExchange::heads, model.costs), Documents::from_lengths(many), model);
  BOOST_TEST(a.received_forward == b.received_forward, boost::test_tools::per_element());
  // Queries of 2 heads, one (replicated) head of keys and of values from 75 tokens; outputs of 6 heads for 25 tokens back; 16 wide, f32; three
  // records; 5 layers.
  BOOST_TEST(a.received_forward.front() == 5 * (16 * 4 * (75 * (2 + 2) + 25 * 6) + 3 * (64 + 8 * 25)));
  BOOST_TEST(std::accumulate(a.sent_forward.begin(), a.sent_forward.end(), int64_t{0}) ==
             std::accumulate(a.received_forward.begin(), a.received_forward.end(), int64_t{0}));
}

BOOST_AUTO_TEST_SUITE_END()
