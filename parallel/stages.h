// Which layers of a model each pipeline stage holds, which rank holds the stage, and what its ranks do in a step.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "parallel/schedule.h"

namespace quire {

/// How a model is cut into stages. They lie where the schedule has them: the first and the last stage may be on any rank, and a rank may have any number of them.
struct PipelineStages {
  std::string schedule = "1f1b";       ///< a name that `make_schedule` knows; the path of a user's own
  int64_t ranks = 1, chunks = 1;       ///< stages of a rank; of a user's own schedule the most that a rank has
  std::vector<int64_t> boundaries;     ///< [stages + 1]: stage s holds the layers [boundaries[s], boundaries[s + 1]) of `Model::layers()`
  std::vector<int64_t> rank_of_stage;  ///< [stages]
  std::shared_ptr<const PipelineSchedule> given;  ///< a user's own schedule; nullptr: `make_schedule` makes it

  int64_t stages() const { return static_cast<int64_t>(rank_of_stage.size()); }
  int64_t first_rank() const { return rank_of_stage.front(); }
  int64_t last_rank() const { return rank_of_stage.back(); }
  /// Whether a stage gets its input, with the boundaries of its documents, as a message.
  bool receives(int64_t stage) const { return stage > 0 && rank_of_stage.at(static_cast<size_t>(stage - 1)) != rank_of_stage.at(static_cast<size_t>(stage)); }
  LayerRange layers(int64_t stage) const { return {static_cast<size_t>(boundaries.at(stage)), static_cast<size_t>(boundaries.at(stage + 1))}; }
  /// Those of all stages of one rank.
  std::vector<LayerRange> held_by(int64_t rank) const;
  /// The schedule's name, of a user's own the file's without its folders.
  std::string title() const { return schedule.substr(given ? schedule.rfind('/') + 1 : 0); }
  /// `embedding to layer 3 | layer 4 to head`, for logs; with ranks where they do not follow in turn.
  std::string describe() const;
};

/// Relative cost of each layer (embedding, decoder layers, norm, head): weights of its matrix products.
std::vector<double> layer_costs(const ModelConfig& model);

/// Cuts by cost or, where `decoder_layers` [stages] is given, by those numbers: the first stage also has the embedding, the last one norm and head.
/// Throws ConfigError for more stages than decoder layers, or numbers that do not fit.
PipelineStages cut_into_stages(const ModelConfig& model, const std::string& schedule, int64_t ranks, int64_t chunks, const std::vector<int64_t>& decoder_layers = {});
/// For a user's own schedule, whose stages and ranks are taken as they are. Throws ConfigError also where a rank has no stage.
PipelineStages cut_into_stages(const ModelConfig& model, std::shared_ptr<const PipelineSchedule> schedule, const std::vector<int64_t>& decoder_layers = {});

/// What the ranks do in a step of so many microbatches. A user's own schedule: `fit_schedule`.
PipelineSchedule training_schedule(const PipelineStages& stages, int64_t microbatches);

/// A schedule for another number of microbatches. Fewer: the last ones are left out and all else keeps its order, which can be carried out since an action needs nothing but actions
/// of its own microbatch; a step at the end of the data is such. More: the whole, and again. Orders of accumulation stay ascending. Throws ScheduleError where it has none to repeat.
PipelineSchedule fit_schedule(const PipelineSchedule& schedule, int64_t microbatches);

}  // namespace quire
