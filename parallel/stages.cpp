#include "parallel/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace quire {
namespace {

/// Whether stage s lies on rank s mod ranks, with as many stages on each rank.
bool lies_in_turn(const PipelineStages& stages) {
  for (int64_t stage = 0; stage < stages.stages(); ++stage)
    if (stages.rank_of_stage[static_cast<size_t>(stage)] != stage % stages.ranks) return false;
  return stages.stages() == stages.ranks * stages.chunks;
}

}  // namespace

std::vector<LayerRange> PipelineStages::held_by(int64_t rank) const {
  std::vector<LayerRange> held;
  for (int64_t stage = 0; stage < stages(); ++stage)
    if (rank_of_stage[static_cast<size_t>(stage)] == rank) held.push_back(layers(stage));
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
    if (!lies_in_turn(*this)) text += fmt::format(" (rank {})", rank_of_stage[static_cast<size_t>(stage)]);
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

namespace {

/// [stages + 1], by cost or as `decoder_layers` has it.
std::vector<int64_t> cut_layers(const ModelConfig& model, int64_t stages, const std::vector<int64_t>& decoder_layers) {
  if (decoder_layers.empty()) return partition_layers(layer_costs(model), stages);
  const int64_t sum = std::accumulate(decoder_layers.begin(), decoder_layers.end(), int64_t{0});
  if (static_cast<int64_t>(decoder_layers.size()) != stages || sum != model.n_layers)
    fail<ConfigError>("pipeline", "distributed.pp_layers has {} entries with {} layers in all; allowed: {} entries (one for each stage) that sum to model.n_layers = {}",
                      decoder_layers.size(), sum, stages, model.n_layers);
  std::vector<int64_t> boundaries{0};
  for (size_t stage = 0; stage < decoder_layers.size(); ++stage) boundaries.push_back(boundaries.back() + decoder_layers[stage] + (stage == 0 ? 1 : 0));
  boundaries.back() += 2;
  for (int64_t stage = 0; stage < stages; ++stage)
    if (boundaries[static_cast<size_t>(stage)] >= boundaries[static_cast<size_t>(stage) + 1])
      fail<ConfigError>("pipeline", "distributed.pp_layers gives stage {} no layer; allowed: 1 or more (0 only for the first and the last stage)", stage);
  return boundaries;
}

}  // namespace

PipelineStages cut_into_stages(const ModelConfig& model, const std::string& schedule, int64_t ranks, int64_t chunks, const std::vector<int64_t>& decoder_layers) {
  const int64_t stages = ranks * chunks;
  if (stages > model.n_layers)
    fail<ConfigError>("pipeline", "{} stages ({} ranks x {} chunks) for {} layers; allowed: at most one stage for each of model.n_layers", stages, ranks, chunks, model.n_layers);
  return {schedule, ranks, chunks, cut_layers(model, stages, decoder_layers), place_stages(schedule, ranks, chunks), nullptr};
}

PipelineStages cut_into_stages(const ModelConfig& model, std::shared_ptr<const PipelineSchedule> schedule, const std::vector<int64_t>& decoder_layers) {
  if (schedule->stages > model.n_layers)
    fail<ConfigError>("pipeline", "{} has {} stages for {} layers; allowed: at most one stage for each of model.n_layers", schedule->name, schedule->stages, model.n_layers);
  std::vector<int64_t> held(static_cast<size_t>(schedule->ranks), 0);
  for (const int64_t rank : schedule->rank_of_stage) ++held.at(static_cast<size_t>(rank));
  if (const auto none = std::find(held.begin(), held.end(), 0); none != held.end())
    fail<ConfigError>("pipeline", "{} has no stage on rank {}; allowed: one or more on each rank", schedule->name, none - held.begin());
  PipelineStages result{schedule->name, schedule->ranks, *std::max_element(held.begin(), held.end()), cut_layers(model, schedule->stages, decoder_layers),
                        schedule->rank_of_stage, nullptr};
  result.given = std::move(schedule);
  return result;
}

PipelineSchedule training_schedule(const PipelineStages& stages, int64_t microbatches) {
  if (stages.given) return fit_schedule(*stages.given, microbatches);
  return make_schedule(stages.schedule, stages.ranks, stages.chunks, microbatches);
}

PipelineSchedule fit_schedule(const PipelineSchedule& schedule, int64_t microbatches) {
  if (microbatches > 0 && schedule.microbatches == 0) fail<ScheduleError>("pipeline", "{} has no microbatch, {} are to be trained", schedule.name, microbatches);
  PipelineSchedule fitted = schedule;
  fitted.microbatches = microbatches;
  for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    std::vector<Action>& actions = fitted.actions[rank];
    actions.clear();
    for (int64_t before = 0; before < microbatches; before += schedule.microbatches)
      for (Action action : schedule.actions[rank])
        if ((action.microbatch += before) < microbatches) actions.push_back(action);
  }
  return fitted;
}

}  // namespace quire
