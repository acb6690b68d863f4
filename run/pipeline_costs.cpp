#include "run/pipeline_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/optimizer.h"
#include "parallel/boundary_record.h"

namespace quire {

namespace {

double queries(const ModelConfig& model) { return static_cast<double>(model.n_heads * model.head_dim); }
double keys(const ModelConfig& model) { return static_cast<double>(model.n_kv_heads * model.head_dim); }
double element(DType dtype) { return static_cast<double>(size_of(dtype)); }

/// Weights of a decoder layer's products: those of the attention block, and the others.
double attention_weights(const ModelConfig& model) { return static_cast<double>(model.dim) * (2 * queries(model) + 2 * keys(model)); }
double ffn_weights(const ModelConfig& model) { return 3.0 * static_cast<double>(model.dim * model.ffn_hidden_dim); }

/// Elements per token that norms, rotary positions, activation and sums read and write in a decoder layer.
double forward_elements(const ModelConfig& model) { return 9.0 * static_cast<double>(model.dim) + 2 * (queries(model) + keys(model)) + 3.0 * static_cast<double>(model.ffn_hidden_dim); }
double backward_elements(const ModelConfig& model) { return 12.0 * static_cast<double>(model.dim) + 2 * (queries(model) + keys(model)) + 5.0 * static_cast<double>(model.ffn_hidden_dim); }

}  // namespace

std::string PipelineRates::describe() const {
  const auto flops = [](double rate) { return rate >= 1e12 ? fmt::format("{:.4g} TFLOP/s", rate / 1e12) : fmt::format("{:.4g} GFLOP/s", rate / 1e9); };
  std::string text = fmt::format("products {}, attention {} forward and {} backward", flops(product_flops), flops(attention_flops), flops(attention_backward_flops));
  if (memory_bytes > 0) text += fmt::format(", memory {:.4g} GB/s", memory_bytes / 1e9);
  text += link_bytes > 0 ? fmt::format(", links {:.4g} GB/s after {:.3g} us", link_bytes / 1e9, latency * 1e6) : fmt::format(", links {:.3g} us", latency * 1e6);
  return text + (measured ? " (measured on this machine)" : " (given)");
}

ActionWork& ActionWork::operator+=(const ActionWork& other) {
  products += other.products;
  attention += other.attention;
  attention_backward += other.attention_backward;
  memory_bytes += other.memory_bytes;
  return *this;
}

PipelineCostModel::PipelineCostModel(const ModelConfig& model, DType dtype, Recomputation recomputation, int64_t context)
    : model_(model.resolved()), dtype_(dtype), recomputation_(recomputation), context_(context), memory_(model_, dtype, recomputation) {
  for (int64_t layer = 0; layer < model_.n_layers; ++layer) {
    const int64_t window = model_.window(layer);
    const auto known = std::ranges::find(windows_, window);
    window_of_.push_back(static_cast<size_t>(known - windows_.begin()));
    if (known == windows_.end()) windows_.push_back(window);
  }
}

PipelineCostModel::PipelineCostModel(const Config& config)
    : PipelineCostModel(config.model, config.dtype(), recomputation_from(config.train.activation_checkpointing), config.distributed.cp) {}

MicrobatchShape PipelineCostModel::shape_of(const Documents& microbatch) const {
  const auto ranks = static_cast<double>(context_);
  MicrobatchShape shape{static_cast<double>(microbatch.tokens()) / ranks, {}};
  for (const int64_t window : windows_) shape.pairs.push_back(static_cast<double>(microbatch.useful_pairs(window)) / ranks);
  return shape;
}

PipelineCostModel::Held PipelineCostModel::held(const PipelineStages& stages, int64_t stage) const {
  const LayerRange range = stages.layers(stage);
  Held held{std::vector<double>(windows_.size(), 0), 0, range.first == 0, range.last == static_cast<size_t>(model_.n_layers) + 3};
  for (size_t layer = std::max<size_t>(range.first, 1); layer < std::min(range.last, static_cast<size_t>(model_.n_layers) + 1); ++layer) {
    ++held.layers[window_of_[layer - 1]];
    ++held.decoder_layers;
  }
  return held;
}

ActionWork PipelineCostModel::decoder_forward(const Held& held, const MicrobatchShape& microbatch) const {
  ActionWork work;
  const auto layers = static_cast<double>(held.decoder_layers);
  work.products = 2 * (attention_weights(model_) + ffn_weights(model_)) * microbatch.tokens * layers;
  for (size_t w = 0; w < windows_.size(); ++w) work.attention += 4 * queries(model_) * microbatch.pairs[w] * held.layers[w];
  work.memory_bytes = element(dtype_) * forward_elements(model_) * microbatch.tokens * layers;
  return work;
}

ActionWork PipelineCostModel::forward_again(const Held& held, const MicrobatchShape& microbatch) const {
  if (recomputation_ == Recomputation::none) return {};
  ActionWork work = decoder_forward(held, microbatch);
  if (recomputation_ == Recomputation::full) return work;
  const auto layers = static_cast<double>(held.decoder_layers);
  work.products = 2 * attention_weights(model_) * microbatch.tokens * layers;
  work.memory_bytes = element(dtype_) * (2.0 * static_cast<double>(model_.dim) + 2 * (queries(model_) + keys(model_))) * microbatch.tokens * layers;
  return work;
}

ActionWork PipelineCostModel::work(const PipelineStages& stages, int64_t stage, ActionKind kind, const MicrobatchShape& microbatch) const {
  const Held held = this->held(stages, stage);
  const auto layers = static_cast<double>(held.decoder_layers);
  const double dim = static_cast<double>(model_.dim), products = 2 * (attention_weights(model_) + ffn_weights(model_)) * microbatch.tokens * layers;
  ActionWork work;
  if (kind == ActionKind::forward) {
    work = decoder_forward(held, microbatch);
    if (held.first) work.memory_bytes += 2 * element(dtype_) * dim * microbatch.tokens;
    if (held.last) {
      // Logits, their gradients by the input and by the weights, and about four passes over the logits.
      const auto vocabulary = static_cast<double>(model_.vocab_size);
      work.products += 6 * dim * vocabulary * microbatch.tokens;
      work.memory_bytes += (4 * vocabulary * static_cast<double>(size_of(accumulator_of(dtype_))) + 2 * element(dtype_) * dim) * microbatch.tokens;
    }
    return work;
  }
  if (kind != ActionKind::backward_weight) {
    work.products += products;
    for (size_t w = 0; w < windows_.size(); ++w) work.attention_backward += 10 * queries(model_) * microbatch.pairs[w] * held.layers[w];
    work.memory_bytes += element(dtype_) * backward_elements(model_) * microbatch.tokens * layers;
    work += forward_again(held, microbatch);
    if (held.first) work.memory_bytes += 3 * element(dtype_) * dim * microbatch.tokens;
    if (held.last) work.memory_bytes += 3 * element(dtype_) * dim * microbatch.tokens;
  }
  if (kind != ActionKind::backward_input) work.products += products;
  return work;
}

double PipelineCostModel::seconds(const ActionWork& work, const PipelineRates& rates) const {
  return work.products / rates.product_flops + work.attention / rates.attention_flops + work.attention_backward / rates.attention_backward_flops +
         (rates.memory_bytes > 0 ? work.memory_bytes / rates.memory_bytes : 0);
}

PassBytes PipelineCostModel::bytes_of(const PipelineStages& stages, int64_t stage) const {
  const Held held = this->held(stages, stage);
  return memory_.of(held.decoder_layers, held.first, held.last);
}

int64_t PipelineCostModel::message_bytes(const MicrobatchShape& microbatch) const {
  const auto tokens = static_cast<int64_t>(std::ceil(microbatch.tokens));
  return tokens * model_.dim * size_of(dtype_) + 4 * (boundary_header_words + (context_ > 1 ? 2 : 1) * tokens);
}

ScheduleCosts PipelineCostModel::costs(const PipelineStages& stages, std::span<const MicrobatchShape> microbatches, const PipelineRates& rates) const {
  ScheduleCosts costs;
  costs.stages = stages.stages();
  costs.microbatches = static_cast<int64_t>(microbatches.size());
  costs.latency = rates.latency;
  costs.bytes_per_second = rates.link_bytes;
  for (int64_t stage = 0; stage < stages.stages(); ++stage) {
    const PassBytes bytes = bytes_of(stages, stage);
    for (const MicrobatchShape& microbatch : microbatches) {
      std::array<double, 4> seconds{};
      for (const ActionKind kind : {ActionKind::forward, ActionKind::backward, ActionKind::backward_input, ActionKind::backward_weight})
        seconds[static_cast<size_t>(kind)] = this->seconds(work(stages, stage, kind, microbatch), rates);
      costs.seconds.push_back(seconds);
      costs.forward_bytes.push_back(std::llround(bytes.forward * microbatch.tokens));
      costs.input_bytes.push_back(std::llround(bytes.input * microbatch.tokens));
    }
  }
  for (const MicrobatchShape& microbatch : microbatches) costs.message_bytes.push_back(message_bytes(microbatch));
  return costs;
}

std::vector<RankActivations> rank_activations(const PipelineCostModel& model, const PipelineStages& stages, std::span<const MicrobatchShape> microbatches,
                                              const PipelineSchedule& schedule) {
  double tokens = 0;
  for (const MicrobatchShape& microbatch : microbatches) tokens = std::max(tokens, microbatch.tokens);
  const double stream = tokens * static_cast<double>(model.model().dim * size_of(model.dtype()));
  std::vector<PassBytes> bytes;
  for (int64_t stage = 0; stage < stages.stages(); ++stage) bytes.push_back(model.bytes_of(stages, stage));
  std::vector<RankActivations> ranks(static_cast<size_t>(schedule.ranks));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    double now = 0, kept = 0, most = 0;
    for (const Action& action : schedule.actions[rank]) {
      const PassBytes& pass = bytes[static_cast<size_t>(action.stage)];
      const double size = microbatches[static_cast<size_t>(action.microbatch)].tokens;
      switch (action.kind) {
        case ActionKind::forward:
          most = std::max(most, now + size * (pass.forward + pass.forward_more));
          now += size * pass.forward;
          break;
        case ActionKind::backward:
          most = std::max(most, now + size * pass.backward_more);
          now -= size * pass.forward;
          break;
        case ActionKind::backward_input:
          most = std::max(most, now + size * (std::max(pass.input - pass.forward, 0.0) + pass.input_more));
          now += size * (pass.input - pass.forward);
          break;
        case ActionKind::backward_weight:
          most = std::max(most, now + size * pass.weight_more);
          now -= size * pass.input;
          break;
      }
      kept = std::max(kept, now);
    }
    bool forward_in = false, backward_in = false;
    for (int64_t stage = 0; stage < stages.stages(); ++stage) {
      if (stages.rank_of_stage[static_cast<size_t>(stage)] != static_cast<int64_t>(rank)) continue;
      forward_in = forward_in || stages.receives(stage);
      backward_in = backward_in || (stage + 1 < stages.stages() && stages.receives(stage + 1));
    }
    ranks[rank] = {std::llround(kept), std::llround(std::max(most, kept) - kept), std::llround((forward_in + backward_in) * stream)};
  }
  return ranks;
}

PipelineRankState rank_state(const ModelConfig& model, DType dtype, const PipelineStages& stages, int64_t rank_number) {
  Rank rank(RankOptions{.device = {DeviceKind::null, 0}});
  ModelConfig without_positions = model;
  without_positions.max_seq_len = 1;  // a table of rotary positions would be computed; it is none of this
  Model part(rank, without_positions, dtype, true, stages.held_by(rank_number));
  const AdamW optimizer(rank, part.parameters(), {});
  const auto bytes = [&](Category category) { return rank.allocator().counters(category).current; };
  return {part.parameters().elements(), bytes(Category::parameters), bytes(Category::gradients), bytes(Category::optimizer)};
}

}  // namespace quire
