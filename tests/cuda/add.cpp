// Sums of arrays on the emulated device, to the bits of a literal loop.
#include "cuda/kernel_case.h"

using namespace quire;
using namespace quire::test;

namespace {

template <class T>
void check(Rank& rank, int64_t count, int64_t shift) {
  std::mt19937_64 random(static_cast<uint64_t>(count));
  const auto a = random_values<T>(random, count, 3), b = random_values<T>(random, count);
  std::vector<T> expected;
  for (size_t i = 0; i < a.size(); ++i) expected.push_back(static_cast<T>(static_cast<Accumulator<T>>(a[i]) + static_cast<Accumulator<T>>(b[i])));
  const Placed<T> left(rank, a, shift), right(rank, b), sum(rank, count);
  dispatch(rank, SumArgs{dtype_of<T>::value, count, left.data(), right.data(), sum.data()});
  BOOST_TEST(same_bits(sum.values(), expected));
  dispatch(rank, SumArgs{dtype_of<T>::value, count, sum.data(), right.data(), right.data()});  // into its own second operand
  dispatch(rank, AddArgs{dtype_of<T>::value, count, sum.data(), left.data()});
  for (size_t i = 0; i < a.size(); ++i) {
    const auto add = [](T x, T y) { return static_cast<T>(static_cast<Accumulator<T>>(x) + static_cast<Accumulator<T>>(y)); };
    BOOST_TEST_REQUIRE(to_double(right.values()[i]) == to_double(add(expected[i], b[i])));
    if (i > 20) break;
  }
  const auto into = left.values();
  for (size_t i = 0; i < a.size(); ++i)
    BOOST_TEST_REQUIRE(to_double(into[i]) == to_double(static_cast<T>(static_cast<Accumulator<T>>(a[i]) + static_cast<Accumulator<T>>(expected[i]))));
}

template <class T>
void check_all(Rank& rank) {
  for (const int64_t count : {0, 1, 7, 8, 33, 3001})
    for (const int64_t shift : {0, 1}) check<T>(rank, count, shift);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_add)

BOOST_AUTO_TEST_CASE(sums_have_the_bits_of_a_loop_wherever_they_are_written) {
  DeviceRank rank;
  check_all<double>(rank);
  check_all<float>(rank);
  check_all<bf16>(rank);
}

BOOST_AUTO_TEST_CASE(every_order_of_threads_gives_the_same) {
  DeviceRank rank;
  in_eight_orders([&] { check<bf16>(rank, 50, 0); });
}

BOOST_AUTO_TEST_CASE(control_an_element_that_nobody_wrote_is_seen) {
  DeviceRank rank;
  const std::vector<float> ones(9, 1.0f);
  const Placed<float> a(rank, ones), b(rank, ones), sum(rank, 9);
  dispatch(rank, SumArgs{DType::f32, 8, a.data(), b.data(), sum.data()});
  BOOST_TEST(!same_bits(sum.values(), std::vector<float>(9, 2.0f)));
}

BOOST_AUTO_TEST_SUITE_END()
