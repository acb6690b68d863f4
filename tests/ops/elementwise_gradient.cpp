// rmsnorm, rotary, SwiGLU, sums and casts through the tape: gradients, errors, reuse of memory.
#include "ops/elementwise.h"

#include <tuple>

#include "gradient.h"
#include "ops/embedding.h"
#include "ops/matmul.h"
#include "runtime/documents.h"
#include "values.h"

using namespace quire;
using namespace quire::test;

namespace {

Tensor positions_of(Rank& rank, const std::vector<int64_t>& lengths) {
  const std::vector<int32_t> positions = Documents::from_lengths(lengths).positions();
  return Tensor::from<int32_t>(rank, {static_cast<int64_t>(positions.size())}, positions);
}

/// Another dtype's copy of f64 values, for the bitwise tests.
Tensor cast_of(Rank& rank, const Tensor& tensor, DType dtype) { return cast(rank, tensor, dtype); }

std::vector<double> values_of(Rank& rank, const Tensor& tensor) { return cast(rank, tensor, DType::f64).to_vector<double>(); }

}  // namespace

BOOST_AUTO_TEST_SUITE(elementwise_gradient)

BOOST_AUTO_TEST_CASE(the_check_catches_a_wrong_gradient) {
  class Wrong final : public Node {
   public:
    explicit Wrong(double factor) : factor_(factor) {}
    std::string_view name() const override { return "wrong"; }
    void input_gradient(Tape& tape, const Tensor& grad) override {
      std::vector<double> values = grad.to_vector<double>();
      for (double& v : values) v *= factor_;
      tape.add_gradient(input(0), Tensor::from<double>(tape.rank(), grad.shape(), values));
    }

   private:
    double factor_;
  };
  // The identity with a gradient that is off by 1e-6: the tolerance used below would see it.
  Rank rank;
  std::mt19937_64 random(1);
  const Tensor x = random_tensor(rank, random, {5});
  const auto worst = [&](double factor) {
    Tape tape(rank);
    const Value leaf = tape.leaf(x);
    const Value y = tape.record(std::make_unique<Wrong>(factor), std::span(&leaf, 1), contiguous(rank, x));
    const Tensor ones = Tensor::from<double>(rank, {5}, std::vector<double>(5, 1.0));
    tape.backward(std::span(&y, 1), std::span(&ones, 1));
    return relative_difference(tape.take_gradient(leaf).to_vector<double>(), std::vector<double>(5, 1.0));
  };
  BOOST_TEST(worst(1) <= 1e-8);
  BOOST_TEST(worst(1 + 1e-6) > 1e-8);
}

BOOST_AUTO_TEST_CASE(rmsnorm_of_rows_and_of_heads) {
  Rank rank(RankOptions{.threads = 2, .poison = true});
  std::mt19937_64 random(2);
  for (const auto& [rows, width, heads] : {std::tuple{1, 1, 1}, {3, 8, 1}, {5, 33, 1}, {7, 16, 4}, {130, 6, 2}}) {
    Parameter gain = make_parameter(rank, "gain", random_tensor(rank, random, {width}));
    check_gradient(rank, [&](Tape& t, std::span<const Value> in) { return rmsnorm(t, in[0], gain, 1e-5); }, {random_tensor(rank, random, {rows, width * heads})},
                   {&gain});
  }
  // A literal row.
  Parameter gain = make_parameter(rank, "gain", Tensor::from<double>(rank, {2}, std::vector<double>{1, 10}));
  Tape tape(rank, false);
  const auto y = rmsnorm(tape, tape.constant(Tensor::from<double>(rank, {1, 2}, std::vector<double>{3, 4})), gain, 0.5).tensor.to_vector<double>();
  BOOST_TEST(std::abs(y[0] - 3 / std::sqrt(13.0)) < 1e-15);
  BOOST_TEST(std::abs(y[1] - 40 / std::sqrt(13.0)) < 1e-14);
}

