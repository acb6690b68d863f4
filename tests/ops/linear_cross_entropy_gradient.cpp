// The fused head: values and gradients against literal loops and finite differences; chunk edges, ignored targets, z-loss, narrow types.
#include "ops/linear_cross_entropy.h"

#include <tuple>
#include <type_traits>

#include "gradient.h"
#include "ops/elementwise.h"

using namespace quire;
using namespace quire::test;

namespace {

using Doubles = std::vector<double>;

struct Result {
  Doubles losses, dx, dweight;  ///< losses without z-loss, per token
  double loss = 0;
};

/// Literal loops: storage type T, arithmetic in A; what a plain program that rounds its intermediates to T would do.
template <class T, class A>
Result literal(const Doubles& x, const Doubles& weight, const std::vector<int32_t>& targets, int64_t dim, double z_weight, double scale) {
  const auto tokens = static_cast<int64_t>(targets.size()), vocabulary = static_cast<int64_t>(weight.size()) / dim;
  const auto stored = [](A v) {
    if constexpr (std::is_same_v<T, bf16>) return static_cast<A>(static_cast<float>(bf16(static_cast<float>(v))));
    else return static_cast<A>(static_cast<T>(v));
  };
  Result result{Doubles(targets.size()), Doubles(x.size()), Doubles(weight.size())};
  std::vector<A> logits(static_cast<size_t>(vocabulary)), dweight(weight.size(), A{0});
  for (int64_t t = 0; t < tokens; ++t) {
    A largest = -std::numeric_limits<A>::infinity();
    for (int64_t v = 0; v < vocabulary; ++v) {
      A sum = 0;
      for (int64_t d = 0; d < dim; ++d) sum += static_cast<A>(x[static_cast<size_t>(t * dim + d)]) * static_cast<A>(weight[static_cast<size_t>(v * dim + d)]);
      logits[static_cast<size_t>(v)] = sum;
      largest = std::max(largest, sum);
    }
    A sum = 0;
    for (const A logit : logits) sum += std::exp(logit - largest);
    const A lse = largest + std::log(sum);
    const int32_t target = targets[static_cast<size_t>(t)];
    if (target == ignored_target) continue;
    const A nll = lse - logits[static_cast<size_t>(target)];
    result.losses[static_cast<size_t>(t)] = static_cast<double>(nll);
    result.loss += static_cast<double>(nll + static_cast<A>(z_weight) * lse * lse);
    std::vector<A> dx(static_cast<size_t>(dim), A{0});
    for (int64_t v = 0; v < vocabulary; ++v) {
      const A p = std::exp(logits[static_cast<size_t>(v)] - lse);
      const A dlogit = stored(static_cast<A>(scale) * (p * (1 + 2 * static_cast<A>(z_weight) * lse) - (v == target ? 1 : 0)));
      for (int64_t d = 0; d < dim; ++d) {
        dx[static_cast<size_t>(d)] += dlogit * static_cast<A>(weight[static_cast<size_t>(v * dim + d)]);
        dweight[static_cast<size_t>(v * dim + d)] += dlogit * static_cast<A>(x[static_cast<size_t>(t * dim + d)]);
      }
    }
    for (int64_t d = 0; d < dim; ++d) result.dx[static_cast<size_t>(t * dim + d)] = static_cast<double>(stored(dx[static_cast<size_t>(d)]));
  }
  std::copy(dweight.begin(), dweight.end(), result.dweight.begin());
  return result;
}

Doubles wide(Rank& rank, const Tensor& tensor) { return cast(rank, tensor, DType::f64).to_vector<double>(); }

Result run(Rank& rank, const Tensor& x, const Tensor& weight, const std::vector<int32_t>& targets, double z_weight, double scale,
           BackwardMode mode = BackwardMode::full) {
  Parameter parameter = make_parameter(rank, "head", weight);
  const Tensor target_tensor = Tensor::from<int32_t>(rank, {static_cast<int64_t>(targets.size())}, targets);
  Tape tape(rank);
  const Value leaf = tape.leaf(x);
  const Value loss = linear_cross_entropy(tape, leaf, parameter, 0, target_tensor, z_weight);
  const Tensor gradient = Tensor::from<double>(rank, {1}, Doubles{scale});
  tape.backward(std::span(&loss, 1), std::span(&gradient, 1), mode);
  Result result;
  result.loss = loss.tensor.to_vector<double>()[0];
  result.losses = wide(rank, token_losses(rank, x, weight, target_tensor));
  result.dx = wide(rank, tape.take_gradient(leaf));
  result.dweight = wide(rank, parameter.gradients[0]);
  return result;
}

std::vector<int32_t> random_targets(std::mt19937_64& random, int64_t tokens, int64_t vocabulary) {
  std::vector<int32_t> targets(static_cast<size_t>(tokens));
  for (int32_t& t : targets) t = random() % 4 == 0 ? ignored_target : static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary));
  return targets;
}

