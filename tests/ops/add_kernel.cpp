// Sums of arrays against a literal loop, to the bit.
#include "ops/kernel_test.h"

using namespace quire;
using namespace quire::test;

namespace {

template <class T>
void check_add() {
  std::mt19937_64 random(1);
  for (const ThreadRanks& ranks : every_rank())
    for (const int64_t count : {0, 1, 7, 8, 33, 16384, 16401, 50000}) {
      const auto a = random_values<T>(random, count, 3), b = random_values<T>(random, count);
      std::vector<T> expected;
      for (size_t i = 0; i < a.size(); ++i)
        expected.push_back(static_cast<T>(static_cast<Accumulator<T>>(a[i]) + static_cast<Accumulator<T>>(b[i])));
      for (const auto& rank : ranks.by_threads) {
        std::vector<T> sum = unwritten<T>(count), into = a;
        run_kernel(*rank, SumArgs{dtype_of<T>::value, count, a.data(), b.data(), sum.data()});
        close_output(sum);
        run_kernel(*rank, AddArgs{dtype_of<T>::value, count, b.data(), into.data()});
        BOOST_TEST(same_bits(sum, expected));
        BOOST_TEST(same_bits(into, expected));
        if (count > 0) BOOST_TEST(!same_bits(into, a));
      }
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(add_kernel)

BOOST_AUTO_TEST_CASE(sum_and_add_round_once) {
  check_add<double>();
  check_add<float>();
  check_add<bf16>();
}

BOOST_AUTO_TEST_SUITE_END()
