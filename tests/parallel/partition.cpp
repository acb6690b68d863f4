#include "check.h"
#include "parallel/schedule.h"

using namespace quire;
using quire::test::check_error;

namespace {

struct Quality {
  double largest = 0, squares = 0;
};

Quality quality_of(const std::vector<double>& costs, const std::vector<int64_t>& first) {
  Quality quality;
  for (size_t stage = 0; stage + 1 < first.size(); ++stage) {
    double cost = 0;
    for (int64_t layer = first[stage]; layer < first[stage + 1]; ++layer) cost += costs[static_cast<size_t>(layer)];
    quality.largest = std::max(quality.largest, cost);
    quality.squares += cost * cost;
  }
  return quality;
}

/// Calls `visit` with every way to cut `layers` into `stages`, first layers ascending.
template <class F>
void for_partitions(int64_t layers, int64_t stages, std::vector<int64_t>& first, F&& visit) {
  if (static_cast<int64_t>(first.size()) == stages) {
    first.push_back(layers);
    visit(first);
    first.pop_back();
    return;
  }
  for (int64_t next = first.back() + 1; next < layers; ++next) {
    first.push_back(next);
    for_partitions(layers, stages, first, visit);
    first.pop_back();
  }
}

void check_shape(const std::vector<int64_t>& first, int64_t layers, int64_t stages) {
  BOOST_REQUIRE_EQUAL(static_cast<int64_t>(first.size()), stages + 1);
  BOOST_TEST(first.front() == 0);
  BOOST_TEST(first.back() == layers);
  for (size_t stage = 0; stage + 1 < first.size(); ++stage) BOOST_TEST(first[stage] < first[stage + 1]);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(partition)

BOOST_AUTO_TEST_CASE(no_partition_is_better) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    const int64_t layers = 1 + static_cast<int64_t>(random() % 11), stages = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(layers));
    std::vector<double> costs(static_cast<size_t>(layers));
    // Whole numbers make ties, which the squares decide; some layers are free.
    for (double& cost : costs) cost = round % 2 ? static_cast<double>(random() % 5) : std::uniform_real_distribution<>(0, 3)(random);
    const std::vector<int64_t> found = partition_layers(costs, stages);
    check_shape(found, layers, stages);
    Quality best{1e30, 1e30};
    std::vector<int64_t> first = {0};
    for_partitions(layers, stages, first, [&](const std::vector<int64_t>& cuts) {
      const Quality quality = quality_of(costs, cuts);
      const double margin = 1e-7 * (1 + quality.largest);
      if (quality.largest < best.largest - margin || (quality.largest < best.largest + margin && quality.squares < best.squares)) best = quality;
    });
    const Quality quality = quality_of(costs, found);
    BOOST_TEST(std::abs(quality.largest - best.largest) <= 1e-6 * (1 + best.largest));
    BOOST_TEST(std::abs(quality.squares - best.squares) <= 1e-6 * (1 + best.squares));
  }
}

BOOST_AUTO_TEST_CASE(layers_are_spread_evenly_and_the_first_stages_get_less) {
  const auto cuts = [](size_t layers, double cost, int64_t stages) { return partition_layers(std::vector<double>(layers, cost), stages); };
  const auto per_element = boost::test_tools::per_element();
  BOOST_TEST(cuts(6, 1, 3) == std::vector<int64_t>({0, 2, 4, 6}), per_element);
  BOOST_TEST(cuts(5, 1, 2) == std::vector<int64_t>({0, 2, 5}), per_element);
  BOOST_TEST(cuts(8, 1, 3) == std::vector<int64_t>({0, 2, 5, 8}), per_element);
  BOOST_TEST(cuts(3, 1, 1) == std::vector<int64_t>({0, 3}), per_element);
  BOOST_TEST(cuts(4, 1, 4) == std::vector<int64_t>({0, 1, 2, 3, 4}), per_element);
  // 0.1 is no sum of powers of two: equal stages' sums differ in the last bits, which must decide nothing.
  for (size_t layers = 1; layers <= 40; ++layers)
    for (int64_t stages = 1; stages <= static_cast<int64_t>(layers); ++stages)
      BOOST_TEST(cuts(layers, 0.1, stages) == cuts(layers, 1, stages), per_element);
}

BOOST_AUTO_TEST_CASE(a_costly_head_gets_a_stage_with_fewer_layers) {
  BOOST_TEST(partition_layers({0, 1, 1, 1, 1, 1, 1, 3}, 3) == std::vector<int64_t>({0, 4, 7, 8}), boost::test_tools::per_element());
  BOOST_TEST(partition_layers({9, 1, 1, 1}, 2) == std::vector<int64_t>({0, 1, 4}), boost::test_tools::per_element());
  // The largest stage is 9 whatever else: the others are balanced all the same.
  BOOST_TEST(partition_layers({1, 1, 1, 1, 9}, 3) == std::vector<int64_t>({0, 2, 4, 5}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(free_layers_still_fill_stages) {
  check_shape(partition_layers({0, 0, 0, 0}, 3), 4, 3);
  check_shape(partition_layers({0, 5, 0}, 3), 3, 3);
}

BOOST_AUTO_TEST_CASE(impossible_partitions_are_refused) {
  check_error<ConfigError>([] { partition_layers({1, 1, 1}, 4); }, {"4 stages", "pp_chunks", "3 layers", "3 stages or fewer"});
  check_error<ConfigError>([] { partition_layers({}, 1); }, {"1 stages", "0 layers"});
  check_error<ConfigError>([] { partition_layers({1}, 0); }, {"0 stages"});
  check_error<ConfigError>([] { partition_layers({1, -1}, 1); }, {"layer 1", "-1"});
  check_error<ConfigError>([] { partition_layers({std::nan(""), 1}, 1); }, {"layer 0", "nan"});
}

BOOST_AUTO_TEST_SUITE_END()