double largest(const Doubles& values) {
  double result = 0;
  for (const double v : values) result = std::max(result, std::abs(v));
  return result;
}

double worst(const Doubles& a, const Doubles& b) {
  double result = 0;
  BOOST_REQUIRE_EQUAL(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return std::numeric_limits<double>::infinity();
    result = std::max(result, std::abs(a[i] - b[i]));
  }
  return result;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(linear_cross_entropy_gradient)

BOOST_AUTO_TEST_CASE(finite_differences) {
  Rank rank(RankOptions{.threads = 2, .poison = true});
  std::mt19937_64 random(1);
  for (const double z : {0.0, 0.1}) {
    Parameter weight = make_parameter(rank, "head", random_tensor(rank, random, {7, 5}), 2);
    const Tensor targets = Tensor::from<int32_t>(rank, {6}, std::vector<int32_t>{3, ignored_target, 0, 6, 6, ignored_target});
    check_gradient(rank, [&](Tape& t, std::span<const Value> in) { return linear_cross_entropy(t, in[0], weight, 1, targets, z); },
                   {random_tensor(rank, random, {6, 5})}, {&weight});
    BOOST_TEST(largest(weight.gradients[1].to_vector<double>()) > 0);
  }
}

BOOST_AUTO_TEST_CASE(literal_loops_at_chunk_edges) {
  Rank rank(RankOptions{.threads = 2, .poison = true});
  std::mt19937_64 random(2);
  constexpr int64_t vocabulary = 70'001, dim = 3;
  const int64_t chunk = cross_entropy_chunk(vocabulary);
  BOOST_TEST(chunk == 29);
  const Tensor weight = random_tensor(rank, random, {vocabulary, dim});
  for (const int64_t tokens : {int64_t{1}, chunk - 1, chunk, chunk + 1, 2 * chunk + 1}) {
    const Tensor x = random_tensor(rank, random, {tokens, dim});
    const std::vector<int32_t> targets = random_targets(random, tokens, vocabulary);
    const Result found = run(rank, x, weight, targets, 1e-3, 0.25);
    const Result expected = literal<double, double>(x.to_vector<double>(), weight.to_vector<double>(), targets, dim, 1e-3, 0.25);
    BOOST_TEST(std::abs(found.loss - expected.loss) <= 1e-12 * std::max(1.0, expected.loss));
    BOOST_TEST(relative_difference(found.losses, expected.losses) < 1e-12);
    BOOST_TEST(relative_difference(found.dx, expected.dx) < 1e-12);
    BOOST_TEST(relative_difference(found.dweight, expected.dweight) < 1e-12);
  }
}

BOOST_AUTO_TEST_CASE(rows_have_the_same_bits_in_every_chunk) {
  // A row's loss and gradient do not depend on the other rows, nor on which chunk it falls into.
  Rank rank(RankOptions{.threads = 2, .poison = true});
  std::mt19937_64 random(3);
  constexpr int64_t vocabulary = 140'001, dim = 3, tokens = 40;  // chunks of 16
  const Tensor weight = random_tensor(rank, random, {vocabulary, dim}), x = random_tensor(rank, random, {tokens, dim});
  const std::vector<int32_t> targets = random_targets(random, tokens, vocabulary);
  const Result all = run(rank, x, weight, targets, 0, 1);
  for (const int64_t begin : {0, 5, 15, 16, 17, 39}) {
    const Result one = run(rank, contiguous(rank, x.slice(0, begin, begin + 1)), weight, {targets[static_cast<size_t>(begin)]}, 0, 1);
    BOOST_TEST(one.losses[0] == all.losses[static_cast<size_t>(begin)]);
    for (int64_t d = 0; d < dim; ++d) BOOST_TEST(one.dx[static_cast<size_t>(d)] == all.dx[static_cast<size_t>(begin * dim + d)]);
  }
}

BOOST_AUTO_TEST_CASE(ignored_targets_give_exact_zeros_35) {
  Rank rank(RankOptions{.threads = 2, .poison = true});
  std::mt19937_64 random(4);
  const Tensor weight = random_tensor(rank, random, {50, 8}), x = random_tensor(rank, random, {20, 8});
  const Result none = run(rank, x, weight, std::vector<int32_t>(20, ignored_target), 0.5, 1);
  BOOST_TEST(none.loss == 0);
  BOOST_TEST(largest(none.losses) == 0);
  BOOST_TEST(largest(none.dx) == 0);
  BOOST_TEST(largest(none.dweight) == 0);
  std::vector<int32_t> one(20, ignored_target);
  one[7] = 3;
  const Result found = run(rank, x, weight, one, 0.5, 1);
  for (size_t i = 0; i < found.dx.size(); ++i) BOOST_TEST((found.dx[i] != 0) == (i / 8 == 7));
  // No tokens at all.
  const Result empty = run(rank, Tensor::zeros(rank, {0, 8}, DType::f64), weight, {}, 0.5, 1);
  BOOST_TEST(empty.loss == 0);
  BOOST_TEST(largest(empty.dweight) == 0);
}

BOOST_AUTO_TEST_CASE(uniform_logits_read_the_logarithm_of_the_vocabulary) {
  Rank rank;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor weight = Tensor::zeros(rank, {257, 4}, dtype), x = Tensor::zeros(rank, {10, 4}, dtype);
    const Result found = run(rank, x, weight, std::vector<int32_t>(10, 3), 0, 1);
    BOOST_TEST(std::abs(found.loss / 10 - std::log(257.0)) < 1e-6);
  }
}

