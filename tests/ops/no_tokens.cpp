// A rank may hold no token of a microbatch: every operation takes none, and adds nothing to any gradient.
#include "gradient.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear_cross_entropy.h"
#include "ops/matmul.h"

namespace quire::test {
namespace {

/// A parameter whose accumulators hold sevens, so that what is written to them shows.
Parameter sevens(Rank& rank, const Shape& shape, DType dtype) {
  Parameter p = make_parameter(rank, "p", Tensor::zeros(rank, shape, dtype));
  for (Tensor& gradient : p.gradients) {
    const Tensor filled = Tensor::from<double>(rank, shape, std::vector<double>(static_cast<size_t>(shape.elements()), 7.0));
    gradient = cast(rank, filled, gradient.dtype());
  }
  return p;
}

void check_sevens(Rank& rank, const Parameter& p) {
  for (double value : cast(rank, p.gradients[0], DType::f64).to_vector<double>()) BOOST_REQUIRE(value == 7);
}

void backward(Rank& rank, Tape& tape, const Value& out, BackwardMode mode) {
  const Tensor grad = Tensor::zeros(rank, out.tensor.shape(), out.tensor.dtype());
  tape.backward(std::span(&out, 1), std::span(&grad, 1), mode);
  if (mode == BackwardMode::input_only) tape.backward_weights();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(no_tokens)

BOOST_AUTO_TEST_CASE(a_decoder_layer_of_operations_takes_none) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const BackwardMode mode : {BackwardMode::full, BackwardMode::input_only})
      for (const bool again : {false, true}) {
        Rank rank(RankOptions{.threads = 2, .poison = true});
        Parameter table = sevens(rank, {11, 8}, dtype), head = sevens(rank, {11, 8}, dtype), gain = sevens(rank, {8}, dtype), head_gain = sevens(rank, {4}, dtype),
                  q_weight = sevens(rank, {8, 8}, dtype), kv_weight = sevens(rank, {4, 8}, dtype), up = sevens(rank, {16, 8}, dtype),
                  down = sevens(rank, {8, 16}, dtype);
        const RotaryTable rotation = make_rotary_table(rank, 4, 4, 10000, dtype);
        const Tensor none = Tensor::from<int32_t>(rank, {0}, std::span<const int32_t>());
        const DocumentRuns runs = shared_runs(Documents());
        const AttentionOptions options{.heads = 2, .kv_heads = 1, .head_dim = 4};
        const auto layer = [&](Tape& t, const Value& x) {
          const Value normed = rmsnorm(t, x, gain, 1e-6);
          const Value q = rotary(t, rmsnorm(t, linear(t, normed, q_weight), head_gain, 1e-6), none, rotation);
          const Value k = rotary(t, linear(t, normed, kv_weight), none, rotation);
          const Value middle = add(t, x, attention(t, q, k, k, runs, options));
          return add(t, middle, linear(t, swiglu(t, linear(t, middle, up), linear(t, middle, up)), down));
        };
        Tape tape(rank);
        const Value x = embedding(tape, none, table, 0), y = again ? recompute(tape, x, layer) : layer(tape, x);
        const Value loss = linear_cross_entropy(tape, y, head, 0, none, 0.1);
        BOOST_TEST(loss.tensor.to_vector<double>().at(0) == 0);
        BOOST_TEST(token_losses(rank, y.tensor, head.value, none).elements() == 0);
        const Tensor one = Tensor::from<double>(rank, {1}, std::vector<double>{1.0});
        tape.backward(std::span(&loss, 1), std::span(&one, 1), mode);
        if (mode == BackwardMode::input_only) tape.backward_weights();
        for (const Parameter* p : {&table, &gain, &head_gain, &q_weight, &kv_weight, &up, &down, &head}) check_sevens(rank, *p);
      }
}

BOOST_AUTO_TEST_CASE(every_product_kernel_takes_none) {
  for (const char* kernel : {"packed", "reference", ""}) {
    RankOptions options{.poison = true};
    if (*kernel != '\0') options.kernels["matmul"] = kernel;
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      Rank rank(options);
      Parameter weight = sevens(rank, {5, 3}, dtype);
      Tape tape(rank);
      const Value x = tape.leaf(Tensor::zeros(rank, {0, 3}, dtype)), y = linear(tape, x, weight);
      BOOST_TEST((y.tensor.shape() == Shape{0, 5}));
      backward(rank, tape, y, BackwardMode::full);
      check_sevens(rank, weight);
      const Tensor product = cast(rank, Tensor::from<double>(rank, {2, 2}, std::vector<double>{1, 2, 3, 4}), dtype);
      matmul(rank, Tensor::zeros(rank, {0, 2}, dtype), Transpose::yes, Tensor::zeros(rank, {0, 2}, dtype), Transpose::no, product, false);
      for (double value : cast(rank, product, DType::f64).to_vector<double>()) BOOST_TEST(value == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(attention_of_no_queries_or_no_keys) {
  for (const AttentionBackend backend : {AttentionBackend::block, AttentionBackend::dense}) {
    Rank rank(RankOptions{.threads = 2, .poison = true});
    const AttentionOptions options{.heads = 2, .kv_heads = 1, .head_dim = 4, .backend = backend};
    const DocumentRuns none = shared_runs(Documents()), three = shared_runs(Documents::from_lengths(std::vector<int64_t>{1, 2}));
    const auto zeros = [&](int64_t rows, int64_t columns) { return Tensor::zeros(rank, {rows, columns}, DType::f32); };
    const AttentionPartial no_queries = attention_partial(rank, zeros(0, 8), zeros(3, 4), zeros(3, 4), none, three, options);
    BOOST_TEST(no_queries.out.elements() == 0);
    const AttentionPartial no_keys = attention_partial(rank, zeros(3, 8), zeros(0, 4), zeros(0, 4), three, none, options);
    for (float value : no_keys.out.to_vector<float>()) BOOST_TEST(value == 0);
    for (float value : no_keys.lse.to_vector<float>()) BOOST_TEST(value == -std::numeric_limits<float>::infinity());
    const AttentionPartial other = attention_partial(rank, zeros(3, 8), zeros(3, 4), zeros(3, 4), three, three, options);
    attention_merge(rank, no_queries, no_queries, options);
    attention_merge(rank, no_keys, other, options);
    BOOST_TEST((no_keys.lse.to_vector<float>() == other.lse.to_vector<float>()));
    const Tensor delta = attention_delta(rank, zeros(3, 8), zeros(3, 8), options), dq = zeros(3, 8), dk = zeros(3, 4);
    attention_backward(rank, zeros(3, 8), zeros(0, 4), zeros(0, 4), three, none, zeros(3, 8), other.lse, delta, options, dq, zeros(0, 4), zeros(0, 4));
    attention_backward(rank, zeros(0, 8), zeros(3, 4), zeros(3, 4), none, three, zeros(0, 8), zeros(0, 2), zeros(0, 2), options, zeros(0, 8), dk, dk);
    for (float value : dq.to_vector<float>()) BOOST_TEST(value == 0);
    for (float value : dk.to_vector<float>()) BOOST_TEST(value == 0);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