BOOST_AUTO_TEST_CASE(sum_and_norm_in_one_pass_have_the_bits_of_two) {
  Rank rank(RankOptions{.threads = 2, .poison = true});
  std::mt19937_64 random(21);
  const auto of_two = [](Tape& t, const Value& a, const Value& b, Parameter& gain) {
    const Value sum = add(t, a, b);
    return add(t, sum, rmsnorm(t, sum, gain, 1e-5));
  };
  const auto of_one = [](Tape& t, const Value& a, const Value& b, Parameter& gain) {
    const SumAndNorm both = add_rmsnorm(t, a, b, gain, 1e-5);
    return add(t, both.sum, both.normed);
  };
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const auto& [rows, width] : {std::tuple{1, 1}, {5, 33}, {130, 48}}) {
      const auto tensor = [&](const Shape& shape) { return cast_of(rank, random_tensor(rank, random, shape), dtype); };
      Parameter gain = make_parameter(rank, "gain", tensor({width}));
      const Tensor a = tensor({rows, width}), b = tensor({rows, width}), weights = tensor({rows, width});
      const auto run = [&](const auto& function) {
        fill_zero(rank, gain.gradients[0]);
        Tape tape(rank);
        const Value x = tape.leaf(a), y = tape.leaf(b), out = function(tape, x, y, gain);
        tape.backward(std::span(&out, 1), std::span(&weights, 1));
        return std::vector{values_of(rank, out.tensor), values_of(rank, tape.take_gradient(x)), values_of(rank, tape.take_gradient(y)), values_of(rank, gain.gradients[0])};
      };
      BOOST_TEST((run(of_one) == run(of_two)), name_of(dtype));
    }
  Parameter gain = make_parameter(rank, "gain", random_tensor(rank, random, {9}));
  check_gradient(rank, [&](Tape& t, std::span<const Value> in) { return of_one(t, in[0], in[1], gain); },
                 {random_tensor(rank, random, {4, 9}), random_tensor(rank, random, {4, 9})}, {&gain});
  check_error<ShapeError>([&] {
    Tape tape(rank);
    add_rmsnorm(tape, tape.leaf(random_tensor(rank, random, {2, 9})), tape.leaf(random_tensor(rank, random, {3, 9})), gain, 1e-5);
  }, {"[add]", "(2,9) f64", "(3,9) f64"});
}

BOOST_AUTO_TEST_CASE(products_of_one_input_add_into_one_gradient) {
  Rank rank(RankOptions{.threads = 2, .poison = true});
  std::mt19937_64 random(22);
  Parameter p = make_parameter(rank, "p", random_tensor(rank, random, {5, 6})), q = make_parameter(rank, "q", random_tensor(rank, random, {5, 6})),
            gain = make_parameter(rank, "gain", random_tensor(rank, random, {6}));
  // x is also read by a sum, whose gradient others hold too: it must not be added into, whoever comes first.
  const auto before = [&](Tape& t, std::span<const Value> in) { return add(t, add(t, linear(t, in[0], p), linear(t, in[0], q)), in[1]); };
  check_gradient(rank, before, {random_tensor(rank, random, {7, 6}), random_tensor(rank, random, {7, 5})}, {&p, &q});
  Parameter square = make_parameter(rank, "square", random_tensor(rank, random, {6, 6}));
  const auto around = [&](Tape& t, std::span<const Value> in) {
    const Value first = linear(t, in[0], square), normed = rmsnorm(t, in[0], gain, 1e-5);
    return add(t, add(t, first, add(t, in[0], normed)), linear(t, in[0], square));
  };
  check_gradient(rank, around, {random_tensor(rank, random, {7, 6})}, {&square, &gain});
  // Three products take one tensor for their gradients, not three and two sums.
  const Tensor x = random_tensor(rank, random, {7, 6}), weights = random_tensor(rank, random, {7, 5});
  const auto blocks = [&](int products) {
    Tape tape(rank);
    const Value in = tape.leaf(x);
    std::vector<Value> outputs;
    for (int i = 0; i < products; ++i) outputs.push_back(linear(tape, in, p));
    const int64_t start = rank.allocator().counters(Category::activations).blocks;
    tape.backward(outputs, std::vector<Tensor>(outputs.size(), weights));
    return rank.allocator().counters(Category::activations).blocks - start;
  };
  BOOST_TEST(blocks(3) == blocks(1));
}

