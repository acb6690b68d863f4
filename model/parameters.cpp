#include "model/parameters.h"

#include <algorithm>

#include "ops/kernels.h"
#include "runtime/dispatch.h"
#include "runtime/random.h"

namespace quire {

namespace {

constexpr int64_t alignment = 32;  ///< elements: every parameter starts on a cache line, whatever its dtype

int64_t padded(int64_t elements) { return (elements + alignment - 1) / alignment * alignment; }

}  // namespace

Parameter& ParameterSet::add(std::string name, const Shape& shape, double init_std) {
  if (allocated_) fail<StateError>("parameters", "'{}' declared after allocate", name);
  if (by_name_.contains(name)) fail<StateError>("parameters", "'{}' is declared twice", name);
  Parameter parameter;
  parameter.index = declared();
  parameter.name = std::move(name);
  parameter.shape = shape;
  parameter.decay = shape.dims() > 1;
  parameter.init_std = init_std;
  Parameter& added = (holding_ ? list_ : absent_).emplace_back(std::move(parameter));
  by_name_.emplace(added.name, holding_ ? &added : nullptr);
  return added;
}

void ParameterSet::allocate(Rank& rank, DType dtype, bool gradients) {
  if (allocated_) fail<StateError>("parameters", "allocated twice");
  const DType accumulator = accumulator_of(dtype);
  dtype_ = dtype;
  allocated_ = true;
  int64_t total = 0, accumulators = 0;
  for (const Parameter& p : list_) {
    total += padded(p.shape.elements());
    accumulators += padded(p.shape.elements()) * p.uses;
  }
  values_ = Tensor::zeros(rank, {total}, dtype, Category::parameters);
  masters_ = dtype == accumulator || !gradients ? values_ : Tensor::zeros(rank, {total}, accumulator, Category::optimizer);
  if (gradients) gradients_ = Tensor::zeros(rank, {accumulators}, accumulator, Category::gradients);
  int64_t at = 0, gradient_at = 0;
  for (Parameter& p : list_) {
    const int64_t count = p.shape.elements();
    p.value = values_.slice(0, at, at + count).reshape(p.shape);
    p.master = masters_.slice(0, at, at + count).reshape(p.shape);
    at += padded(count);
    for (int use = 0; gradients && use < p.uses; ++use) {
      p.gradients.push_back(gradients_.slice(0, gradient_at, gradient_at + count).reshape(p.shape));
      gradient_at += padded(count);
    }
  }
}

namespace {

template <class T>
void fill(Rank& rank, const Tensor& tensor, uint64_t seed, uint64_t stream, double std) {
  const int64_t chunk = 4096;
  const auto values = [&](T* to, int64_t begin, int64_t count) {
    rank.pool().parallel_for(chunks_of(count, chunk), [&](int64_t c, int) {
      for (int64_t i = c * chunk; i < std::min(count, (c + 1) * chunk); ++i)
        to[i] = static_cast<T>(std == 0 ? 1.0 : std * random_normal(seed, stream, 0, static_cast<uint64_t>(begin + i)));
    });
  };
  if (tensor.on_host()) return values(tensor.data<T>(), 0, tensor.elements());
  constexpr int64_t piece = int64_t{1} << 22;  // of a host buffer, from which a device takes them
  std::vector<T> buffer(static_cast<size_t>(std::min(piece, tensor.elements())));
  for (int64_t begin = 0; begin < tensor.elements(); begin += piece) {
    const int64_t count = std::min(piece, tensor.elements() - begin);
    values(buffer.data(), begin, count);
    tensor.from_host(begin * static_cast<int64_t>(sizeof(T)), std::as_bytes(std::span(buffer).first(static_cast<size_t>(count))));
  }
}

}  // namespace

void ParameterSet::initialize(Rank& rank, uint64_t seed) {
  if (!rank.computes()) return;
  for (Parameter& p : list_) {
    const uint64_t stream = stream_of(p.name);
    switch (p.master.dtype()) {
      case DType::f64: fill<double>(rank, p.master, seed, stream, p.init_std); break;
      case DType::f32: fill<float>(rank, p.master, seed, stream, p.init_std); break;
      default: fail<StateError>("parameters", "initialize needs masters of f32 or f64; '{}' has {}", p.name, describe(p.master));
    }
  }
  values_from_masters(rank);
}

void ParameterSet::values_from_masters(Rank& rank) {
  if (masters_.shares_storage(values_)) return;
  dispatch(rank, CastArgs{masters_.dtype(), values_.dtype(), values_.elements(), masters_.raw(), values_.raw()});
}

void ParameterSet::zero_gradients(Rank& rank) {
  if (gradients_.defined()) fill_zero(rank, gradients_);
}

void ParameterSet::combine_uses(Rank& rank) {
  for (Parameter& p : list_)
    for (size_t use = 1; use < p.gradients.size(); ++use) accumulate(rank, p.gradients[use], p.gradients[0]);
}

Tensor ParameterSet::gradient_range(size_t first, size_t last) const {
  if (!gradients_.defined() || first >= last || last > list_.size())
    fail<StateError>("parameters", "no gradients of parameters [{}, {}) of {}", first, last, list_.size());
  const auto offset = [&](const Parameter& p) {
    return (static_cast<const char*>(p.gradients[0].raw()) - static_cast<const char*>(gradients_.raw())) / size_of(gradients_.dtype());
  };
  const Parameter& end = list_[last - 1];
  return gradients_.slice(0, offset(list_[first]), offset(end) + end.shape.elements());
}

Parameter& ParameterSet::find(std::string_view name) {
  if (const auto found = by_name_.find(std::string(name)); found != by_name_.end() && found->second != nullptr) return *found->second;
  std::vector<std::string> names;
  for (const Parameter& p : list_) names.push_back(p.name);
  const std::string near = nearest(name, names);
  fail<ConfigError>("parameters", "no parameter '{}'{}", name, near.empty() ? "" : "; nearest: " + near);
}

int64_t ParameterSet::elements() const {
  int64_t total = 0;
  for (const Parameter& p : list_) total += p.shape.elements();
  return total;
}

int64_t ParameterSet::declared_elements() const {
  int64_t total = elements();
  for (const Parameter& p : absent_) total += p.shape.elements();
  return total;
}

const std::string& ParameterSet::declared_name(int64_t index) const {
  for (const auto* list : {&list_, &absent_})
    for (const Parameter& p : *list)
      if (p.index == index) return p.name;
  fail<StateError>("parameters", "no parameter has index {}; there are {}", index, declared());
}

}  // namespace quire
