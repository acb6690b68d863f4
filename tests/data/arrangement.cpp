// Rows dealt out to microbatches that cost alike: the same rows, no dearer than before, the same in every layout and after a resume.
#include "data/arrangement.h"

#include <numeric>

#include "data/data_helpers.h"

using namespace quire;

namespace {

int64_t dearest(std::span<const int64_t> costs, std::span<const size_t> order, int64_t size) { return std::ranges::max(microbatch_costs(costs, order, size)); }

std::vector<size_t> as_given(size_t rows) {
  std::vector<size_t> order(rows);
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

/// The dearest microbatch of the best way there is.
int64_t optimum(std::span<const int64_t> costs, int64_t size) {
  std::vector<size_t> order = as_given(costs.size());
  int64_t best = dearest(costs, order, size);
  while (std::ranges::next_permutation(order).found) best = std::min(best, dearest(costs, order, size));
  return best;
}

int64_t cost_of(const Row& row) {
  int64_t sum = 0;
  for (const Piece& piece : row) sum += 100 * piece.length + piece.length * piece.length;
  return sum;
}

LoaderSettings arranged_settings(PackingStrategy strategy, int64_t rows, int64_t microbatch) {
  LoaderSettings settings;
  settings.packing.strategy = strategy;
  settings.packing.seq_len = 60;
  settings.packing.seed = 3;
  settings.packing.buffer = 40;
  settings.packing.epochs = 2;
  settings.global_batch_size = rows;
  settings.microbatch_size = microbatch;
  settings.row_cost = cost_of;
  return settings;
}

std::vector<std::vector<Row>> microbatches_of(const LoadedStep& step) {
  std::vector<std::vector<Row>> all;
  for (const HostBatch& batch : step.microbatches) all.push_back(batch.plan);
  return all;
}

std::vector<Row> sorted_rows(std::vector<Row> rows) {
  std::ranges::sort(rows, {}, [](const Row& row) { return std::tuple(row.front().document, row.front().offset); });
  return rows;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(arrangement)

BOOST_AUTO_TEST_CASE(every_row_has_one_place_and_no_microbatch_is_dearer_than_the_dearest_was) {
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> cost(5, 1.2);
  std::uniform_int_distribution<int64_t> few(0, 4);
  double before = 0, after = 0;
  for (int trial = 0; trial < 600; ++trial) {
    const auto rows = static_cast<size_t>(std::uniform_int_distribution<int>(0, 90)(random));
    const int64_t size = std::uniform_int_distribution<int64_t>(1, 9)(random);
    std::vector<int64_t> costs;
    for (size_t row = 0; row < rows; ++row) costs.push_back(trial % 3 == 0 ? few(random) : static_cast<int64_t>(cost(random)));
    const std::vector<size_t> order = arrange_rows(costs, size);
    std::vector<size_t> places = order;
    std::ranges::sort(places);
    BOOST_REQUIRE((places == as_given(rows)));
    BOOST_TEST((order == arrange_rows(costs, size)));
    if (rows == 0) continue;
    const int64_t given = dearest(costs, as_given(rows), size), now = dearest(costs, order, size);
    BOOST_TEST(now <= given);
    if (trial % 3 == 0 || size < 3 || rows < 30) continue;
    const auto mean = static_cast<double>(std::accumulate(costs.begin(), costs.end(), int64_t{0})) * static_cast<double>(size) / static_cast<double>(rows);
    before += static_cast<double>(given) / mean;
    after += static_cast<double>(now) / mean;
  }
  BOOST_TEST(after < 0.75 * before);  // not only no worse: the test above would pass for rows left where they are
}

BOOST_AUTO_TEST_CASE(small_steps_come_close_to_the_best_there_is) {
  std::mt19937_64 random(2);
  std::uniform_int_distribution<int64_t> cost(1, 100);
  double found = 0, best = 0;
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<int64_t> costs(static_cast<size_t>(4 + trial % 5));
    for (int64_t& each : costs) each = cost(random);
    const int64_t size = 2 + trial % 3, now = dearest(costs, arrange_rows(costs, size), size), least = optimum(costs, size);
    BOOST_TEST(now >= least);
    BOOST_TEST(static_cast<double>(now) <= 1.15 * static_cast<double>(least));
    found += static_cast<double>(now);
    best += static_cast<double>(least);
  }
  BOOST_TEST(found <= 1.02 * best);
}

BOOST_AUTO_TEST_CASE(microbatches_rise_to_the_dearest_and_fall) {
  std::mt19937_64 random(3);
  std::uniform_int_distribution<int64_t> cost(1, 1000);
  for (int trial = 0; trial < 50; ++trial) {
    const int64_t size = 1 + trial % 3;
    std::vector<int64_t> costs(static_cast<size_t>(size * (2 + trial % 17)));
    for (int64_t& each : costs) each = cost(random);
    const std::vector<int64_t> sums = microbatch_costs(costs, arrange_rows(costs, size), size);
    const auto top = std::ranges::max_element(sums);
    BOOST_TEST(std::ranges::is_sorted(sums.begin(), top));
    BOOST_TEST(std::ranges::is_sorted(top, sums.end(), std::greater{}));
    BOOST_TEST(sums.front() == std::ranges::min(sums));
  }
}

BOOST_AUTO_TEST_CASE(a_loader_gives_the_same_rows_of_each_step_in_another_order) {
  std::mt19937_64 random(4);
  const auto corpus = test::corpus_of(test::random_documents(random, test::random_lengths(random, 3000), 0.2));
  for (const PackingStrategy strategy : {PackingStrategy::concat, PackingStrategy::bfd, PackingStrategy::single})
    for (const int64_t size : {1, 2, 5}) {
      const LoaderSettings settings = arranged_settings(strategy, 11, size);
      LoaderSettings plain_settings = settings;
      plain_settings.row_cost = {};
      Loader arranged(corpus, settings), plain(corpus, plain_settings);
      int64_t moved = 0;
      for (;;) {
        const LoadedStep a = arranged.next_step(), b = plain.next_step();
        BOOST_TEST(a.plan.digest == b.plan.digest);
        BOOST_TEST(a.plan.valid == b.plan.valid);
        BOOST_TEST((arranged.state() == plain.state()));
        if (a.empty()) break;
        BOOST_TEST((sorted_rows(a.plan.rows) == sorted_rows(b.plan.rows)));
        moved += a.plan.rows != b.plan.rows;
        // Each row's content is its own, wherever it stands.
        for (const HostBatch& batch : a.microbatches) {
          const HostBatch again = load_rows(*corpus, batch.plan);
          BOOST_TEST((again.tokens == batch.tokens && again.targets == batch.targets && again.valid == batch.valid));
        }
      }
      BOOST_TEST(moved > 0);
    }
}

BOOST_AUTO_TEST_CASE(the_arrangement_is_that_of_every_layout_and_of_a_resumed_run) {
  std::mt19937_64 random(5);
  const auto corpus = test::corpus_of(test::random_documents(random, test::random_lengths(random, 3000)));
  const LoaderSettings settings = arranged_settings(PackingStrategy::bfd, 14, 3);
  Loader whole(corpus, settings);
  std::vector<std::vector<std::vector<Row>>> steps;
  std::vector<PackingState> states{whole.state()};
  for (LoadedStep step = whole.next_step(); !step.empty(); step = whole.next_step()) {
    steps.push_back(microbatches_of(step));
    states.push_back(whole.state());
  }
  BOOST_REQUIRE(steps.size() > 3u);
  for (const int64_t count : {2, 3, 5, 7}) {
    std::vector<std::map<int64_t, std::vector<Row>>> joined(steps.size());
    for (int64_t index = 0; index < count; ++index) {
      Loader part(corpus, settings, {index, count});
      for (std::map<int64_t, std::vector<Row>>& step : joined)
        for (const HostBatch& batch : part.next_step().microbatches) BOOST_TEST(step.emplace(batch.index, batch.plan).second);
    }
    for (size_t step = 0; step < steps.size(); ++step) {
      BOOST_REQUIRE_EQUAL(joined[step].size(), steps[step].size());
      for (const auto& [m, rows] : joined[step]) BOOST_TEST((rows == steps[step].at(static_cast<size_t>(m))));
    }
  }
  for (size_t stopped = 0; stopped < steps.size(); ++stopped) {
    Loader resumed(corpus, settings);
    resumed.restore(states[stopped]);
    BOOST_TEST((microbatches_of(resumed.next_step()) == steps[stopped]));
  }
}

BOOST_AUTO_TEST_CASE(shares_of_an_arranged_step_cost_alike) {
  std::mt19937_64 random(6);
  std::lognormal_distribution<double> cost(8, 0.7);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<int64_t> costs(64);
    for (int64_t& each : costs) each = static_cast<int64_t>(cost(random));
    const std::vector<int64_t> sums = microbatch_costs(costs, arrange_rows(costs, 1), 1);
    const auto spread = [&](bool arranged) {
      std::vector<int64_t> shares;
      for (int64_t index = 0; index < 4; ++index) {
        shares.push_back(0);
        for (const int64_t m : shared_microbatches(64, {index, 4}, arranged)) shares.back() += sums[static_cast<size_t>(m)];
      }
      return static_cast<double>(std::ranges::max(shares)) / static_cast<double>(std::ranges::min(shares));
    };
    BOOST_TEST(spread(true) < 1.35);
    BOOST_TEST(spread(true) < spread(false));  // consecutive ones would give all dear microbatches to some
  }
}

BOOST_AUTO_TEST_CASE(evaluation_arranges_nothing) {
  BOOST_TEST(!evaluation_settings(arranged_settings(PackingStrategy::concat, 4, 2)).row_cost);
}

BOOST_AUTO_TEST_SUITE_END()
