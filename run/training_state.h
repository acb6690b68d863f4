// What a checkpoint of training holds, and how it comes back.
#pragma once
#include <optional>

#include "data/packing.h"
#include "run/trainer.h"

namespace quire {

/// Saves weights, masters, moments and the run's state (config, tokenizer, loader, optimizer) as the checkpoint of the trainer's step.
/// Throws FileError; the checkpoints that were there stay whole.
void save_training_state(FileSystem& fs, const std::string& run_folder, Trainer& trainer, const PackingState& packing, const Corpus& corpus, int64_t keep_last_n);

struct LoadedState {
  bool same_run = false;             ///< false: the run starts at step 0, with the weights of checkpoint.load_path where that is given
  PackingState packing;              ///< where the loader goes on
  std::vector<std::string> damaged;  ///< newer checkpoints that can not be used, one sentence each
};

/// Loads the run folder's newest complete checkpoint, or else the weights of `load_path` ("" for none): a run folder, a
/// checkpoint, or a Hugging Face folder. Nothing where
/// there is neither. Throws DataError, ConfigError where the checkpoint does not fit the model.
std::optional<LoadedState> load_training_state(FileSystem& fs, const std::string& run_folder, const std::string& load_path, Rank& rank, Trainer& trainer);

}  // namespace quire
