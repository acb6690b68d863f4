// Scalars of an optimizer step on the emulated device, against the CPU's.
#include "cuda/kernel_case.h"

using namespace quire;
using namespace quire::test;

namespace {

struct Outcome {
  OptimizerScalars scalars;
  double norm;
  int64_t adam_step;
};

Outcome run(Rank& rank, const std::vector<double>& squares, double loss, int64_t adam_step, double clip_norm = 1, const std::vector<double>& refusals = {}) {
  const Placed<double> on_squares(rank, squares), on_loss(rank, std::vector{loss}), norm(rank, 1), on_refusals(rank, refusals);
  const Placed<double> scalars(rank, static_cast<int64_t>(sizeof(OptimizerScalars) / sizeof(double)));
  const Placed<int64_t> step(rank, std::vector{adam_step});
  dispatch(rank, OptimizerScalarsArgs{static_cast<int64_t>(squares.size()), on_squares.data(), on_loss.data(), 3e-4, clip_norm, 0.9, 0.95,
      step.data(), norm.data(), reinterpret_cast<OptimizerScalars*>(scalars.data()), static_cast<int64_t>(refusals.size()), on_refusals.data()});
  Outcome outcome{{}, norm.values()[0], step.values()[0]};
  std::memcpy(&outcome.scalars, scalars.values().data(), sizeof outcome.scalars);
  return outcome;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_optimizer_scalars)

BOOST_AUTO_TEST_CASE(scalars_are_those_of_the_host) {
  std::mt19937_64 random(1);
  DeviceRank rank;
  Rank host;
  for (const int64_t count : {0, 1, 3, 256, 257, 1000})
    for (const double clip_norm : {0.0, 1.0, 1e6})
      for (const int64_t step : {0, 1, 1000}) {
        std::vector<double> squares = random_values<double>(random, count);
        for (double& s : squares) s *= s;
        const Outcome found = run(rank, squares, 2.5, step, clip_norm), expected = run(host, squares, 2.5, step, clip_norm);
        BOOST_TEST(found.norm == expected.norm);  // added in the same order
        BOOST_TEST(found.adam_step == step + 1);
        BOOST_TEST((found.scalars.skip == 0 && found.scalars.learning_rate == 3e-4 && found.scalars.clip == expected.scalars.clip));
        BOOST_TEST(std::abs(found.scalars.bias1 - expected.scalars.bias1) <= 1e-15);
        BOOST_TEST(std::abs(found.scalars.bias2 - expected.scalars.bias2) <= 1e-15);
      }
}

BOOST_AUTO_TEST_CASE(a_loss_or_norm_that_is_no_number_skips_the_step) {
  DeviceRank rank;
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {nan, infinity, -infinity}) {
    const Outcome loss = run(rank, {1, 2}, bad, 4), norm = run(rank, {1, std::abs(bad), 3}, 1, 4);
    BOOST_TEST((loss.scalars.skip != 0 && loss.adam_step == 4));
    BOOST_TEST((norm.scalars.skip != 0 && norm.adam_step == 4));
  }
  const Outcome good = run(rank, {1, 2}, 1, 4);  // control
  BOOST_TEST((good.scalars.skip == 0 && good.adam_step == 5));
}

BOOST_AUTO_TEST_CASE(a_refusal_anywhere_skips_the_step) {
  DeviceRank rank;
  Rank host;
  for (Rank* each : {&rank.rank, &host})
    for (const int64_t count : {1, 3, 9})
      for (int64_t at = -1; at < count; ++at) {
        std::vector<double> refusals(static_cast<size_t>(count));
        if (at >= 0) refusals[static_cast<size_t>(at)] = 70'000;
        const Outcome outcome = run(*each, {1, 2}, 1, 4, 1, refusals);
        BOOST_TEST((outcome.scalars.skip != 0) == (at >= 0));
        BOOST_TEST(outcome.adam_step == (at >= 0 ? 4 : 5));
      }
}

BOOST_AUTO_TEST_CASE(every_order_of_threads_gives_the_same) {
  std::mt19937_64 random(2);
  DeviceRank rank;
  std::vector<double> squares = random_values<double>(random, 300, 1e-3);
  for (double& s : squares) s *= s;
  const double norm = run(rank, squares, 1, 0).norm;
  in_eight_orders([&] { BOOST_TEST(run(rank, squares, 1, 0).norm == norm); });
  std::reverse(squares.begin(), squares.end());
  BOOST_TEST(run(rank, squares, 1, 0).norm != norm);  // control: the order of the sum has a say
}

BOOST_AUTO_TEST_SUITE_END()
