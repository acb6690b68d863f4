// The covering sets of the default tier really cover every pair.
#include "tier.h"

#include <random>
#include <set>

#include "check.h"

using namespace quire::test;

namespace {

TestParameters random_parameters(std::mt19937_64& random) {
  TestParameters parameters(2 + random() % 12);
  for (size_t p = 0; p < parameters.size(); ++p) {
    parameters[p].name = std::string(1, static_cast<char>('a' + p));
    for (size_t v = 0; v < 1 + random() % 5; ++v) parameters[p].values.push_back(std::string(1, static_cast<char>('0' + v)));
  }
  return parameters;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tier)

BOOST_AUTO_TEST_CASE(every_pair_of_values_meets) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 100; ++trial) {
    const TestParameters parameters = random_parameters(random);
    const Combinations combinations = pairwise(parameters);
    BOOST_TEST(missing_pairs(parameters, combinations).empty());
    // Deterministic, without repetition, and few: no more than twice the product of the two longest lists, which no covering set can undercut.
    std::set<std::vector<size_t>> distinct;
    std::vector<size_t> sizes;
    for (const Combination& c : combinations) distinct.insert(c.chosen());
    for (const TestParameter& p : parameters) sizes.push_back(p.values.size());
    std::sort(sizes.rbegin(), sizes.rend());
    BOOST_TEST(distinct.size() == combinations.size());
    BOOST_TEST(combinations.size() >= sizes[0] * sizes[1]);
    BOOST_TEST(combinations.size() <= 2 * sizes[0] * sizes[1] + 2);
    const Combinations again = pairwise(parameters);
    BOOST_REQUIRE_EQUAL(again.size(), combinations.size());
    for (size_t c = 0; c < again.size(); ++c) BOOST_TEST(again[c].chosen() == combinations[c].chosen());
  }
}

BOOST_AUTO_TEST_CASE(control_a_combination_left_out_is_seen) {
  // Greedy sets have no combination without a pair of its own: it was started from one.
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 20; ++trial) {
    const TestParameters parameters = random_parameters(random);
    Combinations combinations = pairwise(parameters);
    combinations.pop_back();
    BOOST_TEST(!missing_pairs(parameters, combinations).empty());
  }
  // So is one value that never meets another.
  const TestParameters two{{"a", {"0", "1"}}, {"b", {"0", "1"}}};
  BOOST_TEST(missing_pairs(two, {Combination(two, {0, 0}), Combination(two, {0, 1}), Combination(two, {1, 0})}) == std::vector<std::string>{"a=1 b=1"});
}

BOOST_AUTO_TEST_CASE(the_full_product_holds_every_combination_once) {
  const TestParameters parameters{{"a", {"x", "y", "z"}}, {"b", {"0"}}, {"c", {"p", "q"}}};
  const Combinations all = full_product(parameters);
  std::set<std::string> texts;
  for (const Combination& c : all) texts.insert(c.text());
  BOOST_TEST(all.size() == 6u);
  BOOST_TEST(texts.size() == 6u);
  BOOST_TEST(texts.contains("a=y b=0 c=q"));
  BOOST_TEST(all[3]["a"] == "y");
  BOOST_TEST(all[3].text({"c", "a"}) == "a=y c=q");
  BOOST_CHECK_THROW(all[3]["d"], std::out_of_range);
}

BOOST_AUTO_TEST_CASE(the_tier_is_what_the_environment_says) {
  const TestParameters parameters{{"a", {"0", "1"}}, {"b", {"0", "1"}}, {"c", {"0", "1"}}};
  BOOST_TEST(combinations_of_tier(parameters).size() == (all_tier() ? 8u : pairwise(parameters).size()));
  BOOST_TEST(pairwise(parameters).size() < 8u);
}

BOOST_AUTO_TEST_SUITE_END()
