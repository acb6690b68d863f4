// FAULTS 33: a mean of microbatch means. (sum, count) = (2, 1) and (90, 9) must give 92 / 10 = 9.2, not (2 + 10) / 2 = 6.0.
#include "ops/kernel_test.h"

using namespace quire;
using namespace quire::test;

namespace {

struct Summed {
  std::vector<double> logits;  // [rows, 2]
  std::vector<int32_t> targets;
};

/// `valid` scored rows whose loss is `loss` each, then rows that are ignored.
Summed microbatch(int64_t valid, double loss, int64_t ignored) {
  Summed m;
  for (int64_t i = 0; i < valid + ignored; ++i) {
    m.logits.insert(m.logits.end(), {0.0, std::log(std::exp(loss) - 1)});  // -log softmax(0, x)[0] = log(1 + e^x) = loss
    m.targets.push_back(i < valid ? 0 : -100);
  }
  return m;
}

struct Result { double sum; std::vector<double> gradient; };

Result run(Rank& rank, const Summed& m, double scale) {
  const int64_t rows = static_cast<int64_t>(m.targets.size());
  std::vector<double> lse(m.targets.size()), nll(m.targets.size());
  Result result{0, std::vector<double>(m.logits.size())};
  run_kernel(rank, CrossEntropyForwardArgs{DType::f64, rows, 2, m.logits.data(), m.targets.data(), 0, lse.data(), nll.data()});
  run_kernel(rank, CrossEntropyBackwardArgs{DType::f64, rows, 2, m.logits.data(), m.targets.data(), 0, lse.data(), &scale, result.gradient.data()});
  run_kernel(rank, ReduceArgs{DType::f64, rows, 1, nll.data(), &result.sum});
  return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(loss_is_the_sum_over_the_valid_targets_of_the_whole_batch_33) {
  for (const ThreadRanks& ranks : every_rank())
    for (const int64_t ignored : {0, 1, 30}) {
      const Summed one = microbatch(1, 2, ignored), nine = microbatch(9, 10, 2 * ignored);
      Summed whole = one;
      whole.logits.insert(whole.logits.end(), nine.logits.begin(), nine.logits.end());
      whole.targets.insert(whole.targets.end(), nine.targets.begin(), nine.targets.end());
      const double scale = 1.0 / 10;
      const Result first = run(ranks.one(), one, scale), second = run(ranks.one(), nine, scale), together = run(ranks.one(), whole, scale);
      BOOST_TEST(std::abs((first.sum + second.sum) / 10 - 9.2) < 1e-12);
      BOOST_TEST(std::abs(together.sum / 10 - 9.2) < 1e-12);
      BOOST_TEST(std::abs((first.sum / 1 + second.sum / 9) / 2 - 6.0) < 1e-12);  // control: the fault's number
      std::vector<double> joined = first.gradient;
      joined.insert(joined.end(), second.gradient.begin(), second.gradient.end());
      BOOST_TEST(same_bits(joined, together.gradient));
    }
}
