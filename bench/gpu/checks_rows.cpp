// Everything between attention and products, against literal loops.
#include <algorithm>

#include "bench/gpu/checks.h"
#include "ops/adamw_case.h"
#include "ops/cross_entropy_case.h"
#include "ops/doc_ids_case.h"
#include "ops/reduce_case.h"
#include "ops/rmsnorm_case.h"
#include "ops/rotary_case.h"
#include "ops/swiglu_case.h"

namespace quire::gpu_report {
namespace {

using namespace quire::test;

/// Errors of sums whose terms were rounded: what the rule allows, and a few more units for sums of many terms.
template <class T>
bool near(const std::vector<T>& values, const std::vector<Exact>& exact) {
  double largest = 0;
  for (const Exact e : exact) largest = std::max(largest, static_cast<double>(std::abs(e)));
  return values.size() == exact.size() && largest_error(values, exact) <= (std::is_same_v<T, float> ? 16 : 4) * ulp_at<T>(largest);
}

template <class T>
void check_rmsnorm(Rank& rank, bool tiny) {
  std::mt19937_64 random(1);
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{9, 64}, {tiny ? 5 : 300, tiny ? 70 : 768}, {3, tiny ? 1032 : 2048}}) {
    const RmsNormProblem<T> problem(random, rows, width);
    const auto exact = problem.literal();
    const auto forward = problem.forward(rank);
    const auto backward = problem.backward(rank, forward.rstd);
    BOOST_TEST(near(forward.y, exact.y), rows << " x " << width);
    BOOST_TEST(near(forward.rstd, exact.rstd), rows << " x " << width);
    BOOST_TEST(near(backward.dx, exact.dx), rows << " x " << width);
    BOOST_TEST(near(backward.dgain, exact.dgain), rows << " x " << width);
    BOOST_TEST(same_bits(problem.backward(rank, forward.rstd).dgain, backward.dgain), rows << " x " << width << ", again");
  }
  check_fused_rmsnorm<T>(rank, random, 20, tiny ? 64 : 512, "vector");
}

template <class T>
void check_swiglu(Rank& rank, bool tiny) {
  std::mt19937_64 random(2);
  for (const double scale : {1.0, 30.0}) {
    const SwigluProblem<T> problem(random, tiny ? 300 : 100003, scale);
    const auto exact = problem.literal();
    const auto backward = problem.backward(rank);
    BOOST_TEST(near(problem.forward(rank), exact.y), "scale " << scale);
    BOOST_TEST(near(backward.dgate, exact.dgate), "scale " << scale);
    BOOST_TEST(near(backward.dup, exact.dup), "scale " << scale);
  }
}

template <class T>
void check_rotary(Rank& rank, bool tiny) {
  std::mt19937_64 random(3);
  for (const int64_t head_dim : {64, 128}) {
    const RotaryProblem<T> problem(random, tiny ? 9 : 500, 3, head_dim);
    for (const bool inverse : {false, true}) BOOST_TEST(near(problem.run(rank, inverse), problem.literal(inverse)), "head size " << head_dim << " inverse " << inverse);
  }
}

template <class T>
void check_cross_entropy(Rank& rank, bool tiny) {
  std::mt19937_64 random(4);
  for (const auto& [rows, vocabulary] : {std::pair<int64_t, int64_t>{9, 33}, {tiny ? 2 : 60, tiny ? 700 : 32000}})
    for (const double z : {0.0, 1e-2}) {
      const CrossEntropyProblem<T> problem(random, rows, vocabulary, z);
      const auto exact = problem.literal();
      const auto forward = problem.forward(rank);
      BOOST_TEST(near(forward.lse, exact.lse), rows << " x " << vocabulary << " z " << z);
      BOOST_TEST(near(forward.nll, exact.nll), rows << " x " << vocabulary << " z " << z);
      BOOST_TEST(near(problem.backward(rank, forward.lse), exact.dlogits), rows << " x " << vocabulary << " z " << z);
    }
}

template <class T>
void check_adamw(Rank& rank, bool tiny) {
  std::mt19937_64 random(5);
  AdamWState<T> state(random, tiny ? 1000 : 300001);
  AdamWLiteral exact(state);
  for (int step = 0; step < 3; ++step) {
    exact.step(state);
    state.step(rank);
  }
  BOOST_TEST(near(state.master, exact.master));
  BOOST_TEST(near(state.moment1, exact.moment1));
  BOOST_TEST(near(state.moment2, exact.moment2));
}

