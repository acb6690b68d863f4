// Sums and sums of squares on the emulated device.
#include "cuda/kernel_case.h"
#include "ops/reduce_case.h"

using namespace quire;
using namespace quire::test;

namespace {

template <class T>
double reduce(Rank& rank, const std::vector<T>& x, int power, int64_t shift = 0) {
  const Placed<T> in(rank, x, shift);
  const Placed<double> result(rank, 1);
  dispatch(rank, ReduceArgs{dtype_of<T>::value, static_cast<int64_t>(x.size()), power, in.data(), result.data()});
  return result.values()[0];
}

template <class T>
void check(Rank& rank, int64_t count, int64_t shift = 0) {
  std::mt19937_64 random(static_cast<uint64_t>(count));
  const auto x = random_values<T>(random, count, 10);
  for (const int power : {1, 2}) {
    const auto [sum, magnitude] = literal_sum(x, power);
    BOOST_TEST(std::abs(reduce(rank, x, power, shift) - sum) <= 1e-14L * magnitude, "count " << count << " power " << power);
  }
}

template <class T>
void check_all(Rank& rank) {
  for (const int64_t count : {0, 1, 7, 33, 8191, 8192, 8193, 20001})
    for (const int64_t shift : {0, 1}) check<T>(rank, count, shift);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_reduce)

BOOST_AUTO_TEST_CASE(sums_are_those_of_f64) {
  DeviceRank rank;
  check_all<double>(rank);
  check_all<float>(rank);
  check_all<bf16>(rank);
}

BOOST_AUTO_TEST_CASE(bits_do_not_depend_on_the_order_of_threads_on_the_grid_or_on_where_the_array_lies) {
  DeviceRank rank;
  std::mt19937_64 random(2);
  const auto x = random_values<float>(random, 9000, 10);
  const std::vector<double> expected{reduce(rank, x, 2)};
  in_eight_orders([&] { BOOST_TEST(same_bits(std::vector{reduce(rank, x, 2)}, expected)); });
  for (int64_t shift = 1; shift < 4; ++shift) BOOST_TEST(same_bits(std::vector{reduce(rank, x, 2, shift)}, expected));
  const auto long_x = random_values<float>(random, 300000);
  const std::vector<double> long_expected{reduce(rank, long_x, 1)};
  emulation::Settings small = emulation::settings();
  small.multiprocessors = 1;
  emulation::set(small);
  Rank one(RankOptions{.device = {DeviceKind::cuda, 1}, .poison = true});
  BOOST_TEST(same_bits(std::vector{reduce(one, long_x, 1)}, long_expected));
}

BOOST_AUTO_TEST_CASE(f32_values_are_added_in_f64_and_a_nan_shows) {
  DeviceRank rank;
  std::vector<float> x(10001, 1.0f);
  x[0] = 0x1p24f;  // control: in f32 the ones vanish beside it
  float in_f32 = 0;
  for (const float v : x) in_f32 += v;
  BOOST_TEST(in_f32 == 0x1p24f);
  BOOST_TEST(reduce(rank, x, 1) == 0x1p24 + 10000);
  BOOST_TEST(reduce(rank, std::vector<float>{1e30f, 1e30f}, 2) == 2 * static_cast<double>(1e30f) * static_cast<double>(1e30f));
  for (const size_t at : {size_t{0}, size_t{8192}, size_t{10000}}) {
    std::vector<float> bad(10001, 1.0f);
    bad[at] = std::numeric_limits<float>::quiet_NaN();
    BOOST_TEST(std::isnan(reduce(rank, bad, 2)));
  }
}

BOOST_AUTO_TEST_CASE(squares_of_many_tensors_are_those_of_each_in_few_launches) {
  DeviceRank rank;
  std::mt19937_64 random(3);
  std::vector<Placed<float>> tensors;
  std::vector<std::vector<float>> values;
  std::vector<double> expected;
  for (int i = 0; i < 130; ++i) {  // more than go through together
    values.push_back(random_values<float>(random, i == 0 ? 17000 : i == 5 ? 0 : static_cast<int64_t>(random() % 300), 3));
    tensors.emplace_back(rank, values.back(), i % 4);
    expected.push_back(reduce(rank, values.back(), 2));
  }
  const Placed<double> results(rank, 130);
  std::vector<SquaresTensor> list;
  for (size_t i = 0; i < 130; ++i) list.push_back({static_cast<int64_t>(values[i].size()), tensors[i].data(), results.data() + 129 - i});
  rank.rank.accelerator()->synchronize();
  emulation::reset_counters();
  dispatch(rank, SquaresArgs{DType::f32, list});
  std::vector<double> found = results.values();
  BOOST_TEST(emulation::counters().kernels == 4);
  std::reverse(found.begin(), found.end());
  BOOST_TEST(same_bits(found, expected));
  BOOST_TEST(expected[5] == 0);
  BOOST_TEST(expected[0] != 0);
}

BOOST_AUTO_TEST_SUITE_END()
