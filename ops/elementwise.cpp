#include "ops/elementwise.h"

#include <cmath>

#include "ops/kernels.h"
#include "runtime/dispatch.h"

namespace quire {

namespace {

/// Whether a result may be written in this tensor's memory, which is then read no more.
bool reusable(const Tensor& tensor) { return tensor.defined() && tensor.storage_users() == 1; }

class RmsNormNode final : public Node {
 public:
  RmsNormNode(const Tensor& x, const Tensor& rstd, Parameter& gain)
      : gain_(gain), x_(save(x, For::input_gradient)), rstd_(save(rstd, For::input_gradient)) {}
  std::string_view name() const override { return "rmsnorm"; }

  void input_gradient(Tape& tape, const Tensor& grad) override {
    const Tensor& x = saved(x_);
    const Gradient so_far = tape.take_gradient_so_far(input(0));  // the residual stream's, as a rule
    const Tensor dx = reusable(grad) ? grad : reusable(so_far.sum) ? so_far.sum : Tensor::empty(tape.rank(), x.shape(), x.dtype());
    const int64_t width = gain_.value.elements();
    dispatch(tape.rank(), RmsNormBackwardArgs{x.dtype(), x.elements() / width, width, x.raw(), gain_.value.raw(), saved(rstd_).raw(), grad.raw(),
                                              dx.raw(), gain_.gradients.at(0).raw(), so_far.sum.defined() ? so_far.sum.raw() : nullptr});
    tape.parameter_done(gain_, 0);
    tape.add_gradient(input(0), {dx, true});
  }

 private:
  Parameter& gain_;
  int x_, rstd_;
};

class RotaryNode final : public Node {
 public:
  RotaryNode(Tensor positions, const RotaryTable& table) : positions_(std::move(positions)), table_(table) {}
  std::string_view name() const override { return "rotary"; }

  void input_gradient(Tape& tape, const Tensor& grad) override {
    const Tensor dx = reusable(grad) ? grad : Tensor::empty(tape.rank(), grad.shape(), grad.dtype());
    dispatch(tape.rank(), RotaryArgs{grad.dtype(), grad.size(0), grad.size(1) / table_.head_dim, table_.head_dim, positions_.data<int32_t>(),
                                     table_.cosine.raw(), table_.sine.raw(), grad.raw(), dx.raw(), true});
    tape.add_gradient(input(0), dx);
  }

 private:
  Tensor positions_;
  RotaryTable table_;
};

class SwigluNode final : public Node {
 public:
  SwigluNode(const Tensor& gate, const Tensor& up) : gate_(save(gate, For::input_gradient)), up_(save(up, For::input_gradient)) {}
  std::string_view name() const override { return "swiglu"; }

  void input_gradient(Tape& tape, const Tensor& grad) override {
    const Tensor &gate = saved(gate_), &up = saved(up_);
    const Tensor dgate = reusable(gate) ? gate : Tensor::empty(tape.rank(), gate.shape(), gate.dtype());
    const Tensor dup = reusable(up) ? up : Tensor::empty(tape.rank(), up.shape(), up.dtype());
    dispatch(tape.rank(), SwigluBackwardArgs{gate.dtype(), gate.elements(), gate.raw(), up.raw(), grad.raw(), dgate.raw(), dup.raw()});
    tape.add_gradient(input(0), dgate);
    tape.add_gradient(input(1), dup);
  }

 private:
  int gate_, up_;
};

class AddNode final : public Node {
 public:
  std::string_view name() const override { return "add"; }
  void input_gradient(Tape& tape, const Tensor& grad) override {
    tape.add_gradient(input(0), grad);
    tape.add_gradient(input(1), grad);
  }
};

void same(std::string_view op, const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) fail<ShapeError>(op, "{} and {}: shapes and dtypes must be equal", describe(a), describe(b));
  require_contiguous(op, a);
  require_contiguous(op, b);
}

}  // namespace

namespace {

void check_norm(const Tensor& x, const Parameter& gain) {
  const int64_t width = gain.value.elements();
  if (x.shape().dims() < 1 || width == 0 || x.shape().back() % width != 0)
    fail<ShapeError>("rmsnorm", "x {} with {} {}: the last size is no multiple of the gain's", describe(x), gain.name, describe(gain.value));
  if (x.dtype() != gain.value.dtype()) fail<DTypeError>("rmsnorm", "x {} with {} {}: one dtype is needed", describe(x), gain.name, describe(gain.value));
  require_contiguous("rmsnorm", x);
}

struct Normed { Tensor y, rstd; };

/// Of x; or, where `added` is given, of the sum of both, which is written to `sum`.
Normed normalize(Rank& rank, const Tensor& x, const Parameter& gain, double eps, const Tensor& added = {}, const Tensor& sum = {}) {
  const int64_t width = gain.value.elements(), rows = x.elements() / width;
  const Normed result{Tensor::empty(rank, x.shape(), x.dtype()), Tensor::empty(rank, {rows}, accumulator_of(x.dtype()))};
  dispatch(rank, RmsNormForwardArgs{x.dtype(), rows, width, eps, x.raw(), gain.value.raw(), result.y.raw(), result.rstd.raw(),
                                    added.defined() ? added.raw() : nullptr, sum.defined() ? sum.raw() : nullptr});
  return result;
}

Value record_norm(Tape& tape, const Value& x, Parameter& gain, const Normed& result) {
  if (!tape.must_record(std::span(&x, 1), true)) return tape.constant(result.y);
  return tape.record(std::make_unique<RmsNormNode>(x.tensor, result.rstd, gain), std::span(&x, 1), result.y);
}

Value record_sum(Tape& tape, const Value& a, const Value& b, const Tensor& sum) {
  const Value inputs[] = {a, b};
  if (!tape.must_record(inputs, false)) return tape.constant(sum);
  return tape.record(std::make_unique<AddNode>(), inputs, sum);
}

/// Where a + b goes.
Tensor place_of_sum(Rank& rank, const Tensor& b) { return reusable(b) ? b : Tensor::empty(rank, b.shape(), b.dtype()); }

}  // namespace