BOOST_AUTO_TEST_CASE(rotary_rotates_and_its_gradient_rotates_back) {
  Rank rank(RankOptions{.threads = 2, .poison = true});
  std::mt19937_64 random(3);
  for (const int64_t head_dim : {2, 6, 16}) {
    const Tensor positions = positions_of(rank, {1, 5, 3, 1, 9});
    const RotaryTable table = make_rotary_table(rank, 9, head_dim, 1e4, DType::f64);
    check_gradient(rank, [&](Tape& t, std::span<const Value> in) { return rotary(t, in[0], positions, table); },
                   {random_tensor(rank, random, {19, 3 * head_dim})}, {});
    // By the definition, with complex numbers: pair (x[i], x[i + d]) turns by position * theta^(-2i/head_dim).
    const Tensor x = random_tensor(rank, random, {19, 3 * head_dim});
    Tape tape(rank, false);
    const std::vector<double> in = x.to_vector<double>(), out = rotary(tape, tape.constant(x), positions, table).tensor.to_vector<double>();
    const std::vector<int32_t> p = positions.to_vector<int32_t>();
    const int64_t half = head_dim / 2;
    for (int64_t t = 0; t < 19; ++t)
      for (int64_t h = 0; h < 3; ++h)
        for (int64_t i = 0; i < half; ++i) {
          const double angle = p[static_cast<size_t>(t)] * std::pow(1e4, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
          const size_t a = static_cast<size_t>((t * 3 + h) * head_dim + i), b = a + static_cast<size_t>(half);
          BOOST_REQUIRE_SMALL(out[a] - (in[a] * std::cos(angle) - in[b] * std::sin(angle)), 1e-13);
          BOOST_REQUIRE_SMALL(out[b] - (in[b] * std::cos(angle) + in[a] * std::sin(angle)), 1e-13);
        }
  }
}

BOOST_AUTO_TEST_CASE(packed_documents_are_rotated_as_alone_bitwise) {
  Rank rank(RankOptions{.threads = 2});
  std::mt19937_64 random(4);
  constexpr int64_t head_dim = 8, width = 3 * head_dim;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const RotaryTable table = make_rotary_table(rank, 300, head_dim, 1e4, dtype);
    const std::vector<int64_t> lengths = random_lengths(random, 300);
    const Tensor x = cast_of(rank, random_tensor(rank, random, {300, width}), dtype);
    Tape tape(rank, false);
    const std::vector<double> packed = values_of(rank, rotary(tape, tape.constant(x), positions_of(rank, lengths), table).tensor);
    const Tensor continued = Tensor::from<int32_t>(rank, {300}, Documents::from_lengths(std::vector<int64_t>{300}).positions());
    const std::vector<double> without_restart = values_of(rank, rotary(tape, tape.constant(x), continued, table).tensor);
    int64_t begin = 0;
    bool differs = false;
    for (const int64_t length : lengths) {
      const Tensor part = contiguous(rank, x.slice(0, begin, begin + length));
      const std::vector<double> alone = values_of(rank, rotary(tape, tape.constant(part), positions_of(rank, {length}), table).tensor);
      const auto at = [&](const std::vector<double>& all) {
        return std::vector<double>(all.begin() + begin * width, all.begin() + (begin + length) * width);
      };
      BOOST_REQUIRE(same_bits(at(packed), alone));
      differs = differs || !same_bits(at(without_restart), alone);
      begin += length;
    }
    BOOST_TEST(differs);  // the control: positions that do not restart
  }
}

BOOST_AUTO_TEST_CASE(swiglu_and_add) {
  Rank rank(RankOptions{.threads = 2, .poison = true});
  std::mt19937_64 random(5);
  for (const Shape& shape : {Shape{1}, Shape{3, 7}, Shape{33, 9}}) {
    const std::vector<Tensor> two = {random_tensor(rank, random, shape, 2), random_tensor(rank, random, shape, 2)};
    check_gradient(rank, [](Tape& t, std::span<const Value> in) { return swiglu(t, in[0], in[1]); }, two, {});
    check_gradient(rank, [](Tape& t, std::span<const Value> in) { return add(t, in[0], in[1]); }, two, {});
    check_gradient(rank, [](Tape& t, std::span<const Value> in) { return swiglu(t, in[0], in[0]); }, {two[0]}, {});  // one value as both
    check_gradient(rank, [](Tape& t, std::span<const Value> in) { return add(t, in[0], in[0]); }, {two[0]}, {});
  }
}

