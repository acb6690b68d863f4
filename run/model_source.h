// Trained weights from wherever they are: a run folder, a checkpoint, or a model in the layout of Hugging Face.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"
#include "run/config.h"
#include "runtime/file.h"

namespace quire {

/// What is known of a model before its weights are read.
struct ModelInfo {
  ModelConfig model;                  ///< resolved
  DType dtype = DType::f32;           ///< the one it was trained in; f32 where not known
  std::string origin;                 ///< for people: "step 700 of runs/fortunes"
  std::string tokenizer;              ///< name for `make_tokenizer`; "" where none is known
  std::optional<int32_t> bos;
  std::vector<int32_t> eos;           ///< tokens that end a text
  int64_t step = -1;                  ///< of a checkpoint
  std::vector<std::string> warnings;  ///< keys without effect, damaged newer checkpoints
};

class ModelSource {
 public:
  virtual ~ModelSource() = default;
  const ModelInfo& info() const { return info_; }
  /// Fills every parameter (masters too, where the model has them), converted to the model's dtype. Throws DataError, and ConfigError
  /// naming the first difference where the model has another shape.
  void load(Rank& rank, Model& model);

 protected:
  /// One parameter's global values, of any floating dtype; `master`: the more precise ones where they are kept.
  virtual Tensor read(Rank& rank, const Parameter& parameter, DType wanted, bool master) = 0;
  ModelInfo info_;
};

/// `path`: a run folder (its newest complete checkpoint), a checkpoint folder, or a folder with config.json and safetensors. With `weights`, a
/// .safetensors file or an index, `path` is the config.json that belongs to it, whatever its name. Throws FileError, DataError, ConfigError.
std::unique_ptr<ModelSource> open_model_source(FileSystem& fs, const std::string& path, const std::string& weights = {});

/// Whether a run folder holds checkpoints, be they damaged.
bool has_checkpoint(FileSystem& fs, const std::string& run_folder);

}  // namespace quire