BOOST_AUTO_TEST_CASE(large_logits_stay_finite) {
  Rank rank(RankOptions{.poison = true});
  const Tensor weight = Tensor::from<float>(rank, {3, 1}, std::vector<float>{1e4f, 0, -1e4f}), x = Tensor::from<float>(rank, {2, 1}, std::vector<float>{1, -1});
  const Result found = run(rank, x, weight, {1, 2}, 0, 1);
  BOOST_TEST(found.losses[0] == 1e4);
  BOOST_TEST(found.losses[1] == 0);
  for (const Doubles* values : {&found.dx, &found.dweight})
    for (const double v : *values) BOOST_TEST(std::isfinite(v));
}

BOOST_AUTO_TEST_CASE(f32_and_bf16_hold_the_rule) {
  // DESIGN section 6: error at most twice that of the plain computation, or 4 ulp of the largest magnitude.
  Rank rank(RankOptions{.threads = 2, .poison = true});
  std::mt19937_64 random(5);
  const auto check = [&](DType dtype, auto plain_of) {
    for (const auto& [tokens, dim, vocabulary] : {std::tuple{3, 8, 5}, {33, 64, 257}, {1100, 16, 100}}) {
      const Tensor x = cast(rank, random_tensor(rank, random, {tokens, dim}), dtype), weight = cast(rank, random_tensor(rank, random, {vocabulary, dim}, 0.5), dtype);
      const std::vector<int32_t> targets = random_targets(random, tokens, vocabulary);
      const double z = 1e-2, scale = 1.0 / tokens;
      const Result found = run(rank, x, weight, targets, z, scale), plain = plain_of(wide(rank, x), wide(rank, weight), targets, dim, z, scale);
      const Result exact = literal<double, double>(wide(rank, x), wide(rank, weight), targets, dim, z, scale);
      const auto rule = [&](const Doubles& f, const Doubles& p, const Doubles& e, bool accumulator) {
        const double ulp = largest(e) * (dtype == DType::f32 || accumulator ? 0x1p-23 : 0x1p-7);
        BOOST_TEST(worst(f, e) <= std::max(2 * worst(p, e), 4 * ulp), name_of(dtype) << ": " << worst(f, e) << ", plain " << worst(p, e) << ", ulp " << ulp);
      };
      rule({found.loss}, {plain.loss}, {exact.loss}, true);
      rule(found.losses, plain.losses, exact.losses, true);
      rule(found.dx, plain.dx, exact.dx, false);
      rule(found.dweight, plain.dweight, exact.dweight, true);
      const Result split = run(rank, x, weight, targets, z, scale, BackwardMode::input_only);
      BOOST_TEST((split.dx == found.dx));
      BOOST_TEST((split.dweight == found.dweight));
    }
  };
  check(DType::f32, literal<float, float>);
  check(DType::bf16, literal<bf16, float>);
}