Value rmsnorm(Tape& tape, const Value& x, Parameter& gain, double eps) {
  check_norm(x.tensor, gain);
  return record_norm(tape, x, gain, normalize(tape.rank(), x.tensor, gain, eps));
}

SumAndNorm add_rmsnorm(Tape& tape, const Value& a, Value b, Parameter& gain, double eps) {
  same("add", a.tensor, b.tensor);
  check_norm(a.tensor, gain);
  const Tensor place = place_of_sum(tape.rank(), b.tensor);
  const Normed result = normalize(tape.rank(), a.tensor, gain, eps, b.tensor, place);
  const Value sum = record_sum(tape, a, b, place);
  return {sum, record_norm(tape, sum, gain, result)};
}

RotaryTable make_rotary_table(Rank& rank, int64_t positions, int64_t head_dim, double theta, DType dtype) {
  if (head_dim % 2 != 0) fail<ShapeError>("rotary", "head_dim {} is odd; allowed: even sizes", head_dim);
  const int64_t half = head_dim / 2;
  std::vector<double> cosine(static_cast<size_t>(positions * half)), sine(cosine.size());
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    for (int64_t p = 0; p < positions; ++p) {
      cosine[static_cast<size_t>(p * half + i)] = std::cos(static_cast<double>(p) * frequency);
      sine[static_cast<size_t>(p * half + i)] = std::sin(static_cast<double>(p) * frequency);
    }
  }
  const auto table = [&](const std::vector<double>& values) {
    if (accumulator_of(dtype) == DType::f64) return Tensor::from<double>(rank, {positions, half}, values, Category::other);
    const std::vector<float> rounded(values.begin(), values.end());
    return Tensor::from<float>(rank, {positions, half}, rounded, Category::other);
  };
  return {positions, head_dim, table(cosine), table(sine)};
}

Value rotary(Tape& tape, Value x, const Tensor& positions, const RotaryTable& table) {
  const Tensor in = std::move(x.tensor);
  if (in.shape().dims() != 2 || in.size(1) % table.head_dim != 0 || positions.elements() != in.size(0))
    fail<ShapeError>("rotary", "x {} with positions {} and head_dim {}", describe(in), describe(positions), table.head_dim);
  if (table.cosine.dtype() != accumulator_of(in.dtype()))
    fail<DTypeError>("rotary", "x {} with a table of {}; allowed: a table made for x's dtype", describe(in), name_of(table.cosine.dtype()));
  require_contiguous("rotary", in);
  const Tensor y = in.storage_users() == 1 ? in : Tensor::empty(tape.rank(), in.shape(), in.dtype());
  dispatch(tape.rank(), RotaryArgs{in.dtype(), in.size(0), in.size(1) / table.head_dim, table.head_dim, positions.data<int32_t>(), table.cosine.raw(),
                                   table.sine.raw(), in.raw(), y.raw(), false});
  if (!tape.must_record(std::span(&x, 1), false)) return tape.constant(y);
  return tape.record(std::make_unique<RotaryNode>(positions, table), std::span(&x, 1), y);
}

Value swiglu(Tape& tape, const Value& gate, const Value& up) {
  same("swiglu", gate.tensor, up.tensor);
  const Tensor y = Tensor::empty(tape.rank(), gate.tensor.shape(), gate.tensor.dtype());
  dispatch(tape.rank(), SwigluForwardArgs{gate.tensor.dtype(), gate.tensor.elements(), gate.tensor.raw(), up.tensor.raw(), y.raw()});
  const Value inputs[] = {gate, up};
  if (!tape.must_record(inputs, false)) return tape.constant(y);
  return tape.record(std::make_unique<SwigluNode>(gate.tensor, up.tensor), inputs, y);
}

Value add(Tape& tape, const Value& a, Value b) {
  same("add", a.tensor, b.tensor);
  const Tensor sum = place_of_sum(tape.rank(), b.tensor);
  dispatch(tape.rank(), SumArgs{sum.dtype(), sum.elements(), a.tensor.raw(), b.tensor.raw(), sum.raw()});
  return record_sum(tape, a, b, sum);
}

Tensor cast(Rank& rank, const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  require_contiguous("cast", tensor);
  const Tensor result = Tensor::empty(rank, tensor.shape(), dtype);
  dispatch(rank, CastArgs{tensor.dtype(), dtype, tensor.elements(), tensor.raw(), result.raw()});
  return result;
}

void reduce(Rank& rank, const Tensor& tensor, int power, const Tensor& result) {
  require_contiguous("reduce", tensor);
  dispatch(rank, ReduceArgs{tensor.dtype(), tensor.elements(), power, tensor.raw(), result.data<double>()});
}

}  // namespace quire
