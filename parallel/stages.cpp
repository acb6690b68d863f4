#include "parallel/stages.h"

#include <fmt/format.h>

#include <numeric>

#include "parallel/schedule.h"

namespace quire {

std::vector<LayerRange> PipelineStages::held_by(int64_t rank) const {
  std::vector<LayerRange> held;
  for (int64_t stage = rank; stage < stages(); stage += ranks) held.push_back(layers(stage));
  return held;
}

std::string PipelineStages::describe() const {
  const int64_t count = boundaries.back();
  const auto name = [&](int64_t layer) {
    return layer == 0 ? std::string("embedding") : layer == count - 2 ? "norm" : layer == count - 1 ? "head" : fmt::format("layer {}", layer - 1);
  };
  std::string text;
  for (int64_t stage = 0; stage < stages(); ++stage) {
    const LayerRange range = layers(stage);
    const std::string first = name(static_cast<int64_t>(range.first)), last = name(static_cast<int64_t>(range.last) - 1);
    text += fmt::format("{}{}", stage == 0 ? "" : " | ", first == last ? first : fmt::format("{} to {}", first, last));
  }
  return text;
}

std::vector<double> layer_costs(const ModelConfig& model) {
  const double queries = static_cast<double>(model.n_heads * model.head_dim), keys = static_cast<double>(model.n_kv_heads * model.head_dim);
  const double dim = static_cast<double>(model.dim);
  std::vector<double> costs(static_cast<size_t>(model.n_layers) + 3, dim * (2 * queries + 2 * keys + 3 * static_cast<double>(model.ffn_hidden_dim)));
  costs.front() = dim;          // rows are copied
  costs[costs.size() - 2] = dim;
  costs.back() = dim * static_cast<double>(model.vocab_size);
  return costs;
}

PipelineStages cut_into_stages(const ModelConfig& model, const std::string& schedule, int64_t ranks, int64_t chunks, const std::vector<int64_t>& decoder_layers) {
  PipelineStages result{schedule, ranks, chunks, {}};
  const int64_t stages = result.stages();
  if (stages > model.n_layers)
    fail<ConfigError>("pipeline", "{} stages ({} ranks x {} chunks) for {} layers; allowed: at most one stage for each of model.n_layers", stages, ranks, chunks, model.n_layers);
  if (decoder_layers.empty()) {
    result.boundaries = partition_layers(layer_costs(model), stages);
    return result;
  }
  const int64_t sum = std::accumulate(decoder_layers.begin(), decoder_layers.end(), int64_t{0});
  if (static_cast<int64_t>(decoder_layers.size()) != stages || sum != model.n_layers)
    fail<ConfigError>("pipeline", "distributed.pp_layers has {} entries with {} layers in all; allowed: {} entries (distributed.pp x pp_chunks) that sum to model.n_layers = {}",
                      decoder_layers.size(), sum, stages, model.n_layers);
  result.boundaries.push_back(0);
  for (size_t stage = 0; stage < decoder_layers.size(); ++stage) result.boundaries.push_back(result.boundaries.back() + decoder_layers[stage] + (stage == 0 ? 1 : 0));
  result.boundaries.back() += 2;
  for (int64_t stage = 0; stage < stages; ++stage)
    if (result.boundaries[static_cast<size_t>(stage)] >= result.boundaries[static_cast<size_t>(stage) + 1])
      fail<ConfigError>("pipeline", "distributed.pp_layers gives stage {} no layer; allowed: 1 or more (0 only for the first and the last stage)", stage);
  return result;
}

}  // namespace quire
