// Sums and sums of squares in f64.
#include "ops/reduce_case.h"

using namespace quire;
using namespace quire::test;

namespace {

template <class T>
double reduce(Rank& rank, const std::vector<T>& x, int power) {
  double result = std::numeric_limits<double>::quiet_NaN();
  run_kernel(rank, ReduceArgs{dtype_of<T>::value, static_cast<int64_t>(x.size()), power, x.data(), &result});
  return result;
}

template <class T>
void check_reduce() {
  std::mt19937_64 random(1);
  for (const int64_t count : {0, 1, 3, 17, 4095, 4096, 4097, 32769, 100001}) {
    const auto x = random_values<T>(random, count, 10);
    for (const int power : {1, 2}) {
      const auto [sum, magnitude] = literal_sum(x, power);
      for (const ThreadRanks& ranks : every_rank()) {
        const double result = reduce(ranks.one(), x, power);
        BOOST_TEST(std::abs(result - sum) <= 1e-14L * magnitude, ranks.instruction_set << " count " << count << " power " << power);
        for (const auto& rank : ranks.by_threads) BOOST_TEST(same_bits(std::vector{reduce(*rank, x, power)}, std::vector{result}));
      }
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(reduce_kernel)

BOOST_AUTO_TEST_CASE(sums_are_those_of_f64_with_any_threads) {
  check_reduce<double>();
  check_reduce<float>();
  check_reduce<bf16>();
}

BOOST_AUTO_TEST_CASE(f32_values_are_added_in_f64) {
  // Control: in f32 the ones vanish beside 2^24, and the squares overflow.
  std::vector<float> x(10001, 1.0f);
  x[0] = 0x1p24f;
  float in_f32 = 0;
  for (const float v : x) in_f32 += v;
  BOOST_TEST(in_f32 == 0x1p24f);
  for (const ThreadRanks& ranks : every_rank()) {
    BOOST_TEST(reduce(ranks.one(), x, 1) == 0x1p24 + 10000);
    BOOST_TEST(reduce(ranks.one(), std::vector<float>{1e30f, 1e30f}, 2) == 2 * static_cast<double>(1e30f) * static_cast<double>(1e30f));
  }
}

BOOST_AUTO_TEST_CASE(one_nan_anywhere_shows) {
  for (const ThreadRanks& ranks : every_rank())
    for (const size_t at : {size_t{0}, size_t{4096}, size_t{9998}}) {
      std::vector<float> x(9999, 1.0f);
      x[at] = std::numeric_limits<float>::quiet_NaN();
      BOOST_TEST(std::isnan(reduce(ranks.one(), x, 2)));
    }
}

BOOST_AUTO_TEST_CASE(squares_of_many_tensors_are_those_of_each) {
  std::mt19937_64 random(4);
  const std::vector<int64_t> counts{5, 0, 4097, 1, 70000};
  std::vector<std::vector<float>> tensors;
  for (const int64_t count : counts) tensors.push_back(random_values<float>(random, count, 3));
  for (const ThreadRanks& ranks : every_rank()) {
    std::vector<double> results = unwritten<double>(static_cast<int64_t>(counts.size())), expected;
    std::vector<SquaresTensor> list;
    for (size_t i = 0; i < tensors.size(); ++i) {
      list.push_back({counts[i], tensors[i].data(), &results[i]});
      expected.push_back(reduce(ranks.one(), tensors[i], 2));
    }
    run_kernel(ranks.one(), SquaresArgs{DType::f32, list});
    close_output(results);
    BOOST_TEST(same_bits(results, expected));
  }
}

BOOST_AUTO_TEST_SUITE_END()
