// Attention through the tape: gradients by finite differences, errors, the backends' names.
#include "ops/attention.h"

#include "gradient.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(attention_gradient)

BOOST_AUTO_TEST_CASE(gradients_with_documents_groups_and_windows) {
  Rank rank(RankOptions{.threads = 2, .poison = true});
  std::mt19937_64 random(1);
  const std::vector<int64_t> lengths = {1, 5, 1, 9, 2, 1};
  const DocumentRuns runs = shared_runs(Documents::from_lengths(lengths));
  for (const AttentionBackend backend : {AttentionBackend::block, AttentionBackend::dense})
    for (const int64_t window : {0, 1, 3})
      for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {4, 2}, {3, 1}}) {
        AttentionOptions options{.heads = heads, .kv_heads = kv_heads, .head_dim = 4, .window = window, .backend = backend};
        if (window == 3) options.scale = 0.3;
        const auto tensor = [&](int64_t count) { return random_tensor(rank, random, {19, count * 4}); };
        check_gradient(rank, [&](Tape& t, std::span<const Value> in) { return attention(t, in[0], in[1], in[2], runs, options); },
                       {tensor(heads), tensor(kv_heads), tensor(kv_heads)}, {}, 1e-8, 25);
      }
}

BOOST_AUTO_TEST_CASE(one_value_as_query_key_and_value) {
  Rank rank(RankOptions{.poison = true});
  std::mt19937_64 random(2);
  const DocumentRuns runs = shared_runs(Documents::from_lengths(std::vector<int64_t>{3, 4}));
  const AttentionOptions options{.heads = 2, .kv_heads = 2, .head_dim = 4};
  check_gradient(rank, [&](Tape& t, std::span<const Value> in) { return attention(t, in[0], in[0], in[0], runs, options); }, {random_tensor(rank, random, {7, 8})}, {});
}

BOOST_AUTO_TEST_CASE(no_tokens) {
  Rank rank;
  const DocumentRuns runs = shared_runs(Documents());
  Tape tape(rank);
  const Value empty = tape.leaf(Tensor::zeros(rank, {0, 8}, DType::f32));
  const Value y = attention(tape, empty, empty, empty, runs, {.heads = 2, .kv_heads = 2, .head_dim = 4});
  tape.backward(std::span(&y, 1), std::span(&empty.tensor, 1));
  BOOST_TEST(tape.take_gradient(empty).elements() == 0);
}

BOOST_AUTO_TEST_CASE(wrong_shapes_and_types_are_named) {
  Rank rank;
  const auto zeros = [&](int64_t rows, int64_t columns, DType dtype = DType::f32) { return Tensor::zeros(rank, {rows, columns}, dtype); };
  const DocumentRuns five = shared_runs(Documents::from_lengths(std::vector<int64_t>{5})), four = shared_runs(Documents::from_lengths(std::vector<int64_t>{4}));
  const AttentionOptions options{.heads = 4, .kv_heads = 2, .head_dim = 8};
  const auto call = [&](Tensor q, Tensor k, Tensor v, DocumentRuns runs, AttentionOptions with) {
    return [&rank, q, k, v, runs, with] {
      Tape tape(rank, false);
      attention(tape, tape.constant(q), tape.constant(k), tape.constant(v), runs, with);
    };
  };
  call(zeros(5, 32), zeros(5, 16), zeros(5, 16), five, options)();
  check_error<ShapeError>(call(zeros(5, 30), zeros(5, 16), zeros(5, 16), five, options), {"[attention]", "q (5,30) f32", "4 query heads, 2 key/value heads of 8"});
  check_error<ShapeError>(call(zeros(5, 32), zeros(5, 32), zeros(5, 32), five, options), {"[attention]", "k (5,32) f32"});
  check_error<ShapeError>(call(zeros(5, 32), zeros(5, 16), zeros(4, 16), five, options), {"[attention]", "v (4,16) f32"});
  check_error<DTypeError>(call(zeros(5, 32), zeros(5, 16), zeros(5, 16, DType::f64), five, options), {"[attention]", "v (5,16) f64", "one dtype"});
  check_error<ShapeError>(call(zeros(5, 32), zeros(5, 16), zeros(5, 16), four, options), {"[attention]", "boundaries cover 4 queries"});
  AttentionOptions odd = options;
  odd.kv_heads = 3;
  check_error<ShapeError>(call(zeros(5, 32), zeros(5, 24), zeros(5, 24), five, odd), {"[attention]", "3 key/value heads"});
  AttentionOptions negative = options;
  negative.window = -1;
  check_error<ShapeError>(call(zeros(5, 32), zeros(5, 16), zeros(5, 16), five, negative), {"[attention]", "window -1"});
  AttentionOptions large = options;
  large.head_dim = 258;
  check_error<UnsupportedError>(call(zeros(5, 4 * 258), zeros(5, 2 * 258), zeros(5, 2 * 258), five, large), {"[attention]", "258", "up to 256", "'dense'"});
  large.backend = AttentionBackend::dense;
  call(zeros(5, 4 * 258), zeros(5, 2 * 258), zeros(5, 2 * 258), five, large)();
}

BOOST_AUTO_TEST_CASE(backends_are_known_by_name) {
  for (const AttentionBackend backend : {AttentionBackend::block, AttentionBackend::dense}) BOOST_TEST((attention_backend_from(name_of(backend)) == backend));
  check_error<ConfigError>([] { attention_backend_from("dens"); }, {"[attention]", "'dens'", "block, dense", "nearest: dense"});
}

BOOST_AUTO_TEST_SUITE_END()
