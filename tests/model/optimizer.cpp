// AdamW against a literal one, skipped steps, and learning-rate schedules.
#include "model/optimizer.h"

#include <cstring>

#include "check.h"
#include "device.h"
#include "model/schedule.h"
#include "ops/elementwise.h"

using namespace quire;
using namespace quire::test;

namespace {

using Doubles = std::vector<double>;

/// Two matrices and a vector, with random values and gradients.
struct Set {
  Rank rank;
  ParameterSet parameters;
  explicit Set(DType dtype) : rank(on_device({.threads = 2, .poison = true}, dtype)) {
    parameters.add("matrix", {5, 7}, 0.5);
    parameters.add("gain", {11}, 0);
    parameters.add("other", {70, 90}, 0.1);
    parameters.allocate(rank, dtype);
    parameters.initialize(rank, 3);
  }
  void set_gradients(std::mt19937_64& random, double scale) {
    std::normal_distribution<double> normal;
    for (Parameter& p : parameters) {
      Doubles values(static_cast<size_t>(p.gradients[0].elements()));
      for (double& value : values) value = scale * normal(random);
      set(p.gradients[0], values);
    }
  }
  void set(const Tensor& tensor, const Doubles& values) {
    if (tensor.dtype() == DType::f64) write<double>(rank, tensor, values);
    else write<float>(rank, tensor, std::vector<float>(values.begin(), values.end()));
  }
  static Doubles wide(const Tensor& tensor) {
    const auto from = []<class T>(const std::vector<T>& values) {
      Doubles widened;
      for (const T value : values) widened.push_back(static_cast<double>(static_cast<float>(value)));
      return widened;
    };
    if (tensor.dtype() == DType::f64) return tensor.to_vector<double>();
    return tensor.dtype() == DType::f32 ? from(tensor.to_vector<float>()) : from(tensor.to_vector<bf16>());
  }
  Tensor loss(double value = 1) { return Tensor::from<double>(rank, {1}, Doubles{value}); }
  /// Everything that a step may change.
  std::vector<Doubles> state(const AdamW& optimizer) {
    std::vector<Doubles> all;
    for (size_t i = 0; i < parameters.size(); ++i)
      for (const Tensor& t : {parameters[i].value, parameters[i].master, optimizer.moment1(i), optimizer.moment2(i)}) all.push_back(wide(t));
    return all;
  }
};

/// The paper's algorithm in double, one number after the other.
struct LiteralAdamW {
  AdamWOptions options;
  std::vector<Doubles> weights, m, v;
  int64_t t = 0;
  double step(const std::vector<Doubles>& gradients, const std::vector<bool>& decay, double lr) {
    double squares = 0;
    for (const Doubles& g : gradients)
      for (const double x : g) squares += x * x;
    const double norm = std::sqrt(squares), clip = options.clip_norm > 0 ? std::min(1.0, options.clip_norm / norm) : 1;
    ++t;
    for (size_t p = 0; p < weights.size(); ++p)
      for (size_t i = 0; i < weights[p].size(); ++i) {
        const double g = gradients[p][i] * clip;
        m[p][i] = options.beta1 * m[p][i] + (1 - options.beta1) * g;
        v[p][i] = options.beta2 * v[p][i] + (1 - options.beta2) * g * g;
        const double m_hat = m[p][i] / (1 - std::pow(options.beta1, t)), v_hat = v[p][i] / (1 - std::pow(options.beta2, t));
        weights[p][i] -= lr * (m_hat / (std::sqrt(v_hat) + options.eps) + (decay[p] ? options.weight_decay : 0) * weights[p][i]);
      }
    return norm;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(optimizer)

BOOST_AUTO_TEST_CASE(several_steps_equal_a_literal_adamw) {
  for (const DType dtype : device_dtypes({DType::f64, DType::f32, DType::bf16}))
    for (const double clip : {0.0, 1.0, 1e6}) {
      Set set(dtype);
      const AdamWOptions options{.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.3, .clip_norm = clip};
      AdamW optimizer(set.rank, set.parameters, options);
      LiteralAdamW literal{options, {}, {}, {}};
      for (const Parameter& p : set.parameters) {
        literal.weights.push_back(set.wide(p.master));
        literal.m.emplace_back(static_cast<size_t>(p.shape.elements()));
        literal.v.emplace_back(static_cast<size_t>(p.shape.elements()));
      }
      std::mt19937_64 random(1);
      for (int step = 1; step <= 6; ++step) {
        const double lr = 0.05 / step;
        set.set_gradients(random, step == 3 ? 1e-3 : 1);
        std::vector<Doubles> gradients;
        for (const Parameter& p : set.parameters) gradients.push_back(set.wide(p.gradients[0]));
        const double norm = literal.step(gradients, {true, false, true}, lr);
        optimizer.step(set.rank, set.loss(), lr);
        BOOST_TEST(optimizer.outcome().gradient_norm == norm, boost::test_tools::tolerance(1e-13));
        BOOST_TEST(!optimizer.outcome().skipped);
        BOOST_TEST(optimizer.adam_step() == step);
        for (size_t p = 0; p < set.parameters.size(); ++p) {
          const Parameter& parameter = set.parameters[p];
          const double tolerance = dtype == DType::f64 ? 1e-14 : 1e-5;
          BOOST_TEST(relative_difference(set.wide(parameter.master), literal.weights[p]) < tolerance);
          BOOST_TEST(relative_difference(set.wide(optimizer.moment1(p)), literal.m[p]) < tolerance);
          BOOST_TEST(relative_difference(set.wide(optimizer.moment2(p)), literal.v[p]) < tolerance);
          BOOST_TEST((parameter.master.dtype() == (dtype == DType::f64 ? DType::f64 : DType::f32)));
          BOOST_TEST((optimizer.moment1(p).dtype() == parameter.master.dtype()));
          if (dtype != DType::bf16) continue;
          const std::vector<float> masters = parameter.master.to_vector<float>();  // values are the rounded masters, to the bit
          const std::vector<bf16> values = parameter.value.to_vector<bf16>();
          for (size_t i = 0; i < values.size(); ++i) BOOST_REQUIRE_EQUAL(values[i].bits, bf16(masters[i]).bits);
        }
      }
    }
}

BOOST_AUTO_TEST_CASE(small_updates_of_bf16_models_add_up_in_the_masters) {
  Set set(DType::bf16);
  AdamW optimizer(set.rank, set.parameters, {.eps = 1e-8, .weight_decay = 0, .clip_norm = 0});
  const double before = set.wide(set.parameters[1].value)[0];  // 1: the next bf16 below is 1 - 2^-8
  for (Parameter& p : set.parameters) set.set(p.gradients[0], Doubles(static_cast<size_t>(p.shape.elements()), 1.0));
  for (int step = 0; step < 10; ++step) optimizer.step(set.rank, set.loss(), 1e-3);
  BOOST_TEST(before == 1);
  BOOST_TEST(set.wide(set.parameters[1].master)[0] == 0.99, boost::test_tools::tolerance(1e-5));
  BOOST_TEST(set.wide(set.parameters[1].value)[0] < 1);  // ten steps, each below half a unit of bf16
}

BOOST_AUTO_TEST_CASE(non_finite_steps_change_nothing_and_do_not_count_47) {
  for (const DType dtype : device_dtypes({DType::f64, DType::f32, DType::bf16})) {
    Set with(dtype), without(dtype);
    AdamW optimizer(with.rank, with.parameters, {}), reference(without.rank, without.parameters, {});
    std::mt19937_64 random(2), random_again(2);
    const auto good_step = [&] {
      with.set_gradients(random, 1);
      without.set_gradients(random_again, 1);
      optimizer.step(with.rank, with.loss(), 1e-2);
      reference.step(without.rank, without.loss(), 1e-2);
      BOOST_TEST((with.state(optimizer) == without.state(reference)));
    };
    good_step();
    const std::vector<Doubles> before = with.state(optimizer);
    for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()})
      for (const bool in_loss : {false, true}) {
        with.set_gradients(random, 1);
        without.set_gradients(random_again, 1);
        if (!in_loss) {
          Doubles values = Set::wide(with.parameters[2].gradients[0]);
          values[5000] = bad;
          with.set(with.parameters[2].gradients[0], values);
        }
        optimizer.step(with.rank, with.loss(in_loss ? bad : 1), 1e-2);
        BOOST_TEST(optimizer.outcome().skipped);
        BOOST_TEST(optimizer.adam_step() == 1);
        BOOST_TEST((with.state(optimizer) == before));
        BOOST_TEST((optimizer.non_finite() == (in_loss ? std::vector<std::string>{} : std::vector<std::string>{"other"})));
      }
    good_step();  // Adam goes on as if the bad steps had never been
    BOOST_TEST(optimizer.adam_step() == 2);
    BOOST_TEST(optimizer.non_finite().empty());
    // The control: a finite step does change the weights.
    BOOST_TEST((with.state(optimizer) != before));
  }
}

BOOST_AUTO_TEST_CASE(decay_is_for_matrices_only, *cpu_only()) {
  Set set(DType::f64);
  AdamW optimizer(set.rank, set.parameters, {.weight_decay = 0.5, .clip_norm = 0});
  const Doubles matrix = set.wide(set.parameters[0].master), gain = set.wide(set.parameters[1].master);
  set.parameters.zero_gradients(set.rank);
  optimizer.step(set.rank, set.loss(), 0.1);
  const Doubles after = set.wide(set.parameters[0].master);
  for (size_t i = 0; i < matrix.size(); ++i) BOOST_TEST(after[i] == matrix[i] * (1 - 0.1 * 0.5), boost::test_tools::tolerance(1e-15));
  BOOST_TEST((set.wide(set.parameters[1].master) == gain));
}

BOOST_AUTO_TEST_CASE(adam_goes_on_from_a_given_step) {
  Set whole(DType::f32), resumed(DType::f32);
  AdamW a(whole.rank, whole.parameters, {});
  std::mt19937_64 random(4);
  whole.set_gradients(random, 1);
  a.step(whole.rank, whole.loss(), 1e-2);
  AdamW b(resumed.rank, resumed.parameters, {});
  const auto give = [&](const Tensor& from, const Tensor& to) { resumed.set(to, Set::wide(from)); };
  for (size_t i = 0; i < whole.parameters.size(); ++i) {
    give(whole.parameters[i].master, resumed.parameters[i].master);
    give(a.moment1(i), b.moment1(i));
    give(a.moment2(i), b.moment2(i));
  }
  b.set_adam_step(a.adam_step());
  whole.set_gradients(random, 1);
  for (size_t i = 0; i < whole.parameters.size(); ++i) give(whole.parameters[i].gradients[0], resumed.parameters[i].gradients[0]);
  a.step(whole.rank, whole.loss(), 1e-2);
  b.step(resumed.rank, resumed.loss(), 1e-2);
  BOOST_TEST((whole.state(a) == resumed.state(b)));
}

BOOST_AUTO_TEST_CASE(uses_are_combined_in_order) {
  Rank rank(on_device());
  ParameterSet set;
  Parameter& p = set.add("table", {2}, 0);
  p.uses = 3;
  set.allocate(rank, DType::f64);
  const double values[] = {1e16, -1e16, 1};  // (1e16 - 1e16) + 1 is 1, any other order gives 0
  for (size_t use = 0; use < 3; ++use) write<double>(rank, p.gradients[use], Doubles{0, values[use]});
  set.combine_uses(rank);
  BOOST_TEST((p.gradients[0].to_vector<double>() == Doubles{0, 1}));
  set.zero_gradients(rank);
  for (const Tensor& gradient : p.gradients) BOOST_TEST((gradient.to_vector<double>() == Doubles{0, 0}));
}

BOOST_AUTO_TEST_CASE(schedules_at_their_seams, *cpu_only()) {
  const auto near = [](double a, double b) { BOOST_TEST(std::abs(a - b) < 1e-15); };
  const Schedule constant{.name = "constant", .lr = 1, .warmup_steps = 4};
  near(constant.at(1), 0.25);
  near(constant.at(4), 1);
  near(constant.at(1000), 1);
  near(Schedule{.lr = 2}.at(1), 2);
  near(Schedule{.lr = 2}.at(0), 2);  // no warm-up: no division by it
  const Schedule cosine{.name = "cosine", .lr = 1, .warmup_steps = 10, .decay_steps = 100, .min_lr_ratio = 0.1};
  near(cosine.at(10), 1);
  near(cosine.at(60), 0.55);
  near(cosine.at(35), 0.1 + 0.9 * (0.5 + 0.5 * std::sqrt(0.5)));
  near(cosine.at(110), 0.1);
  near(cosine.at(5000), 0.1);
  const Schedule linear{.name = "linear", .lr = 1, .warmup_steps = 10, .decay_steps = 100, .min_lr_ratio = 0};
  near(linear.at(9), 0.9);
  near(linear.at(10), 1);
  near(linear.at(11), 0.99);
  near(linear.at(110), 0);
  near(linear.at(111), 0);
  const Schedule wsd{.name = "wsd", .lr = 1, .warmup_steps = 5, .decay_steps = 10, .stable_steps = 20, .min_lr_ratio = 0.5};
  near(wsd.at(5), 1);
  near(wsd.at(25), 1);
  near(wsd.at(26), 0.95);
  near(wsd.at(30), 0.75);
  near(wsd.at(35), 0.5);
  near(wsd.at(36), 0.5);
  // No schedule ever rises after its warm-up.
  for (const Schedule& schedule : {constant, cosine, linear, wsd})
    for (int64_t step = schedule.warmup_steps + 1; step < 200; ++step) BOOST_REQUIRE(schedule.at(step) <= schedule.at(step - 1));
  check_error<ConfigError>([] { Schedule{.name = "cosin", .warmup_steps = 10}.at(1); }, {"[scheduler.name]", "'cosin'", "constant, cosine, linear, wsd", "cosine"});
}

BOOST_AUTO_TEST_SUITE_END()