BOOST_AUTO_TEST_CASE(linear_and_embedding_add_into_the_accumulator_of_their_use) {
  Rank rank(RankOptions{.threads = 2, .poison = true});
  std::mt19937_64 random(6);
  Parameter weight = make_parameter(rank, "w", random_tensor(rank, random, {5, 7}));
  check_gradient(rank, [&](Tape& t, std::span<const Value> in) { return linear(t, in[0], weight); }, {random_tensor(rank, random, {9, 7})}, {&weight});
  // One table as embedding (use 0) and as output (use 1), ids repeated; every entry.
  Parameter table = make_parameter(rank, "table", random_tensor(rank, random, {6, 4}), 2);
  const Tensor tokens = Tensor::from<int32_t>(rank, {7}, std::vector<int32_t>{0, 5, 5, 2, 5, 0, 1});
  check_gradient(rank, [&](Tape& t, std::span<const Value>) { return linear(t, embedding(t, tokens, table, 0), table, 1); }, {}, {&table});
  // Gradients are added to what is there, and each use has its own.
  fill_zero(rank, table.gradients[0]);
  fill_zero(rank, table.gradients[1]);
  const auto pass = [&] {
    Tape tape(rank);
    const Value y = embedding(tape, tokens, table, 1);
    const Tensor ones = Tensor::from<double>(rank, {7, 4}, std::vector<double>(28, 1.0));
    tape.backward(std::span(&y, 1), std::span(&ones, 1));
  };
  pass();
  pass();
  const std::vector<double> first = table.gradients[0].to_vector<double>(), second = table.gradients[1].to_vector<double>();
  const double counts[] = {2, 1, 1, 0, 0, 3};
  for (size_t i = 0; i < second.size(); ++i) {
    BOOST_TEST(first[i] == 0);
    BOOST_TEST(second[i] == 2 * counts[i / 4]);
  }
}

BOOST_AUTO_TEST_CASE(a_composition_reusing_memory_has_the_right_gradient) {
  // Everything that may work in place, in a chain where earlier nodes have saved what later ones would like to overwrite.
  Rank rank(RankOptions{.threads = 2, .poison = true});
  std::mt19937_64 random(7);
  const Tensor positions = positions_of(rank, {4, 3});
  const RotaryTable table = make_rotary_table(rank, 4, 4, 1e4, DType::f64);
  Parameter weight = make_parameter(rank, "w", random_tensor(rank, random, {8, 8})), gain = make_parameter(rank, "gain", random_tensor(rank, random, {4}));
  check_gradient(rank,
                 [&](Tape& t, std::span<const Value> in) {
                   Value q = linear(t, in[0], weight);
                   q = rotary(t, std::move(q), positions, table);          // in the memory of linear's output
                   const Value gated = swiglu(t, q, in[0]);                // saves q
                   q = rotary(t, std::move(q), positions, table);          // must not overwrite it
                   Value normed = rmsnorm(t, q, gain, 1e-5);
                   normed = rotary(t, rmsnorm(t, normed, gain, 1e-5), positions, table);
                   return add(t, in[0], add(t, gated, add(t, q, std::move(normed))));
                 },
                 {random_tensor(rank, random, {7, 8})}, {&weight, &gain}, 1e-6);
}