template <class T>
void check_embedding(Rank& rank, bool tiny) {
  std::mt19937_64 random(6);
  const int64_t count = tiny ? 40 : 3000, width = 72, vocabulary = tiny ? 13 : 500;
  const std::vector<T> table = random_values<T>(random, vocabulary * width), dy = random_values<T>(random, count * width);
  const std::vector<float> before = random_values<float>(random, vocabulary * width);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)));
  const Placed<int32_t> on_tokens(rank, tokens);
  const Placed<T> on_table(rank, table), on_dy(rank, dy), y(rank, count * width);
  const Placed<float> dtable(rank, before);
  dispatch(rank, EmbeddingForwardArgs{dtype_of<T>::value, count, width, vocabulary, on_tokens.data(), on_table.data(), y.data()});
  dispatch(rank, EmbeddingBackwardArgs{dtype_of<T>::value, count, width, vocabulary, on_tokens.data(), on_dy.data(), dtable.data()});
  std::vector<T> rows;
  std::vector<Exact> sums(before.begin(), before.end());
  for (int64_t i = 0; i < count; ++i)
    for (int64_t c = 0; c < width; ++c) {
      const auto at = static_cast<size_t>(int64_t{tokens[static_cast<size_t>(i)]} * width + c);
      rows.push_back(table[at]);
      sums[at] += to_double(dy[static_cast<size_t>(i * width + c)]);
    }
  BOOST_TEST(same_bits(y.values(), rows));
  BOOST_TEST(near(dtable.values(), sums));
}

template <class T>
void check_reduce(Rank& rank, bool tiny) {
  std::mt19937_64 random(7);
  const auto x = random_values<T>(random, tiny ? 9000 : 3000001);
  for (const int power : {1, 2}) {
    const auto [sum, magnitude] = literal_sum(x, power);
    const Placed<T> in(rank, x);
    const Placed<double> result(rank, 1), again(rank, 1);
    for (const Placed<double>* to : {&result, &again}) dispatch(rank, ReduceArgs{dtype_of<T>::value, static_cast<int64_t>(x.size()), power, in.data(), to->data()});
    BOOST_TEST(std::abs(result.values()[0] - sum) <= 1e-13L * magnitude, "power " << power);
    BOOST_TEST(same_bits(result.values(), again.values()), "power " << power << ", again");
  }
}

void check_casts(Rank& rank, bool tiny) {
  std::mt19937_64 random(8);
  const std::vector<float> values = random_values<float>(random, tiny ? 500 : 100001);
  std::vector<bf16> rounded;
  for (const float v : values) rounded.push_back(bf16(v));
  const auto count = static_cast<int64_t>(values.size());
  const Placed<float> wide(rank, values), back(rank, count);
  const Placed<bf16> narrow(rank, count);
  dispatch(rank, CastArgs{DType::f32, DType::bf16, count, wide.data(), narrow.data()});
  dispatch(rank, CastArgs{DType::bf16, DType::f32, count, narrow.data(), back.data()});
  std::vector<float> widened;
  for (const bf16 v : rounded) widened.push_back(static_cast<float>(v));
  BOOST_TEST(same_bits(narrow.values(), rounded));
  BOOST_TEST(same_bits(back.values(), widened));
}

}  // namespace

std::vector<CheckCase> row_checks(bool tiny) {
  const auto both = [](auto f32, auto half) {
    return [=](Rank& rank) {
      f32(rank);
      half(rank);
    };
  };
  return {
    {"rmsnorm", both([=](Rank& r) { check_rmsnorm<float>(r, tiny); }, [=](Rank& r) { check_rmsnorm<bf16>(r, tiny); })},
    {"swiglu", both([=](Rank& r) { check_swiglu<float>(r, tiny); }, [=](Rank& r) { check_swiglu<bf16>(r, tiny); })},
    {"rotary", both([=](Rank& r) { check_rotary<float>(r, tiny); }, [=](Rank& r) { check_rotary<bf16>(r, tiny); })},
    {"cross-entropy", both([=](Rank& r) { check_cross_entropy<float>(r, tiny); }, [=](Rank& r) { check_cross_entropy<bf16>(r, tiny); })},
    {"cross-entropy, ignored rows and values that are not finite", [](Rank& rank) {
       check_ignored_rows(rank);
       check_not_finite(rank);
       check_large_and_masked_logits(rank);
       check_sure_prediction(rank);
     }},
    {"adamw", both([=](Rank& r) { check_adamw<float>(r, tiny); }, [=](Rank& r) { check_adamw<bf16>(r, tiny); })},
    {"embedding", both([=](Rank& r) { check_embedding<float>(r, tiny); }, [=](Rank& r) { check_embedding<bf16>(r, tiny); })},
    {"sums in f64", both([=](Rank& r) { check_reduce<float>(r, tiny); }, [=](Rank& r) { check_reduce<bf16>(r, tiny); })},
    {"casts", [=](Rank& rank) { check_casts(rank, tiny); }},
    {"documents from tokens", [=](Rank& rank) {
       std::mt19937_64 random(9);
       for (const int64_t count : {int64_t{1}, int64_t{700}, int64_t{tiny ? 1500 : 200001}})
         for (const uint64_t per_eos : {3, 300}) doc_ids::check(rank, doc_ids::random_tokens(random, count, per_eos));
     }},
  };
}

}  // namespace quire::gpu_report
