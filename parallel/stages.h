// Which layers of a model each pipeline stage holds.
#pragma once
#include <string>
#include <vector>

#include "model/model.h"

namespace quire {

/// How a model is cut into stages. Stage s lies on rank s mod `ranks`.
struct PipelineStages {
  std::string schedule = "1f1b";
  int64_t ranks = 1, chunks = 1;
  std::vector<int64_t> boundaries;  ///< [stages + 1]: stage s holds the layers [boundaries[s], boundaries[s + 1]) of `Model::layers()`

  int64_t stages() const { return ranks * chunks; }
  LayerRange layers(int64_t stage) const { return {static_cast<size_t>(boundaries.at(stage)), static_cast<size_t>(boundaries.at(stage + 1))}; }
  /// Those of all stages of one rank.
  std::vector<LayerRange> held_by(int64_t rank) const;
  /// `layers 0-3 | layers 4-7`, for logs.
  std::string describe() const;
};

/// Relative cost of each layer (embedding, decoder layers, norm, head): weights of its matrix products.
std::vector<double> layer_costs(const ModelConfig& model);

/// Cuts by cost or, where `decoder_layers` [stages] is given, by those numbers: the first stage also has the embedding, the last one norm and head.
/// Throws ConfigError for more stages than decoder layers, or numbers that do not fit.
PipelineStages cut_into_stages(const ModelConfig& model, const std::string& schedule, int64_t ranks, int64_t chunks, const std::vector<int64_t>& decoder_layers = {});

}  // namespace quire