BOOST_AUTO_TEST_CASE(reuse_never_changes_a_tensor_that_somebody_holds) {
  Rank rank(RankOptions{.threads = 1, .poison = true});
  std::mt19937_64 random(8);
  const Tensor positions = positions_of(rank, {3, 2});
  const RotaryTable table = make_rotary_table(rank, 3, 4, 1e4, DType::f64);
  const auto fresh = [&] { return random_tensor(rank, random, {5, 8}); };
  for (const bool recording : {false, true}) {
    Tape tape(rank, recording);
    const auto value = [&](const Tensor& t) { return recording ? tape.leaf(t) : tape.constant(t); };
    {  // nobody else holds it: its memory is used
      Value x = value(fresh()), b = value(fresh());
      const void *x_memory = x.tensor.raw(), *b_memory = b.tensor.raw();
      BOOST_TEST(rotary(tape, std::move(x), positions, table).tensor.raw() == x_memory);
      const Tensor a = fresh();
      const std::vector<double> expected_a = a.to_vector<double>(), expected_b = b.tensor.to_vector<double>();
      const Value y = add(tape, value(a), std::move(b));
      BOOST_TEST(y.tensor.raw() == b_memory);
      const std::vector<double> sum = y.tensor.to_vector<double>();
      for (size_t i = 0; i < sum.size(); ++i) BOOST_REQUIRE_EQUAL(sum[i], expected_a[i] + expected_b[i]);
      BOOST_TEST((a.to_vector<double>() == expected_a));
    }
    const auto untouched = [&](const Tensor& held, auto&& operation) {
      const std::vector<double> before = held.to_vector<double>();
      const Value y = operation();
      BOOST_TEST(!y.tensor.shares_storage(held));
      BOOST_TEST((held.to_vector<double>() == before));
    };
    const Tensor x = fresh(), a = fresh();
    untouched(x, [&] { return rotary(tape, value(x), positions, table); });                                      // the caller's tensor
    untouched(x, [&] { return add(tape, value(a), value(x)); });
    const Value kept = value(fresh());
    untouched(kept.tensor, [&] { return rotary(tape, kept, positions, table); });                                // the caller's value
    untouched(kept.tensor, [&] { return add(tape, value(a), kept); });
    untouched(kept.tensor, [&] { return add(tape, kept, kept); });
    const Tensor view = kept.tensor.slice(0, 1, 2);                                                              // a view of it
    Value moved = kept;
    untouched(view, [&] { return rotary(tape, std::move(moved), positions, table); });
  }
}

BOOST_AUTO_TEST_CASE(casts_and_reductions) {
  Rank rank(RankOptions{.threads = 2, .poison = true});
  std::mt19937_64 random(9);
  const Tensor x = random_tensor(rank, random, {100, 101});
  BOOST_TEST(cast(rank, x, DType::f64).shares_storage(x));
  const std::vector<double> wide = x.to_vector<double>();
  const std::vector<float> narrow = cast(rank, x, DType::f32).to_vector<float>();
  double sum = 0, squares = 0;
  for (size_t i = 0; i < wide.size(); ++i) {
    BOOST_REQUIRE_EQUAL(narrow[i], static_cast<float>(wide[i]));
    sum += wide[i];
    squares += wide[i] * wide[i];
  }
  const Tensor result = Tensor::empty(rank, {1}, DType::f64);
  reduce(rank, x, 1, result);
  BOOST_TEST(std::abs(result.to_vector<double>()[0] - sum) < 1e-10);
  reduce(rank, x, 2, result);
  BOOST_TEST(std::abs(result.to_vector<double>()[0] / squares - 1) < 1e-13);
  reduce(rank, Tensor::empty(rank, {0}, DType::f32), 2, result);
  BOOST_TEST(result.to_vector<double>()[0] == 0);
}

