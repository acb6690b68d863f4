// Conversions on the emulated device: the bits of the CPU's.
#include <bit>

#include "cuda/kernel_case.h"

using namespace quire;
using namespace quire::test;

namespace {

template <class From, class To>
std::vector<To> on_host(const std::vector<From>& from) {
  Rank rank;
  std::vector<To> to = unwritten<To>(static_cast<int64_t>(from.size()));
  run_kernel(rank, CastArgs{dtype_of<From>::value, dtype_of<To>::value, static_cast<int64_t>(from.size()), from.data(), to.data()});
  close_output(to);
  return to;
}
template <class From, class To>
std::vector<To> by_device(Rank& rank, const std::vector<From>& from, int64_t shift = 0) {
  const Placed<From> in(rank, from, shift);
  const Placed<To> out(rank, static_cast<int64_t>(from.size()));
  dispatch(rank, CastArgs{dtype_of<From>::value, dtype_of<To>::value, static_cast<int64_t>(from.size()), in.data(), out.data()});
  return out.values();
}

/// Values of every kind: powers of two, ties of bf16 and their neighbours, infinities, subnormal numbers.
template <class T>
std::vector<T> hard_values(std::mt19937_64& random, int64_t count) {
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, bf16>) {
      bf16 v;
      v.bits = static_cast<uint16_t>(random());
      values.push_back(v);
    } else if constexpr (std::is_same_v<T, float>) {
      uint32_t bits = static_cast<uint32_t>(random());
      if (i % 2 == 0) bits = (bits & 0xffff0000u) | (0x7fffu + static_cast<uint32_t>(random() % 3));
      values.push_back(std::bit_cast<float>(bits));
    } else {
      bf16 near;
      near.bits = static_cast<uint16_t>(random() & 0xff7f);
      values.push_back(to_double(near) * (1 + 0x1p-8) * (1 + (static_cast<double>(random() % 3) - 1) * 0x1p-45));
    }
  }
  return values;
}

template <class From, class To>
void check(Rank& rank) {
  std::mt19937_64 random(1);
  for (const int64_t count : {0, 1, 7, 8, 33, 2500}) {
    const auto from = hard_values<From>(random, count);
    BOOST_TEST(same_bits(by_device<From, To>(rank, from), on_host<From, To>(from)),
        name_of(dtype_of<From>::value) << " to " << name_of(dtype_of<To>::value) << ", " << count);
    BOOST_TEST(same_bits(by_device<From, To>(rank, from, 1), on_host<From, To>(from)));
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_cast)

BOOST_AUTO_TEST_CASE(every_pair_has_the_bits_of_the_host) {
  DeviceRank rank;
  check<double, double>(rank);
  check<double, float>(rank);
  check<double, bf16>(rank);
  check<float, double>(rank);
  check<float, float>(rank);
  check<float, bf16>(rank);
  check<bf16, double>(rank);
  check<bf16, float>(rank);
  check<bf16, bf16>(rank);
}

BOOST_AUTO_TEST_CASE(every_order_of_threads_gives_the_same) {
  DeviceRank rank;
  std::mt19937_64 random(2);
  const auto from = hard_values<float>(random, 100);
  in_eight_orders([&] { BOOST_TEST(same_bits(by_device<float, bf16>(rank, from), on_host<float, bf16>(from))); });
}

BOOST_AUTO_TEST_CASE(more_values_than_a_grid_has_threads) {
  DeviceRank rank;
  emulation::Settings small = emulation::settings();
  small.multiprocessors = 1;  // of the device that the next rank opens
  emulation::set(small);
  Rank one(RankOptions{.device = {DeviceKind::cuda, 1}, .poison = true});
  std::mt19937_64 random(3);
  const auto from = random_values<float>(random, 80001);
  BOOST_TEST(same_bits(by_device<float, bf16>(one, from), on_host<float, bf16>(from)));
  BOOST_TEST(same_bits(by_device<float, bf16>(rank, from), on_host<float, bf16>(from)));
}

BOOST_AUTO_TEST_CASE(control_rounding_twice_is_seen) {
  const std::vector<double> hard{1 + 0x1p-8 + 0x1p-40};
  DeviceRank rank;
  const auto once = by_device<double, bf16>(rank, hard), twice = by_device<float, bf16>(rank, by_device<double, float>(rank, hard));
  BOOST_TEST(!same_bits(once, twice));
}

BOOST_AUTO_TEST_CASE(integers_are_refused_by_name) {
  DeviceRank rank;
  check_error<UnsupportedError>([&] { dispatch(rank, CastArgs{DType::i32, DType::f32, 0, nullptr, nullptr}); }, {"cast"});
}

BOOST_AUTO_TEST_SUITE_END()