/// Loss, dx and both accumulators of a weight whose second use the head is; they hold something before.
std::vector<Doubles> bits_of(Rank& rank, const Tensor& x, const Tensor& weight, const std::vector<int32_t>& targets, double scale, bool announce, BackwardMode mode) {
  Parameter parameter = make_parameter(rank, "head", weight, 2);
  std::mt19937_64 random(6);
  for (Tensor& gradient : parameter.gradients) gradient = cast(rank, random_tensor(rank, random, weight.shape()), gradient.dtype());
  const Tensor target_tensor = Tensor::from<int32_t>(rank, {static_cast<int64_t>(targets.size())}, targets), gradient = Tensor::from<double>(rank, {1}, Doubles{scale});
  Tape tape(rank);
  int done = 0;
  tape.set_parameter_hook([&](Parameter& p, int use) { done += &p == &parameter && use == 1; });
  const Value leaf = tape.leaf(x), loss = linear_cross_entropy(tape, leaf, parameter, 1, target_tensor, 1e-2, announce ? gradient : Tensor());
  BOOST_TEST(done == 0);  // the contribution counts from backward on, as for every other parameter
  tape.backward(std::span(&loss, 1), std::span(&gradient, 1), mode);
  BOOST_TEST(done == 1);
  return {wide(rank, loss.tensor), wide(rank, tape.take_gradient(leaf)), wide(rank, parameter.gradients[0]), wide(rank, parameter.gradients[1])};
}

