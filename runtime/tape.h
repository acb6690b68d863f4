// Autograd: an eager tape of coarse nodes. A tape is an object, one per microbatch in flight; nothing is global or thread-local.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tensor.h"

namespace quire {

class Tape;
class Node;

/// A tensor on a tape. `slot` names the place where its gradient is collected; -1 where none is needed.
struct Value {
  Tensor tensor;
  int slot = -1;
  bool needs_gradient() const { return slot >= 0; }
};

/// What has been collected of a value's gradient.
struct Gradient {
  Tensor sum;        ///< undefined: nothing yet
  bool own = false;  ///< made for this one place: may be added into
  Gradient() = default;
  Gradient(Tensor tensor, bool is_own = false) : sum(std::move(tensor)), own(is_own) {}
};

/// What a saved tensor is kept for; it is dropped when the last of these is done.
enum class For : uint8_t { input_gradient = 1, weight_gradient = 2, both = 3 };

enum class BackwardMode : uint8_t {
  full,        ///< input and weight gradients
  input_only,  ///< input gradients now; `backward_weights()` later (matrix products defer, everything else is finished now)
};

/// A trained tensor. Its gradient has one accumulator per use, so that the order of additions is the same in every layout.
struct Parameter {
  std::string name;                ///< global name, the same in every layout
  Shape shape;
  bool decay = true;               ///< weight decay applies (matrices)
  double init_std = 0;             ///< of the normal initial values; 0 gives ones
  int uses = 1;
  int64_t index = 0;               ///< among all parameters of the model, held here or not: the order of sums and of files
  bool counted = true;             ///< this rank speaks for it: a copy that another pipeline stage also holds enters norms and files once
  Tensor value;                    ///< what kernels read (f64, f32 or bf16)
  Tensor master;                   ///< f32 copy that the optimizer updates (bf16 models), else the same tensor as `value`
  std::vector<Tensor> gradients;   ///< per use, in the accumulator type of `value`
};

/// One operation on the tape.
///
/// Forward code computes its output, saves what backward needs with `save`, and hands the node to `Tape::record`. Backward calls
/// `input_gradient` once the output's gradient is complete, and, where `has_weight_gradient()`, `weight_gradient` right after it
/// (full) or from `backward_weights` (input_only). Both must leave the same bits however they are called.
class Node {
 public:
  virtual ~Node() = default;
  virtual std::string_view name() const = 0;
  /// Adds to the inputs' gradients, by `tape.add_gradient(input(i), dx)`, from `grad`, the gradient of the output.
  virtual void input_gradient(Tape& tape, const Tensor& grad) = 0;
  virtual bool has_weight_gradient() const { return false; }
  /// Adds to the parameters' gradients.
  virtual void weight_gradient(Tape&, const Tensor&) {}
  /// Whether `weight_gradient` reads the output's gradient; where it does not, a deferred node gets none and the memory is free.
  virtual bool weight_gradient_reads_output() const { return true; }
  /// Bytes kept for backward besides what was given to `save`.
  virtual int64_t held_bytes() const { return 0; }

 protected:
  /// Keeps a tensor until its purpose is done; returns its index for `saved`.
  int save(Tensor tensor, For purpose);
  /// Throws StateError once dropped.
  const Tensor& saved(int index) const;
  bool needs(int input) const { return inputs_[static_cast<size_t>(input)] >= 0; }
  int input(int i) const { return inputs_[static_cast<size_t>(i)]; }

 private:
  friend class Tape;
  struct Saved { Tensor tensor; uint8_t uses; };
  void drop(For purpose);
  std::vector<Saved> saved_;
  std::vector<int> inputs_;
  int output_ = -1;
};

class Tape {
 public:
  /// Without recording (evaluation, generation, the first pass of a recomputed region) nothing is saved.
  explicit Tape(Rank& rank, bool recording = true) : rank_(rank), recording_(recording) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Rank& rank() { return rank_; }
  bool recording() const { return recording_; }

  /// A value from outside whose gradient may be asked for with `gradient` after backward.
  Value leaf(Tensor tensor);
  /// A value that needs no gradient.
  Value constant(Tensor tensor) { return {std::move(tensor), -1}; }

  /// True when a node with these inputs must be recorded: one of them needs a gradient, or `has_parameters`.
  bool must_record(std::span<const Value> inputs, bool has_parameters) const;
  /// Puts `node` on the tape and returns its output as a value.
  Value record(std::unique_ptr<Node> node, std::span<const Value> inputs, Tensor output);

  /// Runs backward once, in reverse order of recording, iteratively. `gradients[i]` has the shape and dtype of `outputs[i]`.
  /// An output may be given several times: its gradients are added. Throws StateError when called twice (there are no second derivatives), ShapeError
  /// when gradients do not fit.
  void backward(std::span<const Value> outputs, std::span<const Tensor> gradients, BackwardMode mode = BackwardMode::full);
  /// The deferred weight gradients of an `input_only` backward, in the order in which a full backward would have computed them.
  void backward_weights();
  /// Gradient of a leaf after backward: undefined where nothing reached it. Moves it out.
  Tensor take_gradient(const Value& leaf);

  /// For nodes: adds `gradient` (contiguous) into a slot (kept by reference when it is the first; -1, and an undefined sum, is ignored).
  void add_gradient(int slot, Gradient gradient);
  /// For nodes that can add their share themselves, in the pass that computes it: the slot's sum where it may be added into, else undefined.
  /// Whether it may depends on the graph alone, never on who happens to hold memory: bits may depend on it.
  Tensor own_gradient(int slot) const;
  /// For nodes that compute their share plus the sum: moves it out; what they make of it is given back by `add_gradient`.
  Gradient take_gradient_so_far(int slot);
  /// For nodes: tells that use `use` of a parameter has got this tape's contribution; calls the hook.
  void parameter_done(Parameter& parameter, int use) { if (parameter_hook_) parameter_hook_(parameter, use); }
  void set_parameter_hook(std::function<void(Parameter&, int use)> hook) { parameter_hook_ = std::move(hook); }
  const std::function<void(Parameter&, int)>& parameter_hook() const { return parameter_hook_; }

  /// How `backward` was called; for nodes that hold a tape of their own.
  BackwardMode mode() const { return mode_; }

  /// Bytes now kept by nodes for backward; memory that several nodes keep counts once.
  int64_t saved_bytes() const;
  size_t nodes() const { return nodes_.size(); }

 private:
  Rank& rank_;
  bool recording_, consumed_ = false;
  BackwardMode mode_ = BackwardMode::full;
  struct Deferred { std::unique_ptr<Node> node; Tensor grad; };
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Gradient> slots_;
  std::vector<Deferred> deferred_;
  std::function<void(Parameter&, int)> parameter_hook_;
};

/// A region that keeps only its input in forward and computes itself again in backward: once, with the input gradient, keeping only
/// what the weight gradient needs where that one is deferred. `body` must be a pure function of (tape, input); the bits are those of the plain region.
Value recompute(Tape& tape, const Value& input, std::function<Value(Tape&, const Value&)> body);

/// `into += from`, equal shape and dtype.
void accumulate(Rank& rank, const Tensor& from, const Tensor& into);

}  // namespace quire
