// Counter-based random numbers against published answers; keyed permutations.
#include "runtime/random.h"

#include <set>

#include "check.h"

using namespace quire;
using namespace quire::test;

namespace {

bool is_bijection(const Permutation& permutation) {
  std::vector<char> seen(permutation.size(), 0);
  for (uint64_t i = 0; i < permutation.size(); ++i) {
    const uint64_t image = permutation(i);
    if (image >= permutation.size() || seen[image]) return false;
    seen[image] = 1;
  }
  return true;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(random_numbers)

BOOST_AUTO_TEST_CASE(philox_gives_the_known_answers_of_random123) {
  using Block = std::array<uint32_t, 4>;
  BOOST_TEST((philox({0, 0, 0, 0}, {0, 0}) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t ones = 0xffffffff;
  BOOST_TEST((philox({ones, ones, ones, ones}, {ones, ones}) == Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  BOOST_TEST((philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) == Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

BOOST_AUTO_TEST_CASE(values_depend_on_every_part_of_the_counter) {
  std::set<uint64_t> seen;
  for (uint64_t seed : {0u, 1u, 2u})
    for (uint64_t stream : {stream_of("a"), stream_of("b"), stream_of("layers.0.ffn.up.weight")})
      for (uint64_t step = 0; step < 4; ++step)
        for (uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, (uint64_t{1} << 32) + 1}) seen.insert(random_bits(seed, stream, step, index));
  BOOST_TEST(seen.size() == 3u * 3 * 4 * 4);
  BOOST_TEST(random_bits(3, 4, 5, 6) == random_bits(3, 4, 5, 6));
  BOOST_TEST(random_bits(3, 4, uint64_t{1} << 32, 6) != random_bits(3, 4, 0, 6));
  // FNV-1a's published answers.
  BOOST_TEST(stream_of("") == 0xcbf29ce484222325u);
  BOOST_TEST(stream_of("a") == 0xaf63dc4c8601ec8cu);
}

BOOST_AUTO_TEST_CASE(uniform_and_normal_have_their_moments) {
  constexpr int count = 200'000;
  double uniform_sum = 0, sum = 0, squares = 0, cubes = 0, fourth = 0;
  for (int i = 0; i < count; ++i) {
    const double u = random_uniform(7, 8, 9, static_cast<uint64_t>(i));
    BOOST_REQUIRE(u >= 0);
    BOOST_REQUIRE(u < 1);
    uniform_sum += u;
    const double n = random_normal(7, 8, 9, static_cast<uint64_t>(i));
    BOOST_REQUIRE(std::isfinite(n));
    sum += n;
    squares += n * n;
    cubes += n * n * n;
    fourth += n * n * n * n;
  }
  // Six standard errors of each mean.
  const double error = 6 / std::sqrt(count);
  BOOST_TEST(std::abs(uniform_sum / count - 0.5) < error * std::sqrt(1.0 / 12));
  BOOST_TEST(std::abs(sum / count) < error);
  BOOST_TEST(std::abs(squares / count - 1) < error * std::sqrt(2.0));
  BOOST_TEST(std::abs(cubes / count) < error * std::sqrt(15.0));
  BOOST_TEST(std::abs(fourth / count - 3) < error * std::sqrt(96.0));
}

BOOST_AUTO_TEST_CASE(permutation_is_a_bijection_of_every_size) {
  for (uint64_t size = 0; size <= 300; ++size)
    for (uint64_t seed = 0; seed < 3; ++seed) BOOST_REQUIRE(is_bijection(Permutation(size, seed, 11)));
  for (const uint64_t size : {uint64_t{4095}, uint64_t{4096}, uint64_t{4097}, uint64_t{70'001}}) BOOST_TEST(is_bijection(Permutation(size, 5, 11)));
}

BOOST_AUTO_TEST_CASE(large_permutations_stay_inside_and_do_not_collide) {
  for (const uint64_t size : {(uint64_t{1} << 33) + 1, (uint64_t{1} << 40) - 1, uint64_t{1} << 63, ~uint64_t{0}}) {
    const Permutation permutation(size, 3, 4);
    std::set<uint64_t> seen;
    std::mt19937_64 random(size);
    std::set<uint64_t> arguments = {0, 1, size - 1, size - 2, size / 2};
    while (arguments.size() < 2000) arguments.insert(random() % size);
    for (const uint64_t i : arguments) {
      BOOST_REQUIRE(permutation(i) < size);
      seen.insert(permutation(i));
    }
    BOOST_TEST(seen.size() == arguments.size());
  }
}

BOOST_AUTO_TEST_CASE(permutation_differs_by_seed_and_stream_and_moves_most) {
  constexpr uint64_t size = 1000;
  const Permutation a(size, 1, 1), b(size, 2, 1), c(size, 1, 2), again(size, 1, 1);
  int equal_b = 0, equal_c = 0, fixed = 0, neighbours = 0;
  for (uint64_t i = 0; i < size; ++i) {
    BOOST_REQUIRE_EQUAL(a(i), again(i));
    equal_b += a(i) == b(i);
    equal_c += a(i) == c(i);
    fixed += a(i) == i;
    neighbours += i > 0 && a(i) == a(i - 1) + 1;
  }
  for (const int count : {equal_b, equal_c, fixed, neighbours}) BOOST_TEST(count < 10);  // 1 is expected
  check_error<Error>([&] { a(size); }, {"[permutation]", "1000"});
  check_error<Error>([] { Permutation(0, 1, 1)(0); }, {"[permutation]"});
}

BOOST_AUTO_TEST_SUITE_END()
