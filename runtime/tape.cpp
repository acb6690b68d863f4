#include "runtime/tape.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/add.h"
#include "runtime/dispatch.h"

namespace quire {

int Node::save(Tensor tensor, For purpose) {
  saved_.push_back({std::move(tensor), static_cast<uint8_t>(purpose)});
  return static_cast<int>(saved_.size()) - 1;
}

const Tensor& Node::saved(int index) const {
  const Saved& entry = saved_.at(static_cast<size_t>(index));
  if (entry.uses == 0) fail<StateError>(name(), "saved tensor {} was dropped already", index);
  return entry.tensor;
}

void Node::drop(For purpose) {
  for (Saved& entry : saved_) {
    entry.uses &= static_cast<uint8_t>(~static_cast<uint8_t>(purpose));
    if (entry.uses == 0) entry.tensor = Tensor();
  }
}

Value Tape::leaf(Tensor tensor) {
  if (!recording_) return constant(std::move(tensor));
  slots_.emplace_back();
  return {std::move(tensor), static_cast<int>(slots_.size()) - 1};
}

bool Tape::must_record(std::span<const Value> inputs, bool has_parameters) const {
  return recording_ && (has_parameters || std::any_of(inputs.begin(), inputs.end(), [](const Value& v) { return v.needs_gradient(); }));
}

Value Tape::record(std::unique_ptr<Node> node, std::span<const Value> inputs, Tensor output) {
  if (consumed_) fail<StateError>("tape", "an operation after backward; a tape serves one forward and one backward pass");
  Value value = leaf(std::move(output));
  for (const Value& input : inputs) node->inputs_.push_back(input.slot);
  node->output_ = value.slot;
  nodes_.push_back(std::move(node));
  return value;
}

void Tape::add_gradient(int slot, Gradient gradient) {
  if (slot < 0 || !gradient.sum.defined()) return;
  Gradient& place = slots_[static_cast<size_t>(slot)];
  Tensor& sum = place.sum;
  const Tensor& share = gradient.sum;
  if (!sum.defined()) {
    place = std::move(gradient);
    return;
  }
  if (!(sum.shape() == share.shape()) || sum.dtype() != share.dtype()) fail<ShapeError>("backward", "gradients {} and {} of one value", describe(sum), describe(share));
  if (place.own) {
    accumulate(rank_, share, sum);
    return;
  }
  // The first gradient may be shared with another slot (a sum passes its own on), so the sum gets memory of its own.
  Tensor fresh = Tensor::empty(rank_, sum.shape(), sum.dtype());
  dispatch(rank_, SumArgs{sum.dtype(), sum.elements(), sum.raw(), share.raw(), fresh.raw()});
  place = {std::move(fresh), true};
}

Tensor Tape::own_gradient(int slot) const {
  if (slot < 0 || !slots_[static_cast<size_t>(slot)].own) return {};
  return slots_[static_cast<size_t>(slot)].sum;
}

Gradient Tape::take_gradient_so_far(int slot) { return slot < 0 ? Gradient() : std::exchange(slots_[static_cast<size_t>(slot)], Gradient()); }

void Tape::backward(std::span<const Value> outputs, std::span<const Tensor> gradients, BackwardMode mode) {
  if (consumed_) fail<StateError>("backward", "called twice on one tape; there are no second derivatives, and a tape is freed as it is consumed");
  if (!recording_) fail<StateError>("backward", "this tape does not record");
  if (outputs.size() != gradients.size()) fail<ShapeError>("backward", "{} outputs but {} gradients", outputs.size(), gradients.size());
  consumed_ = true;
  mode_ = mode;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!(outputs[i].tensor.shape() == gradients[i].shape()) || outputs[i].tensor.dtype() != gradients[i].dtype())
      fail<ShapeError>("backward", "output {} with gradient {}", describe(outputs[i].tensor), describe(gradients[i]));
    add_gradient(outputs[i].slot, contiguous(rank_, gradients[i]));
  }
  while (!nodes_.empty()) {
    std::unique_ptr<Node> node = std::move(nodes_.back());
    nodes_.pop_back();
    Tensor grad = take_gradient_so_far(node->output_).sum;
    if (!grad.defined()) continue;  // nothing depends on this output
    node->input_gradient(*this, grad);
    node->drop(For::input_gradient);
    if (!node->has_weight_gradient()) continue;
    if (mode == BackwardMode::input_only) {
      if (!node->weight_gradient_reads_output()) grad = {};
      deferred_.push_back({std::move(node), std::move(grad)});
    } else {
      node->weight_gradient(*this, grad);
    }
  }
}

