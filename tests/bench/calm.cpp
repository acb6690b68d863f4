// Medians, and the gate that repeats disturbed measurements.
#include "bench/calm.h"

#include "check.h"

using namespace quire::bench;

BOOST_AUTO_TEST_SUITE(calm)

BOOST_AUTO_TEST_CASE(spreads_are_quartiles) {
  const Spread five = spread_of({5, 1, 4, 2, 3});
  BOOST_TEST(five.low == 2);
  BOOST_TEST(five.median == 3);
  BOOST_TEST(five.high == 4);
  const Spread two = spread_of({2, 1});
  BOOST_TEST(two.low == 1.25);
  BOOST_TEST(two.median == 1.5);
  BOOST_TEST(spread_of({7}).high == 7);
  BOOST_TEST(spread_of({}).median == 0);
  BOOST_TEST(median_of({4, 1, 3, 2}) == 2.5);
  BOOST_TEST(milliseconds(0.00321) == "3.21 ms");
  BOOST_TEST(milliseconds(0.321) == "321.0 ms");
  BOOST_TEST(milliseconds(11.64) == "11640 ms");
}

BOOST_AUTO_TEST_CASE(a_calm_measurement_counts_and_a_disturbed_one_is_made_again) {
  CalmGate gate(4);
  std::vector<Measurement> next;
  std::vector<std::string> told;
  const auto measure = [&](size_t kind) {
    return gate.measure(kind, [&] { const Measurement one = next.front(); next.erase(next.begin()); return one; }, [&](const std::string& line) { told.push_back(line); });
  };
  next = {{1, 100, 0}};
  BOOST_TEST(measure(0).seconds == 1);
  next = {{1.1, 91, 0.02}};  // still calm: a probe of 91 %, 1.8 % of it in the queue
  BOOST_TEST(measure(0).seconds == 1.1);
  BOOST_TEST(gate.repeated() == 0);
  next = {{2, 89, 0}, {2, 100, 0.05}, {1.5, 100, 0}};  // a slow processor, then one that others used
  BOOST_TEST(measure(0).seconds == 1.5);
  BOOST_TEST(gate.repeated() == 2);
  BOOST_TEST(gate.disturbed() == 0);
  BOOST_TEST(told.back() == "1500 ms");
  next = {{9, 50, 0}};  // another kind has a best probe of its own
  BOOST_TEST(measure(1).seconds == 9);
  next = {{4, 10, 0}, {3, 10, 0}, {2, 10, 0}, {5, 10, 0}};
  BOOST_TEST(measure(0).seconds == 2);  // the least of what stayed disturbed
  BOOST_TEST(gate.repeated() == 5);
  BOOST_TEST(gate.disturbed() == 1);
  BOOST_TEST(next.empty());
  BOOST_TEST(told.back().find("the least of 4 disturbed ones") != std::string::npos);
  BOOST_TEST(gate.summary().find("5 measurements were made again") == 0);
  BOOST_TEST(gate.summary().find("1 count although") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_gate_may_be_stricter_and_know_the_best_before) {
  CalmGate gate(3, 0.95);
  gate.expect(0, 100);
  std::vector<Measurement> next = {{1, 94, 0}, {2, 95, 0}};
  const auto once = [&] { const Measurement one = next.front(); next.erase(next.begin()); return one; };
  BOOST_TEST(gate.measure(0, once, {}).seconds == 2);
  BOOST_TEST(gate.repeated() == 1);
  next = {{1, 97, 0}};
  gate.expect(0, 90);  // lowers nothing
  BOOST_TEST(gate.measure(0, once, {}).seconds == 1);
}

BOOST_AUTO_TEST_SUITE_END()
