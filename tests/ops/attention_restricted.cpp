// Partial attention of some queries alone, merging of some rows, and the count of pairs that meet.
#include "ops/attention_restricted.h"

namespace quire::test {

BOOST_AUTO_TEST_SUITE(attention_restricted)

BOOST_AUTO_TEST_CASE(queries_in_no_run_are_neither_read_nor_written) {
  std::mt19937_64 random(1);
  for (const AttentionBackend backend : {AttentionBackend::block, AttentionBackend::dense})
    for (int time = 0; time < 20; ++time) {
      Rank rank(RankOptions{.threads = 2, .poison = true});
      check_restricted<double>(rank, random, 1 + static_cast<int64_t>(random() % 200),
                               {.heads = 2, .kv_heads = 1, .head_dim = 4, .window = time % 2 * 9, .backend = backend});
    }
}

BOOST_AUTO_TEST_CASE(gradients_may_be_columns_of_wider_rows) {
  std::mt19937_64 random(2);
  Rank rank(RankOptions{.poison = true});
  const int64_t tokens = 1500;  // long enough for partial sums of several parts
  const DocumentRuns runs = shared_runs(Documents::from_lengths(std::vector<int64_t>{1200, 1, 299}));
  for (const AttentionBackend backend : {AttentionBackend::block, AttentionBackend::dense}) {
    const AttentionOptions options{.heads = 2, .kv_heads = 1, .head_dim = 2, .backend = backend};
    const Tensor q = shaped<double>(rank, {tokens, 4}, random_values(random, tokens * 4)), both = shaped<double>(rank, {tokens, 4}, random_values(random, tokens * 4));
    const Tensor k = both.slice(1, 0, 2), v = both.slice(1, 2, 4), dout = shaped<double>(rank, {tokens, 4}, random_values(random, tokens * 4));
    const AttentionPartial full = attention_partial(rank, q, k, v, runs, runs, options);
    const Tensor delta = attention_delta(rank, full.out, dout, options);
    const Tensor dq = filled<double>(rank, {tokens, 4}, 0), dk = filled<double>(rank, {tokens, 2}, 0), dv = filled<double>(rank, {tokens, 2}, 0);
    attention_backward(rank, q, k, v, runs, runs, dout, full.lse, delta, options, dq, dk, dv);
    const Tensor packed = filled<double>(rank, {tokens, 8}, 0);
    attention_backward(rank, q, k, v, runs, runs, dout, full.lse, delta, options, packed.slice(1, 0, 4), packed.slice(1, 4, 6), packed.slice(1, 6, 8));
    BOOST_TEST((packed.slice(1, 0, 4).to_vector<double>() == dq.to_vector<double>()));
    BOOST_TEST((packed.slice(1, 4, 6).to_vector<double>() == dk.to_vector<double>()));
    BOOST_TEST((packed.slice(1, 6, 8).to_vector<double>() == dv.to_vector<double>()));
  }
}

BOOST_AUTO_TEST_CASE(rows_in_no_run_are_not_merged) {
  std::mt19937_64 random(3);
  Rank rank(RankOptions{.threads = 2, .poison = true});
  for (int time = 0; time < 20; ++time) check_merge_of_rows<double>(rank, random, 1 + static_cast<int64_t>(random() % 300));
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