void Tape::backward_weights() {
  if (!consumed_) fail<StateError>("backward_weights", "called before backward");
  for (Deferred& deferred : deferred_) {
    deferred.node->weight_gradient(*this, deferred.grad);
    deferred = {};
  }
  deferred_.clear();
}

Tensor Tape::take_gradient(const Value& leaf) {
  if (leaf.slot < 0) fail<StateError>("tape", "this value needs no gradient");
  return take_gradient_so_far(leaf.slot).sum;
}

int64_t Tape::saved_bytes() const {
  std::map<const void*, int64_t> kept;  // several nodes may save one tensor
  int64_t held = 0;
  const auto keep = [&](const Tensor& tensor) {
    if (!tensor.defined()) return;
    int64_t& bytes = kept[tensor.raw()];
    bytes = std::max(bytes, tensor.bytes());
  };
  const auto keep_node = [&](const Node& node) {
    for (const Node::Saved& entry : node.saved_) keep(entry.tensor);
    held += node.held_bytes();
  };
  for (const auto& node : nodes_) keep_node(*node);
  for (const Deferred& deferred : deferred_) {
    keep_node(*deferred.node);
    keep(deferred.grad);
  }
  for (const auto& [address, bytes] : kept) held += bytes;
  return held;
}

void accumulate(Rank& rank, const Tensor& from, const Tensor& into) {
  dispatch(rank, AddArgs{into.dtype(), into.elements(), from.raw(), into.raw()});
}

namespace {

/// Runs its body again in backward, on a tape of its own that lives until the weight gradients are done.
class RecomputeNode final : public Node {
 public:
  RecomputeNode(const Tensor& input, std::function<Value(Tape&, const Value&)> body) : body_(std::move(body)), input_(save(input, For::input_gradient)) {}
  std::string_view name() const override { return "recompute"; }

  void input_gradient(Tape& tape, const Tensor& grad) override {
    inner_ = std::make_unique<Tape>(tape.rank());
    inner_->set_parameter_hook(tape.parameter_hook());
    const Value input = needs(0) ? inner_->leaf(saved(input_)) : inner_->constant(saved(input_));
    const Value output = body_(*inner_, input);
    // The region goes on with what its input has collected, so that shares are added in the order in which the plain region adds them.
    inner_->add_gradient(input.slot, tape.take_gradient_so_far(this->input(0)));
    inner_->backward(std::span(&output, 1), std::span(&grad, 1), tape.mode());
    tape.add_gradient(this->input(0), inner_->take_gradient_so_far(input.slot));
    body_ = {};  // it has run for the last time: what it refers to may go
  }
  bool has_weight_gradient() const override { return true; }
  bool weight_gradient_reads_output() const override { return false; }
  void weight_gradient(Tape& tape, const Tensor&) override {
    if (tape.mode() == BackwardMode::input_only) inner_->backward_weights();
    inner_.reset();
  }
  int64_t held_bytes() const override { return inner_ ? inner_->saved_bytes() : 0; }

 private:
  std::function<Value(Tape&, const Value&)> body_;
  int input_;
  std::unique_ptr<Tape> inner_;
};

}  // namespace

Value recompute(Tape& tape, const Value& input, std::function<Value(Tape&, const Value&)> body) {
  Tape forward(tape.rank(), false);
  const Value output = body(forward, forward.constant(input.tensor));
  if (!tape.must_record(std::span(&input, 1), true)) return tape.constant(output.tensor);
  return tape.record(std::make_unique<RecomputeNode>(input.tensor, std::move(body)), std::span(&input, 1), output.tensor);
}

}  // namespace quire