BOOST_AUTO_TEST_CASE(an_announced_gradient_gives_the_same_bits) {
  Rank rank(RankOptions{.threads = 2, .poison = true});
  std::mt19937_64 random(7);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const auto& [tokens, dim, vocabulary] : {std::tuple{1, 8, 5}, {1100, 24, 300}, {35, 3, 140'001}}) {
      const Tensor x = cast(rank, random_tensor(rank, random, {tokens, dim}), dtype), weight = cast(rank, random_tensor(rank, random, {vocabulary, dim}, 0.5), dtype);
      std::vector<int32_t> targets = random_targets(random, tokens, vocabulary);
      targets[0] = 1;
      const auto plain = bits_of(rank, x, weight, targets, 1.0 / 3, false, BackwardMode::full);
      for (const BackwardMode mode : {BackwardMode::full, BackwardMode::input_only})
        BOOST_TEST((bits_of(rank, x, weight, targets, 1.0 / 3, true, mode) == plain), name_of(dtype) << ", " << tokens << " tokens");
      BOOST_TEST((bits_of(rank, x, weight, targets, 0.3, true, BackwardMode::full) != plain));  // the comparison sees another scale
    }
}

BOOST_AUTO_TEST_CASE(another_gradient_than_the_announced_one_is_refused) {
  Rank rank;
  std::mt19937_64 random(8);
  Parameter weight = make_parameter(rank, "head", random_tensor(rank, random, {7, 5}));
  const Tensor x = random_tensor(rank, random, {6, 5}), targets = Tensor::from<int32_t>(rank, {6}, std::vector<int32_t>(6, 2));
  const auto call = [&](double handed, int times) {
    Tape tape(rank);
    const Tensor announced = Tensor::from<double>(rank, {1}, Doubles{0.25}), gradient = Tensor::from<double>(rank, {1}, Doubles{handed});
    const Value loss = linear_cross_entropy(tape, tape.leaf(x), weight, 0, targets, 0, announced);
    announced.data<double>()[0] = handed;  // what counts is the value that forward has used
    const std::vector<Value> outputs(static_cast<size_t>(times), loss);
    const std::vector<Tensor> gradients(static_cast<size_t>(times), gradient);
    tape.backward(outputs, gradients);
  };
  call(0.25, 1);
  check_error<StateError>([&] { call(0.5, 1); }, {"[linear_cross_entropy]", "0.5", "0.25 was announced"});
  check_error<StateError>([&] { call(0.25, 2); }, {"[linear_cross_entropy]", "0.5", "0.25 was announced"});
  check_error<ShapeError>([&] {
    Tape tape(rank);
    linear_cross_entropy(tape, tape.leaf(x), weight, 0, targets, 0, Tensor::zeros(rank, {2}, DType::f64));
  }, {"[linear_cross_entropy]", "(2) f64", "(1) f64"});
}

BOOST_AUTO_TEST_CASE(a_forward_that_does_not_record_adds_to_no_gradient) {
  Rank rank;
  std::mt19937_64 random(9);
  Parameter weight = make_parameter(rank, "head", random_tensor(rank, random, {7, 5}));
  const Tensor x = random_tensor(rank, random, {6, 5}), targets = Tensor::from<int32_t>(rank, {6}, std::vector<int32_t>(6, 2));
  const Tensor announced = Tensor::from<double>(rank, {1}, Doubles{0.25});
  for (const bool recording : {false, true}) {  // recording: the control
    Tape tape(rank, recording);
    linear_cross_entropy(tape, tape.leaf(x), weight, 0, targets, 0, announced);
    BOOST_TEST((largest(weight.gradients[0].to_vector<double>()) > 0) == recording);
  }
}

BOOST_AUTO_TEST_CASE(wrong_shapes_are_named) {
  Rank rank;
  const auto call = [&](const Shape& x, const Shape& w, int64_t targets) {
    return [&rank, x, w, targets] {
      token_losses(rank, Tensor::zeros(rank, x, DType::f32), Tensor::zeros(rank, w, DType::f32), Tensor::zeros(rank, {targets}, DType::i32));
    };
  };
  call({5, 4}, {7, 4}, 5)();
  check_error<ShapeError>(call({5, 4}, {7, 3}, 5), {"[linear_cross_entropy]", "(5,4) f32", "(7,3) f32"});
  check_error<ShapeError>(call({5, 4}, {7, 4}, 6), {"[linear_cross_entropy]", "targets (6) i32"});
  check_error<ShapeError>(call({5, 2, 2}, {7, 4}, 5), {"[linear_cross_entropy]", "(5,2,2) f32"});
}

BOOST_AUTO_TEST_SUITE_END()
