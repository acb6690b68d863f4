#include "run/tape_memory.h"

#include <algorithm>

namespace quire {

namespace {

constexpr int64_t sample_tokens = 1024;
constexpr double PassBytes::*parts[] = {&PassBytes::forward,       &PassBytes::input,      &PassBytes::forward_more,
                                        &PassBytes::backward_more, &PassBytes::input_more, &PassBytes::weight_more};

struct Passes {
  Rank& rank;
  Model& model;
  Recomputation recomputation;
  LayerRange layers;
  int64_t base = 0;

  MemoryCounters counted() const { return rank.allocator().counters(Category::activations); }
  double now() const { return static_cast<double>(counted().current - base); }
  double most() const { return static_cast<double>(counted().peak - base); }

  /// One forward and backward of a pipeline's microbatch, kept and dropped as `Pipeline` does.
  void run(BackwardMode mode, PassBytes& bytes) {
    const bool first = layers.first == 0, last = layers.last == model.layers().size();
    const int64_t lengths[] = {sample_tokens};
    const std::vector<int32_t> ids(static_cast<size_t>(sample_tokens), 0);
    const Microbatch microbatch = Microbatch::make(rank, ids, ids, Documents::from_lengths(lengths));
    ForwardOptions options;
    options.recomputation = recomputation;
    options.loss_gradient = Tensor::empty(rank, {1}, DType::f64, Category::other);
    const auto stream = [&] { return Tensor::empty(rank, {sample_tokens, model.config().dim}, model.dtype()); };
    base = counted().current;
    rank.allocator().reset_peaks();
    Tape tape(rank);
    Value input = first ? Value{} : tape.leaf(stream());
    Value output = model.forward(tape, input, microbatch, options, layers.first, layers.last);
    bytes.forward = now();
    bytes.forward_more = most() - bytes.forward;
    rank.allocator().reset_peaks();
    {
      Tensor gradient = last ? options.loss_gradient : stream();
      tape.backward(std::span(&output, 1), std::span(&gradient, 1), mode);
      gradient = {};
      if (mode == BackwardMode::full) {
        bytes.backward_more = most() - bytes.forward;
        return;
      }
      if (!first) tape.take_gradient(input);
      input = output = {};
    }
    bytes.input = now();
    bytes.input_more = most() - std::max(bytes.forward, bytes.input);
    rank.allocator().reset_peaks();
    tape.backward_weights();
    bytes.weight_more = most() - bytes.input;
  }
};

}  // namespace

PassBytes PassBytes::operator+(const PassBytes& other) const {
  PassBytes sum = *this;
  for (double PassBytes::*part : parts) sum.*part += other.*part;
  return sum;
}

PassBytes PassBytes::operator*(double factor) const {
  PassBytes product = *this;
  for (double PassBytes::*part : parts) product.*part *= factor;
  return product;
}

TapeMemory::TapeMemory(const ModelConfig& model, DType dtype, Recomputation recomputation) {
  for (size_t count : {0, 1, 2}) {
    ModelConfig small = model;
    small.n_layers = static_cast<int64_t>(std::max<size_t>(count, 1));
    small.sliding_window.clear();
    small.max_seq_len = sample_tokens;
    Rank rank(RankOptions{.device = {DeviceKind::null, 0}});
    Model stages(rank, small, dtype);
    const size_t layers = stages.layers().size();
    for (size_t kind = 0; kind < 4; ++kind) {
      const bool first = kind % 2 == 1, last = kind >= 2;
      if (count == 0 && first == last) continue;  // no such stage: nothing between, or the whole model
      PassBytes& bytes = measured_[kind][count];
      const size_t begin = first ? 0 : last ? layers - 2 - count : 1;
      Passes passes{rank, stages, recomputation, {begin, last ? layers : count + 1}};
      passes.run(BackwardMode::full, bytes);
      passes.run(BackwardMode::input_only, bytes);
      bytes = bytes * (1.0 / static_cast<double>(sample_tokens));
    }
  }
}

PassBytes TapeMemory::of(int64_t decoder_layers, bool first, bool last) const {
  const auto& [none, one, two] = measured_[(first ? 1U : 0U) + (last ? 2U : 0U)];
  if (decoder_layers == 0) return none;
  PassBytes bytes = one + (two + one * -1) * static_cast<double>(decoder_layers - 1);
  for (double PassBytes::*part : parts) bytes.*part = std::max(bytes.*part, 0.0);
  return bytes;
}

}  // namespace quire
