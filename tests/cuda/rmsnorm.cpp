// RMS normalisation on the emulated device.
#include "ops/rmsnorm_case.h"

#include "cuda/kernel_case.h"

using namespace quire;
using namespace quire::test;

namespace {

struct Size { int64_t rows, width; };
// No row, one element, tails, several chunks of rows; the last three are wide enough for a block per row, the last for sums outside of shared memory.
const std::vector<Size> sizes{{0, 8}, {1, 1}, {3, 1}, {2, 7}, {5, 17}, {9, 64}, {130, 40}, {3, 1024}, {35, 1031}, {2, 1032}, {2, 30001}};

template <class T>
void check_rule() {
  std::mt19937_64 random(1);
  DeviceRank rank;
  Rank host;
  for (const auto& [rows, width] : sizes)
    for (const int64_t shift : {0, 1}) {
      RmsNormProblem<T> problem(random, rows, width);
      problem.shift = shift;
      const auto exact = problem.literal();
      const auto plain = problem.forward(host, "reference");
      const auto plain_backward = problem.backward(host, plain.rstd, "reference");
      BOOST_TEST_CONTEXT("rows " << rows << " width " << width) {
        const auto forward = problem.forward(rank);
        const auto backward = problem.backward(rank, forward.rstd);
        BOOST_TEST(within_rule(forward.y, exact.y, plain.y));
        BOOST_TEST(within_rule(forward.rstd, exact.rstd, plain.rstd));
        // With one column dx cancels to nothing: only its terms have a magnitude.
        if (width > 1) BOOST_TEST(within_rule(backward.dx, exact.dx, plain_backward.dx));
        else BOOST_TEST(largest_error(backward.dx, exact.dx) <= 64 * ulp_at<T>(1));
        BOOST_TEST(within_rule(backward.dgain, exact.dgain, plain_backward.dgain));
        if (shift == 1) {  // values one at a time and in vectors: the same bits
          problem.shift = 0;
          BOOST_TEST(same_bits(problem.forward(rank).y, forward.y));
          BOOST_TEST(same_bits(problem.backward(rank, forward.rstd).dgain, backward.dgain));
        }
      }
    }
}

template <class T>
void check_rows_alone() {
  std::mt19937_64 random(2);
  DeviceRank rank;
  for (const auto& [rows, width] : sizes) {
    if (rows == 0) continue;
    const RmsNormProblem<T> problem(random, rows, width);
    const auto forward = problem.forward(rank);
    const auto backward = problem.backward(rank, forward.rstd);
    for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
      RmsNormProblem<T> alone(random, 1, width);
      alone.gain = problem.gain;
      alone.x = part(problem.x, row * width, width);
      alone.dy = part(problem.dy, row * width, width);
      const auto result = alone.forward(rank);
      BOOST_TEST(same_bits(result.y, part(forward.y, row * width, width)));
      BOOST_TEST(same_bits(result.rstd, part(forward.rstd, row, 1)));
      BOOST_TEST(same_bits(alone.backward(rank, result.rstd).dx, part(backward.dx, row * width, width)));
    }
  }
}

template <class T>
void check_fused() {
  std::mt19937_64 random(3);
  DeviceRank rank;
  for (const auto& [rows, width] : sizes) check_fused_rmsnorm<T>(rank, random, rows, width, "vector");
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_rmsnorm)

BOOST_AUTO_TEST_CASE(f32_follows_the_rule) { check_rule<float>(); }
BOOST_AUTO_TEST_CASE(bf16_follows_the_rule) { check_rule<bf16>(); }

BOOST_AUTO_TEST_CASE(row_alone_has_the_bits_it_has_among_others) {
  check_rows_alone<float>();
  check_rows_alone<bf16>();
}

BOOST_AUTO_TEST_CASE(fused_sums_have_the_bits_of_their_parts_in_place_too) {
  check_fused<float>();
  check_fused<bf16>();
}

BOOST_AUTO_TEST_CASE(bits_do_not_depend_on_the_order_of_threads_or_on_the_grid) {
  std::mt19937_64 random(4);
  DeviceRank rank;
  for (const Size& size : {Size{20, 12}, Size{3, 1030}}) {
    const RmsNormProblem<bf16> problem(random, size.rows, size.width);
    const auto forward = problem.forward(rank);
    const auto backward = problem.backward(rank, forward.rstd);
    in_eight_orders([&] {
      BOOST_TEST(same_bits(problem.forward(rank).y, forward.y));
      const auto again = problem.backward(rank, forward.rstd);
      BOOST_TEST((same_bits(again.dx, backward.dx) && same_bits(again.dgain, backward.dgain)));
    });
  }
  const RmsNormProblem<float> problem(random, 4200, 8);  // more chunks than the small device's grid has blocks
  const auto forward = problem.forward(rank);
  const auto backward = problem.backward(rank, forward.rstd);
  emulation::Settings small = emulation::settings();
  small.multiprocessors = 1;
  emulation::set(small);
  Rank one(RankOptions{.device = {DeviceKind::cuda, 1}, .poison = true});
  BOOST_TEST(same_bits(problem.forward(one).y, forward.y));
  const auto again = problem.backward(one, forward.rstd);
  BOOST_TEST((same_bits(again.dx, backward.dx) && same_bits(again.dgain, backward.dgain)));
}

BOOST_AUTO_TEST_CASE(nan_stays_in_its_row) {
  std::mt19937_64 random(5);
  DeviceRank rank;
  RmsNormProblem<float> problem(random, 5, 19);
  const auto clean = problem.forward(rank);
  problem.x[2 * 19 + 4] = std::numeric_limits<float>::quiet_NaN();
  const auto dirty = problem.forward(rank);
  for (int64_t row = 0; row < 5; ++row) {
    BOOST_TEST(same_bits(part(clean.y, row * 19, 19), part(dirty.y, row * 19, 19)) == (row != 2));
    BOOST_TEST(std::isnan(dirty.rstd[static_cast<size_t>(row)]) == (row == 2));
  }
}

BOOST_AUTO_TEST_CASE(control_a_missing_row_is_seen) {
  std::mt19937_64 random(6);
  DeviceRank rank;
  const RmsNormProblem<float> problem(random, 5, 17);
  const auto exact = problem.literal();
  const auto rstd = problem.forward(rank).rstd;
  RmsNormProblem<float> shorter = problem;
  shorter.rows = 4;
  BOOST_TEST(within_rule(problem.backward(rank, rstd).dgain, exact.dgain));
  BOOST_TEST(!within_rule(shorter.backward(rank, rstd).dgain, exact.dgain));
}

BOOST_AUTO_TEST_SUITE_END()
