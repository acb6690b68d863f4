// The trained tensors of a model, in arenas that can be sliced for sharding and for buckets.
#pragma once
#include <deque>
#include <string_view>
#include <unordered_map>

#include "runtime/tape.h"

namespace quire {

/// Parameters in canonical order (the order of sums and of files). Addresses stay valid. Iteration, size and elements are about those held here; a pipeline
/// stage declares all of its model's parameters and holds its own.
class ParameterSet {
 public:
  ParameterSet() = default;
  ParameterSet(ParameterSet&&) = default;
  ParameterSet& operator=(ParameterSet&&) = default;

  /// Declares one; throws StateError for a name that is there already, or after `allocate`.
  Parameter& add(std::string name, const Shape& shape, double init_std);

  /// Whether parameters added from now on are held here (the default) or only declared: known by name, shape and index, without memory.
  void hold(bool held) { holding_ = held; }

  /// Lays all held values (dtype) and, unless `gradients` is false, masters and gradients (accumulator of dtype) out in one arena each.
  void allocate(Rank& rank, DType dtype, bool gradients = true);
  /// Normal values with the parameter's init_std (ones where it is 0), from (seed, global name, index) alone.
  void initialize(Rank& rank, uint64_t seed);
  /// Rounds masters into values (bf16; nothing to do otherwise).
  void values_from_masters(Rank& rank);
  void zero_gradients(Rank& rank);
  /// Adds the accumulators of further uses to the first, in order of use: afterwards gradients[0] is the gradient.
  void combine_uses(Rank& rank);

  /// Slice [n] of the gradient arena with gradients[0] of the parameters [first, last), one at least, and what lies between them: zeros to the next cache line, and
  /// the gradients of further uses of all but the last. Throws StateError where there is none.
  Tensor gradient_range(size_t first, size_t last) const;

  size_t size() const { return list_.size(); }
  Parameter& operator[](size_t i) { return list_[i]; }
  const Parameter& operator[](size_t i) const { return list_[i]; }
  auto begin() { return list_.begin(); }
  auto end() { return list_.end(); }
  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }
  /// Throws ConfigError with the nearest name.
  Parameter& find(std::string_view name);
  int64_t elements() const;
  /// Of the whole model.
  int64_t declared() const { return static_cast<int64_t>(list_.size() + absent_.size()); }
  int64_t declared_elements() const;
  /// Name of the parameter with this index; throws StateError for an index that there is not.
  const std::string& declared_name(int64_t index) const;
  DType dtype() const { return dtype_; }

 private:
  std::deque<Parameter> list_, absent_;
  std::unordered_map<std::string, Parameter*> by_name_;  ///< null for one that is only declared; models may have a hundred thousand
  bool holding_ = true;
  DType dtype_ = DType::f32;
  bool allocated_ = false;
  Tensor values_, masters_, gradients_;
};

}  // namespace quire
