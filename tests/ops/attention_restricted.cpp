// Partial attention of some queries alone, merging of some rows, and the count of pairs that meet.
#include "ops/attention.h"

#include "ops/attention_case.h"

namespace quire::test {
namespace {

constexpr double untouched = -77;

Tensor tensor(Rank& rank, const Shape& shape, const std::vector<double>& values) { return Tensor::from<double>(rank, shape, values); }
Tensor filled(Rank& rank, const Shape& shape, double value) { return tensor(rank, shape, std::vector<double>(static_cast<size_t>(shape.elements()), value)); }

/// Some of the runs, some of them cut short on either side.
DocumentRuns some_of(std::mt19937_64& random, const Documents& documents) {
  auto some = std::make_shared<RunList>();
  for (DocumentRun run : documents.runs()) {
    if (random() % 3 == 0) continue;
    const auto cut = static_cast<int32_t>(random() % static_cast<uint64_t>(run.length));
    if (random() % 2) run = {run.local + cut, run.global + cut, run.length - cut, run.start};
    else run.length -= cut;
    some->push_back(run);
  }
  return some;
}

std::vector<bool> covered_rows(const DocumentRuns& runs, int64_t tokens) {
  std::vector<bool> covered(static_cast<size_t>(tokens), false);
  for (const DocumentRun& run : *runs) std::fill_n(covered.begin() + run.local, run.length, true);
  return covered;
}

/// Rows of `value` are bitwise those of `full` where covered, and `untouched` elsewhere.
void check_rows(const Tensor& value, const Tensor& full, const std::vector<bool>& covered) {
  const std::vector<double> some = value.to_vector<double>(), all = full.to_vector<double>();
  const size_t width = some.size() / covered.size();
  int wrong = 0;
  for (size_t i = 0; i < some.size(); ++i) wrong += some[i] != (covered[i / width] ? all[i] : untouched);
  BOOST_TEST(wrong == 0);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(attention_restricted)

BOOST_AUTO_TEST_CASE(queries_in_no_run_are_neither_read_nor_written) {
  std::mt19937_64 random(1);
  for (const AttentionBackend backend : {AttentionBackend::block, AttentionBackend::dense})
    for (int time = 0; time < 20; ++time) {
      Rank rank(RankOptions{.threads = 2, .poison = true});
      const int64_t tokens = 1 + static_cast<int64_t>(random() % 200);
      const Documents documents = Documents::from_lengths(random_lengths(random, tokens, 16));
      const AttentionOptions options{.heads = 2, .kv_heads = 1, .head_dim = 4, .window = time % 2 * 9, .backend = backend};
      const Shape wide{tokens, 8}, narrow{tokens, 4}, rows{tokens, 2};
      std::vector<double> queries = random_values(random, tokens * 8), douts = random_values(random, tokens * 8);
      const Tensor k = tensor(rank, narrow, random_values(random, tokens * 4)), v = tensor(rank, narrow, random_values(random, tokens * 4));
      const DocumentRuns all = shared_runs(documents), some = some_of(random, documents);
      const AttentionPartial full = attention_partial(rank, tensor(rank, wide, queries), k, v, all, all, options);
      const Tensor delta = attention_delta(rank, full.out, tensor(rank, wide, douts), options);
      const Tensor dq = filled(rank, wide, 0);
      attention_backward(rank, tensor(rank, wide, queries), k, v, all, all, tensor(rank, wide, douts), full.lse, delta, options, dq, filled(rank, narrow, 0),
                         filled(rank, narrow, 0));

      const std::vector<bool> covered = covered_rows(some, tokens);
      for (size_t i = 0; i < queries.size(); ++i)
        if (!covered[i / 8]) queries[i] = douts[i] = std::numeric_limits<double>::quiet_NaN();
      const AttentionPartial part{filled(rank, wide, untouched), filled(rank, rows, untouched)};
      attention_partial(rank, tensor(rank, wide, queries), k, v, some, all, options, part);
      check_rows(part.out, full.out, covered);
      check_rows(part.lse, full.lse, covered);

      const Tensor dq_part = filled(rank, wide, 0), dk = filled(rank, narrow, 0), dv = filled(rank, narrow, 0);
      attention_backward(rank, tensor(rank, wide, queries), k, v, some, all, tensor(rank, wide, douts), full.lse, delta, options, dq_part, dk, dv);
      const std::vector<double> value = dq_part.to_vector<double>(), expected = dq.to_vector<double>();
      for (size_t i = 0; i < value.size(); ++i) BOOST_REQUIRE(value[i] == (covered[i / 8] ? expected[i] : 0));
      for (const Tensor& gradient : {dk, dv})
        for (double x : gradient.to_vector<double>()) BOOST_REQUIRE(std::isfinite(x));
    }
}

BOOST_AUTO_TEST_CASE(gradients_may_be_columns_of_wider_rows) {
  std::mt19937_64 random(2);
  Rank rank(RankOptions{.poison = true});
  const int64_t tokens = 1500;  // long enough for partial sums of several parts
  const DocumentRuns runs = shared_runs(Documents::from_lengths(std::vector<int64_t>{1200, 1, 299}));
  for (const AttentionBackend backend : {AttentionBackend::block, AttentionBackend::dense}) {
    const AttentionOptions options{.heads = 2, .kv_heads = 1, .head_dim = 2, .backend = backend};
    const Tensor q = tensor(rank, {tokens, 4}, random_values(random, tokens * 4)), both = tensor(rank, {tokens, 4}, random_values(random, tokens * 4));
    const Tensor k = both.slice(1, 0, 2), v = both.slice(1, 2, 4), dout = tensor(rank, {tokens, 4}, random_values(random, tokens * 4));
    const AttentionPartial full = attention_partial(rank, q, k, v, runs, runs, options);
    const Tensor delta = attention_delta(rank, full.out, dout, options);
    const Tensor dq = filled(rank, {tokens, 4}, 0), dk = filled(rank, {tokens, 2}, 0), dv = filled(rank, {tokens, 2}, 0);
    attention_backward(rank, q, k, v, runs, runs, dout, full.lse, delta, options, dq, dk, dv);
    const Tensor packed = filled(rank, {tokens, 8}, 0);
    attention_backward(rank, q, k, v, runs, runs, dout, full.lse, delta, options, packed.slice(1, 0, 4), packed.slice(1, 4, 6), packed.slice(1, 6, 8));
    BOOST_TEST((packed.slice(1, 0, 4).to_vector<double>() == dq.to_vector<double>()));
    BOOST_TEST((packed.slice(1, 4, 6).to_vector<double>() == dk.to_vector<double>()));
    BOOST_TEST((packed.slice(1, 6, 8).to_vector<double>() == dv.to_vector<double>()));
  }
}

BOOST_AUTO_TEST_CASE(rows_in_no_run_are_not_merged) {
  std::mt19937_64 random(3);
  Rank rank(RankOptions{.threads = 2, .poison = true});
  for (int time = 0; time < 20; ++time) {
    const int64_t tokens = 1 + static_cast<int64_t>(random() % 300);
    const Documents documents = Documents::from_lengths(random_lengths(random, tokens, 16));
    const AttentionOptions options{.heads = 2, .kv_heads = 2, .head_dim = 3};
    const DocumentRuns some = some_of(random, documents);
    const std::vector<bool> covered = covered_rows(some, tokens);
    const auto partial = [&] {
      return AttentionPartial{tensor(rank, {tokens, 6}, random_values(random, tokens * 6)), tensor(rank, {tokens, 2}, random_values(random, tokens * 2))};
    };
    const auto copied = [&](const AttentionPartial& from) {
      return AttentionPartial{tensor(rank, {tokens, 6}, from.out.to_vector<double>()), tensor(rank, {tokens, 2}, from.lse.to_vector<double>())};
    };
    const AttentionPartial first = partial(), second = partial(), all = copied(first), part = copied(first);
    attention_merge(rank, all, second, options);
    std::vector<double> holes = second.out.to_vector<double>();
    for (size_t i = 0; i < holes.size(); ++i)
      if (!covered[i / 6]) holes[i] = std::numeric_limits<double>::quiet_NaN();
    attention_merge(rank, part, {tensor(rank, {tokens, 6}, holes), second.lse}, some, options);
    const std::vector<double> value = part.out.to_vector<double>(), merged = all.out.to_vector<double>(), before = first.out.to_vector<double>();
    for (size_t i = 0; i < value.size(); ++i) BOOST_REQUIRE(value[i] == (covered[i / 6] ? merged[i] : before[i]));
  }
}

BOOST_AUTO_TEST_CASE(pairs_that_meet_are_counted_exactly) {
  std::mt19937_64 random(4);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const AttentionBackend backend : {AttentionBackend::block, AttentionBackend::dense})
      for (const int64_t window : {0, 1, 20})
        for (const int64_t tokens : {1, 97, 1300}) {
          if (backend == AttentionBackend::dense && tokens > 1000) continue;
          Rank rank(RankOptions{.threads = 2});
          const Documents documents = Documents::from_lengths(random_lengths(random, tokens));
          const AttentionOptions options{.heads = 4, .kv_heads = 2, .head_dim = 1, .window = window, .backend = backend};
          Tape tape(rank);
          const Value q = tape.leaf(Tensor::zeros(rank, {tokens, 4}, dtype)), k = tape.leaf(Tensor::zeros(rank, {tokens, 2}, dtype));
          const Value out = attention(tape, q, k, k, shared_runs(documents), options);
          BOOST_TEST(rank.work().attended_pairs == 4 * documents.useful_pairs(window));
          tape.backward(std::span(&out, 1), std::span(&q.tensor, 1));
          BOOST_TEST(rank.work().attended_pairs == 8 * documents.useful_pairs(window));
          BOOST_TEST(rank.work().computed_pairs >= rank.work().attended_pairs);
        }
}

BOOST_AUTO_TEST_CASE(runs_outside_of_their_tensors_are_refused) {
  Rank rank;
  const AttentionOptions options{.heads = 1, .kv_heads = 1, .head_dim = 2};
  const Tensor five = Tensor::zeros(rank, {5, 2}, DType::f64);
  const auto runs = [](std::vector<DocumentRun> list) { return std::make_shared<const RunList>(std::move(list)); };
  const DocumentRuns good = runs({{0, 0, 5, 0}}), late = runs({{3, 3, 3, 0}}), twice = runs({{0, 0, 3, 0}, {2, 2, 2, 0}});
  check_error<ShapeError>([&] { attention_partial(rank, five, five, five, late, good, options); },
                          {"[attention]", "boundaries of queries [3, 6)", "q (5,2) f64"});
  check_error<ShapeError>([&] { attention_partial(rank, five, five, five, twice, good, options); }, {"boundaries of queries [2, 4)", "[.., 3)"});
  check_error<ShapeError>([&] { attention_partial(rank, five, five, five, good, late, options); }, {"boundaries of keys [3, 6)", "k (5,2) f64"});
  const AttentionPartial small{Tensor::zeros(rank, {4, 2}, DType::f64), Tensor::zeros(rank, {4, 1}, DType::f64)};
  check_error<ShapeError>([&] { attention_partial(rank, five, five, five, good, good, options, small); }, {"[attention]", "into out (4,2) f64"});
  check_error<ShapeError>([&] { attention_merge(rank, small, small, good, options); }, {"boundaries of rows [0, 5)", "out (4,2) f64"});
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
