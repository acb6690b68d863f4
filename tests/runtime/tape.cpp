// The tape with toy operations: order, accumulation, split backward, recomputation, memory kept, depth.
#include "runtime/tape.h"

#include <array>
#include <cstring>
#include <functional>

#include "check.h"

using namespace quire;
using namespace quire::test;

namespace {

using Doubles = std::vector<double>;

Tensor make(Rank& rank, const Doubles& values) { return Tensor::from<double>(rank, {static_cast<int64_t>(values.size())}, values); }

Tensor elementwise(Rank& rank, const Tensor& a, const Tensor& b, const std::function<double(double, double)>& f) {
  const Tensor y = Tensor::empty(rank, a.shape(), DType::f64);
  for (int64_t i = 0; i < a.elements(); ++i) y.data<double>()[i] = f(a.data<double>()[i], b.data<double>()[i]);
  return y;
}

using Log = std::vector<std::string>;

/// y = a * b.
class ProductNode final : public Node {
 public:
  ProductNode(const Tensor& a, const Tensor& b, std::string label, Log* log)
      : label_(std::move(label)), log_(log), a_(save(a, For::input_gradient)), b_(save(b, For::input_gradient)) {}
  std::string_view name() const override { return "product"; }
  void input_gradient(Tape& tape, const Tensor& grad) override {
    if (log_) log_->push_back(label_);
    const auto times = [](double x, double y) { return x * y; };
    if (needs(0)) tape.add_gradient(input(0), elementwise(tape.rank(), grad, saved(b_), times));
    if (needs(1)) tape.add_gradient(input(1), elementwise(tape.rank(), grad, saved(a_), times));
  }

 private:
  std::string label_;
  Log* log_;
  int a_, b_;
};

Value product(Tape& tape, const Value& a, const Value& b, std::string label = {}, Log* log = nullptr) {
  const Tensor y = elementwise(tape.rank(), a.tensor, b.tensor, [](double x, double z) { return x * z; });
  const Value inputs[] = {a, b};
  if (!tape.must_record(inputs, false)) return tape.constant(y);
  return tape.record(std::make_unique<ProductNode>(a.tensor, b.tensor, std::move(label), log), inputs, y);
}

/// y = a + b; passes one gradient tensor to both.
class SumNode final : public Node {
 public:
  std::string_view name() const override { return "sum"; }
  void input_gradient(Tape& tape, const Tensor& grad) override {
    tape.add_gradient(input(0), grad);
    tape.add_gradient(input(1), grad);
  }
};

Value sum(Tape& tape, const Value& a, const Value& b) {
  const Tensor y = elementwise(tape.rank(), a.tensor, b.tensor, [](double x, double z) { return x + z; });
  const Value inputs[] = {a, b};
  if (!tape.must_record(inputs, false)) return tape.constant(y);
  return tape.record(std::make_unique<SumNode>(), inputs, y);
}

/// y = w * x with a parameter w; its weight gradient defers.
class ScaleNode final : public Node {
 public:
  ScaleNode(const Tensor& x, Parameter& w, int use, Log* log) : w_(w), use_(use), log_(log), x_(save(x, For::weight_gradient)) {}
  std::string_view name() const override { return "scale"; }
  void input_gradient(Tape& tape, const Tensor& grad) override {
    if (log_) log_->push_back("input " + w_.name);
    if (needs(0)) tape.add_gradient(input(0), elementwise(tape.rank(), grad, w_.value, [](double g, double w) { return g * w; }));
  }
  bool has_weight_gradient() const override { return true; }
  void weight_gradient(Tape& tape, const Tensor& grad) override {
    if (log_) log_->push_back("weight " + w_.name);
    accumulate(tape.rank(), elementwise(tape.rank(), grad, saved(x_), [](double g, double x) { return g * x; }), w_.gradients.at(static_cast<size_t>(use_)));
    tape.parameter_done(w_, use_);
  }