BOOST_AUTO_TEST_CASE(wrong_shapes_and_types_are_named) {
  Rank rank;
  std::mt19937_64 random(10);
  Tape tape(rank);
  const auto f64 = [&](const Shape& shape) { return tape.leaf(random_tensor(rank, random, shape)); };
  const auto f32 = [&](const Shape& shape) { return tape.leaf(Tensor::zeros(rank, shape, DType::f32)); };
  Parameter gain = make_parameter(rank, "layers.0.norm", random_tensor(rank, random, {4})), weight = make_parameter(rank, "w", random_tensor(rank, random, {3, 4}));
  const Tensor positions = positions_of(rank, {5}), tokens = positions;
  const RotaryTable table = make_rotary_table(rank, 5, 4, 1e4, DType::f64);
  check_error<ShapeError>([&] { rmsnorm(tape, f64({2, 6}), gain, 1e-5); }, {"[rmsnorm]", "(2,6) f64", "layers.0.norm (4) f64"});
  check_error<DTypeError>([&] { rmsnorm(tape, f32({2, 4}), gain, 1e-5); }, {"[rmsnorm]", "(2,4) f32", "(4) f64"});
  check_error<ShapeError>([&] { rotary(tape, f64({4, 8}), positions, table); }, {"[rotary]", "(4,8) f64", "(5) i32"});
  check_error<ShapeError>([&] { rotary(tape, f64({5, 6}), positions, table); }, {"[rotary]", "(5,6) f64", "head_dim 4"});
  check_error<DTypeError>([&] { rotary(tape, f32({5, 8}), positions, table); }, {"[rotary]", "(5,8) f32", "f64"});
  check_error<ShapeError>([&] { make_rotary_table(rank, 5, 3, 1e4, DType::f64); }, {"[rotary]", "head_dim 3 is odd"});
  check_error<ShapeError>([&] { swiglu(tape, f64({2, 3}), f64({3, 2})); }, {"[swiglu]", "(2,3) f64 and (3,2) f64"});
  check_error<ShapeError>([&] { add(tape, f64({2, 3}), f32({2, 3})); }, {"[add]", "(2,3) f64 and (2,3) f32"});
  check_error<ShapeError>([&] { linear(tape, f64({2, 5}), weight); }, {"[linear]", "(2,5) f64", "w (3,4) f64", "inner sizes differ"});
  check_error<DTypeError>([&] { linear(tape, f32({2, 4}), weight); }, {"[matmul]", "(2,4) f32", "(3,4) f64"});
  check_error<ShapeError>([&] { embedding(tape, tokens.reshape({5, 1}), weight); }, {"[embedding]", "(5,1) i32", "w (3,4) f64"});
  check_error<DataError>([&] { check_tokens(std::vector<int32_t>{0, 3, 1}, 3); }, {"[tokens]", "token 1 has id 3", "0 to 2"});
  check_error<DataError>([&] { check_tokens(std::vector<int32_t>{-1}, 3); }, {"[tokens]", "id -1"});
  check_tokens(std::vector<int32_t>{0, 2}, 3);
  const auto product = [&](const Shape& a, const Shape& b, const Shape& c, Transpose ta = Transpose::no) {
    return [&rank, a, b, c, ta] {
      const auto zeros = [&](const Shape& s) { return Tensor::zeros(rank, s, DType::f64); };
      matmul(rank, zeros(a), ta, zeros(b), Transpose::no, zeros(c));
    };
  };
  check_error<ShapeError>(product({2, 3}, {4, 5}, {2, 5}), {"[matmul]", "(2,3) f64", "(4,5) f64", "inner sizes 3 and 4 differ"});
  check_error<ShapeError>(product({3, 2}, {4, 5}, {2, 5}, Transpose::yes), {"(3,2) f64^T", "inner sizes 3 and 4 differ"});
  check_error<ShapeError>(product({2, 3}, {3, 5}, {5, 2}), {"[matmul]", "the product is (2,5)"});
  check_error<ShapeError>(product({2, 3, 1}, {3, 5}, {5, 2}), {"[matmul]", "must be matrices"});
  // Views with gaps: said, not misread.
  const Value strided = tape.leaf(random_tensor(rank, random, {5, 12}).slice(1, 0, 8));
  check_error<ShapeError>([&] { rotary(tape, strided, positions, table); }, {"[rotary]", "not contiguous"});
  check_error<ShapeError>([&] { swiglu(tape, strided, strided); }, {"[swiglu]", "not contiguous"});
  check_error<ShapeError>([&] { add(tape, strided, f64({5, 8})); }, {"[add]", "not contiguous"});
  check_error<ShapeError>([&] { rmsnorm(tape, strided, gain, 1e-5); }, {"[rmsnorm]", "not contiguous"});
  check_error<ShapeError>([&] { cast(rank, strided.tensor, DType::f32); }, {"[cast]", "not contiguous"});
  check_error<ShapeError>([&] { reduce(rank, strided.tensor, 1, Tensor::empty(rank, {1}, DType::f64)); }, {"[reduce]", "not contiguous"});
}

BOOST_AUTO_TEST_CASE(products_of_strided_rows_need_no_copy) {
  Rank rank(RankOptions{.poison = true});
  std::mt19937_64 random(11);
  Parameter weight = make_parameter(rank, "w", random_tensor(rank, random, {3, 4}));
  const Tensor wide = random_tensor(rank, random, {6, 9});
  Tape tape(rank, false);
  BOOST_TEST((linear(tape, tape.constant(wide.slice(1, 2, 6)), weight).tensor.to_vector<double>() ==
              linear(tape, tape.constant(contiguous(rank, wide.slice(1, 2, 6))), weight).tensor.to_vector<double>()));
}

BOOST_AUTO_TEST_SUITE_END()