 private:
  Parameter& w_;
  int use_;
  Log* log_;
  int x_;
};

Value scale(Tape& tape, const Value& x, Parameter& w, int use = 0, Log* log = nullptr) {
  const Tensor y = elementwise(tape.rank(), x.tensor, w.value, [](double a, double b) { return a * b; });
  if (!tape.must_record(std::span(&x, 1), true)) return tape.constant(y);
  return tape.record(std::make_unique<ScaleNode>(x.tensor, w, use, log), std::span(&x, 1), y);
}

Parameter parameter(Rank& rank, std::string name, const Doubles& values, int uses = 1) {
  Parameter p;
  p.name = std::move(name);
  p.shape = Shape{static_cast<int64_t>(values.size())};
  p.uses = uses;
  p.value = p.master = make(rank, values);
  for (int i = 0; i < uses; ++i) p.gradients.push_back(Tensor::zeros(rank, p.shape, DType::f64));
  return p;
}

void backward(Tape& tape, const Value& output, const Tensor& gradient, BackwardMode mode = BackwardMode::full) {
  tape.backward(std::span(&output, 1), std::span(&gradient, 1), mode);
}

Doubles random_values(std::mt19937_64& random, size_t count) {
  std::normal_distribution<double> normal;
  Doubles values(count);
  for (double& v : values) v = normal(random);
  return values;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tape)

BOOST_AUTO_TEST_CASE(gradients_of_random_graphs_equal_finite_differences) {
  Rank rank(RankOptions{.poison = true});
  std::mt19937_64 random(1);
  for (int round = 0; round < 100; ++round) {
    const Doubles x = random_values(random, 1);
    const uint64_t graph = random();
    const auto build = [&](Tape& t, const Value& leaf) {
      std::mt19937_64 choice(graph);
      std::vector<Value> values = {leaf, t.constant(make(rank, {0.7}))};
      for (int i = 0; i < 8; ++i) {
        const Value &a = values[choice() % values.size()], &b = values[choice() % values.size()];
        values.push_back(choice() % 2 ? product(t, a, b) : sum(t, a, b));
      }
      return values.back();
    };
    const auto value_at = [&](double at) {
      Tape t(rank, false);
      return build(t, t.constant(make(rank, {at}))).tensor.to_vector<double>()[0];
    };
    Tape t(rank);
    const Value leaf = t.leaf(make(rank, x));
    backward(t, build(t, leaf), make(rank, {1}));
    const Tensor gradient = t.take_gradient(leaf);
    const double found = gradient.defined() ? gradient.to_vector<double>()[0] : 0, h = 1e-4;
    const double expected = (8 * (value_at(x[0] + h) - value_at(x[0] - h)) - (value_at(x[0] + 2 * h) - value_at(x[0] - 2 * h))) / (12 * h);
    BOOST_REQUIRE_SMALL(found - expected, 1e-5 * (1 + std::abs(expected) + std::abs(value_at(x[0])) / h * 1e-10));
  }
}

BOOST_AUTO_TEST_CASE(backward_runs_in_reverse_order_and_skips_what_nothing_needs) {
  Rank rank;
  Tape t(rank);
  Log log;
  const Value x = t.leaf(make(rank, {2}));
  const Value a = product(t, x, x, "a", &log), b = product(t, a, x, "b", &log);
  product(t, b, b, "unused", &log);
  const Value c = product(t, a, b, "c", &log);
  BOOST_TEST(t.nodes() == 4u);
  backward(t, c, make(rank, {1}));
  BOOST_TEST((log == Log{"c", "b", "a"}));
  BOOST_TEST(t.take_gradient(x).to_vector<double>()[0] == 5 * 16);  // c = x^5
  BOOST_TEST(t.nodes() == 0u);
}

BOOST_AUTO_TEST_CASE(contributions_are_added_in_reverse_order_of_their_uses) {
  // Values whose sum depends on the order: ((1e16 + 1) - 1e16) is 0, ((1e16 - 1e16) + 1) is 1.
  Rank rank;
  const auto gradient = [&](const Doubles& factors) {
    Tape t(rank);
    const Value x = t.leaf(make(rank, {1}));
    std::vector<Value> outputs;
    for (const double factor : factors) outputs.push_back(product(t, x, t.constant(make(rank, {factor}))));
    const std::vector<Tensor> ones(outputs.size(), make(rank, {1}));
    t.backward(outputs, ones);
    return t.take_gradient(x).to_vector<double>()[0];
  };
  BOOST_TEST(gradient({1, -1e16, 1e16}) == 1);   // last use first: (1e16 - 1e16) + 1
  BOOST_TEST(gradient({-1e16, 1, 1e16}) == 0);   // (1e16 + 1) - 1e16
}

BOOST_AUTO_TEST_CASE(a_gradient_shared_by_two_values_is_never_added_into) {
  Rank rank;
  Tape t(rank);
  const Value x = t.leaf(make(rank, {1, 2})), y = t.leaf(make(rank, {3, 4}));
  const Value s = sum(t, x, y), again = sum(t, x, s);  // `again` gives one tensor to x and s, s gives it to x and y
  const Tensor seed = make(rank, {1, 1});
  backward(t, again, seed);
  BOOST_TEST((t.take_gradient(x).to_vector<double>() == Doubles{2, 2}));
  BOOST_TEST((t.take_gradient(y).to_vector<double>() == Doubles{1, 1}));
  BOOST_TEST((seed.to_vector<double>() == Doubles{1, 1}));
}

BOOST_AUTO_TEST_CASE(several_outputs_and_one_output_twice) {
  Rank rank;
  Tape t(rank);
  const Value x = t.leaf(make(rank, {3}));
  const Value a = product(t, x, x), b = product(t, a, x);
  const Value outputs[] = {a, b, a};
  const Tensor gradients[] = {make(rank, {1}), make(rank, {10}), make(rank, {100})};
  t.backward(outputs, gradients);
  BOOST_TEST(t.take_gradient(x).to_vector<double>()[0] == 101 * 6 + 10 * 27);
}

BOOST_AUTO_TEST_CASE(strided_gradients_are_taken_by_value) {
  Rank rank;
  Tape t(rank);
  const Value x = t.leaf(Tensor::from<double>(rank, {2, 2}, Doubles{1, 2, 3, 4}));
  const Tensor wide = Tensor::from<double>(rank, {2, 3}, Doubles{1, 2, 99, 3, 4, 99});
  backward(t, sum(t, x, x), wide.slice(1, 0, 2));
  BOOST_TEST((t.take_gradient(x).to_vector<double>() == Doubles{2, 4, 6, 8}));
}

BOOST_AUTO_TEST_CASE(wrong_calls_are_refused) {
  Rank rank;
  {
    Tape t(rank);
    const Value x = t.leaf(make(rank, {1}));
    const Value y = product(t, x, x);
    check_error<StateError>([&] { t.backward_weights(); }, {"[backward_weights]", "before backward"});
    check_error<ShapeError>([&] { t.backward(std::span(&y, 1), {}); }, {"[backward]", "1 outputs but 0 gradients"});
    backward(t, y, make(rank, {1}));
    check_error<StateError>([&] { backward(t, y, make(rank, {1})); }, {"[backward]", "twice", "no second derivatives"});
    check_error<StateError>([&] { product(t, x, x); }, {"[tape]", "after backward"});
    check_error<StateError>([&] { t.take_gradient(t.constant(make(rank, {1}))); }, {"[tape]", "needs no gradient"});
  }
  {
    Tape t(rank);
    const Value x = t.leaf(make(rank, {1, 2}));
    check_error<ShapeError>([&] { backward(t, product(t, x, x), make(rank, {1})); }, {"[backward]", "(2) f64", "(1) f64"});
  }
  Tape silent(rank, false);
  const Value x = silent.leaf(make(rank, {1}));
  BOOST_TEST(!x.needs_gradient());
  const Value y = product(silent, x, x);
  BOOST_TEST(silent.nodes() == 0u);
  check_error<StateError>([&] { backward(silent, y, make(rank, {1})); }, {"[backward]", "does not record"});
}

BOOST_AUTO_TEST_CASE(split_backward_equals_full_and_keeps_only_what_weights_need) {
  std::mt19937_64 random(3);
  constexpr size_t size = 1000;
  constexpr int64_t bytes = size * sizeof(double);
  const Doubles input = random_values(random, size), w1 = random_values(random, size), w2 = random_values(random, size);
  struct Result { Doubles x, w1, w2; Log log, done; bool operator==(const Result&) const = default; };
  const auto run = [&](BackwardMode mode) {
    Rank rank(RankOptions{.poison = true});
    Parameter a = parameter(rank, "a", w1), b = parameter(rank, "b", w2, 2);
    Result result;
    Tape t(rank);
    t.set_parameter_hook([&](Parameter& p, int use) { result.done.push_back(p.name + std::to_string(use)); });
    const Value x = t.leaf(make(rank, input));
    const Value h1 = scale(t, x, b, 0, &result.log), h2 = product(t, h1, x), h3 = scale(t, h2, a, 0, &result.log), h4 = scale(t, h3, b, 1, &result.log);
    // Kept: x (by two nodes, counted once), h1, h2, h3.
    BOOST_TEST(t.saved_bytes() == 4 * bytes);
    backward(t, h4, make(rank, Doubles(size, 1.0)), mode);
    if (mode == BackwardMode::input_only) {
      BOOST_TEST(result.done.empty());
      for (const Parameter* p : {&a, &b}) BOOST_TEST((p->gradients[0].to_vector<double>() == Doubles(size, 0.0)));
      BOOST_TEST(t.saved_bytes() == 3 * bytes + 3 * bytes);  // x, h2, h3 and the gradients of the three outputs; h1 is gone
      t.backward_weights();
    }
    BOOST_TEST(t.saved_bytes() == 0);
    result.x = t.take_gradient(x).to_vector<double>();
    accumulate(rank, b.gradients[1], b.gradients[0]);
    result.w1 = a.gradients[0].to_vector<double>();
    result.w2 = b.gradients[0].to_vector<double>();
    return result;
  };
  Result full = run(BackwardMode::full), split = run(BackwardMode::input_only);
  BOOST_TEST((full.log == Log{"input b", "weight b", "input a", "weight a", "input b", "weight b"}));
  BOOST_TEST((split.log == Log{"input b", "input a", "input b", "weight b", "weight a", "weight b"}));
  BOOST_TEST((full.done == Log{"b1", "a0", "b0"}));
  split.log = full.log;
  BOOST_TEST((full == split));
}

BOOST_AUTO_TEST_CASE(recomputed_regions_equal_plain_ones_and_keep_only_their_input) {
  std::mt19937_64 random(4);
  constexpr size_t size = 1000;
  constexpr int64_t bytes = size * sizeof(double);
  const Doubles input = random_values(random, size), w1 = random_values(random, size), w2 = random_values(random, size);
  struct Result { Doubles y, x, w1, w2; Log done; bool operator==(const Result&) const = default; };
  const auto run = [&](bool recomputed, bool nested, BackwardMode mode, int& bodies) {
    Rank rank(RankOptions{.poison = true});
    Parameter a = parameter(rank, "a", w1), b = parameter(rank, "b", w2);
    Result result;
    Tape t(rank);
    t.set_parameter_hook([&](Parameter& p, int) { result.done.push_back(p.name); });
    const Value x = t.leaf(make(rank, input));
    const Value h = sum(t, x, t.constant(make(rank, Doubles(size, 0.5))));
    const auto tail = [&b](Tape& in, const Value& v) { return scale(in, product(in, v, v), b); };
    const auto body = [&](Tape& in, const Value& v) {
      ++bodies;
      const Value first = scale(in, product(in, v, v), a);
      return nested ? recompute(in, first, tail) : tail(in, first);
    };
    const Value y = recomputed ? recompute(t, h, body) : body(t, h);
    if (recomputed) BOOST_TEST(t.saved_bytes() == bytes);  // its input
    else BOOST_TEST(t.saved_bytes() > bytes);
    result.y = y.tensor.to_vector<double>();
    backward(t, y, make(rank, Doubles(size, 1.0)), mode);
    if (mode == BackwardMode::input_only) {
      BOOST_TEST(result.done.empty());
      BOOST_TEST(t.saved_bytes() == 4 * bytes);  // the inputs of both scales and the gradients of their outputs: neither the region's input nor its gradient
      t.backward_weights();
    }
    BOOST_TEST(t.saved_bytes() == 0);
    result.x = t.take_gradient(x).to_vector<double>();
    result.w1 = a.gradients[0].to_vector<double>();
    result.w2 = b.gradients[0].to_vector<double>();
    return result;
  };
  int bodies = 0;
  const Result plain = run(false, false, BackwardMode::full, bodies);
  BOOST_TEST(bodies == 1);
  for (const bool nested : {false, true})
    for (const BackwardMode mode : {BackwardMode::full, BackwardMode::input_only}) {
      bodies = 0;
      BOOST_TEST((run(true, nested, mode, bodies) == plain));
      BOOST_TEST(bodies == 2);  // forward, and once more in backward
    }
}

BOOST_AUTO_TEST_CASE(a_recomputed_region_adds_to_its_input_in_the_plain_order) {
  // The input is read before the region, twice inside it, and after it; in f64 the order of four terms shows.
  std::mt19937_64 random(5);
  constexpr size_t size = 1000;
  std::vector<Doubles> factors;
  for (int i = 0; i < 4; ++i) factors.push_back(random_values(random, size));
  const auto gradient = [&](bool recomputed, const std::array<size_t, 4>& order) {
    Rank rank(RankOptions{.poison = true});
    Tape t(rank);
    const Value x = t.leaf(make(rank, Doubles(size, 1.0)));
    const auto term = [&](Tape& tape, const Value& v, size_t i) { return product(tape, v, tape.constant(make(rank, factors[order[i]]))); };
    const auto body = [&](Tape& in, const Value& v) {
      const Value first = term(in, v, 1);
      return sum(in, first, term(in, v, 2));
    };
    const Value before = term(t, x, 0), region = recomputed ? recompute(t, x, body) : body(t, x), after = term(t, x, 3);
    backward(t, sum(t, sum(t, before, region), after), make(rank, Doubles(size, 1.0)));
    return t.take_gradient(x).to_vector<double>();
  };
  const Doubles plain = gradient(false, {0, 1, 2, 3});
  BOOST_TEST((gradient(true, {0, 1, 2, 3}) == plain));
  BOOST_TEST((gradient(false, {3, 1, 2, 0}) != plain));  // the comparison sees another order
}

BOOST_AUTO_TEST_CASE(recomputation_of_regions_at_the_edges) {
  Rank rank;
  Parameter w = parameter(rank, "w", {3});
  // The region's input needs no gradient: its parameters still get theirs.
  Tape t(rank);
  backward(t, recompute(t, t.constant(make(rank, {2})), [&](Tape& in, const Value& v) { return scale(in, v, w); }), make(rank, {1}));
  BOOST_TEST(w.gradients[0].to_vector<double>()[0] == 2);
  // A region that gives its input back, and one that ignores it.
  Tape identity(rank), ignoring(rank);
  const Value x = identity.leaf(make(rank, {2}));
  backward(identity, recompute(identity, x, [](Tape&, const Value& v) { return v; }), make(rank, {5}));
  BOOST_TEST(identity.take_gradient(x).to_vector<double>()[0] == 5);
  const Value z = ignoring.leaf(make(rank, {2}));
  backward(ignoring, recompute(ignoring, z, [&](Tape& in, const Value&) { return in.constant(make(rank, {1})); }), make(rank, {5}));
  BOOST_TEST(!ignoring.take_gradient(z).defined());
  // Without recording nothing is kept.
  Tape silent(rank, false);
  recompute(silent, silent.constant(make(rank, {2})), [&](Tape& in, const Value& v) { return scale(in, v, w); });
  BOOST_TEST(silent.nodes() == 0u);
}

BOOST_AUTO_TEST_CASE(saved_tensors_go_when_their_purpose_is_done) {
  class Greedy final : public Node {
   public:
    explicit Greedy(const Tensor& x) : x_(save(x, For::input_gradient)), both_(save(x, For::both)) {}
    std::string_view name() const override { return "greedy"; }
    void input_gradient(Tape& tape, const Tensor& grad) override { tape.add_gradient(input(0), grad); }
    bool has_weight_gradient() const override { return true; }
    void weight_gradient(Tape&, const Tensor&) override {
      saved(both_);
      check_error<StateError>([&] { saved(x_); }, {"[greedy]", "saved tensor 0", "dropped"});
    }

   private:
    int x_, both_;
  };
  Rank rank;
  const int64_t before = rank.allocator().in_use();
  for (const BackwardMode mode : {BackwardMode::full, BackwardMode::input_only}) {
    Tape t(rank);
    const Value x = t.leaf(make(rank, {1}));
    const Value y = t.record(std::make_unique<Greedy>(x.tensor), std::span(&x, 1), make(rank, {1}));
    backward(t, y, make(rank, {1}), mode);
    if (mode == BackwardMode::input_only) t.backward_weights();
  }
  BOOST_TEST(rank.allocator().in_use() == before);
}

BOOST_AUTO_TEST_CASE(memory_of_consumed_nodes_is_reused_during_backward) {
  // A chain of n products over blocks of b bytes keeps n blocks; backward frees as it goes, so its own gradients fit into what is freed.
  Rank rank;
  constexpr int64_t length = 50, size = 100'000, bytes = size * 8;
  Tape t(rank);
  Value x = t.leaf(make(rank, Doubles(size, 1.0)));
  for (int i = 0; i < length; ++i) x = sum(t, product(t, x, x), x);
  const Tensor seed = make(rank, Doubles(size, 1e-20));
  const int64_t before = rank.allocator().counters(Category::activations).current;
  rank.allocator().reset_peaks();
  backward(t, x, seed);
  BOOST_TEST(rank.allocator().counters(Category::activations).peak < before + 6 * bytes);
}

BOOST_AUTO_TEST_CASE(a_deep_tape_needs_no_deep_stack) {
  Rank rank;
  constexpr int depth = 100'000;
  const auto build = [&](Tape& t, Value x) {
    const Value one = t.constant(make(rank, {1}));
    for (int i = 0; i < depth; ++i) x = product(t, x, one);
    return x;
  };
  Tape t(rank);
  const Value x = t.leaf(make(rank, {1}));
  const Value y = build(t, x);
  BOOST_TEST(t.nodes() == static_cast<size_t>(depth));
  backward(t, y, make(rank, {7}));
  BOOST_TEST(t.take_gradient(x).to_vector<double>()[0] == 7);
  Tape dropped(rank);  // destruction without backward is iterative too
  build(dropped, dropped.leaf(make(rank, {1})));
}

BOOST_AUTO_TEST_CASE(tapes_of_one_rank_do_not_know_each_other) {
  Rank rank;
  Parameter w = parameter(rank, "w", {2});
  Tape first(rank), second(rank);
  const Value a = first.leaf(make(rank, {3})), b = second.leaf(make(rank, {5}));
  const Value ya = scale(first, a, w), yb = scale(second, b, w);
  backward(second, yb, make(rank, {1}), BackwardMode::input_only);
  backward(first, ya, make(rank, {10}));
  BOOST_TEST(w.gradients[0].to_vector<double>()[0] == 30);
  second.backward_weights();
  BOOST_TEST(w.gradients[0].to_vector<double>()[0] == 35);
  BOOST_TEST(first.take_gradient(a).to_vector<double>()[0] == 20);
  BOOST_TEST(second.take_gradient(b).to_vector<double>()[0] == 2);
}

BOOST_AUTO_TEST_SUITE_END()
