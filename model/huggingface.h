// Models in the layout of Hugging Face (config.json beside safetensors): LlamaForCausalLM and Qwen3ForCausalLM, in and out.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/safetensors.h"
#include "runtime/tensor.h"

namespace quire {

/// What a config.json says.
struct HuggingFaceConfig {
  ModelConfig model;                  ///< resolved
  std::string architecture;           ///< LlamaForCausalLM or Qwen3ForCausalLM
  int64_t bos_id = -1;                ///< -1: not stated
  std::vector<int64_t> eos_ids;       ///< empty: not stated
  std::vector<std::string> warnings;  ///< keys that are unknown or without effect here, one sentence each
};

/// Reads the text of a config.json; `path` is for messages. Every key that changes the function is honoured, or refused by name
/// with the reason (UnsupportedError); wrong values throw DataError. Keys that are unknown go to `warnings`, with the nearest
/// known one.
HuggingFaceConfig parse_huggingface_config(const std::string& path, std::string_view text);
/// The text of a config.json. UnsupportedError where neither architecture can say what `config.model` is (`architecture` is not
/// used).
std::string huggingface_config_text(const HuggingFaceConfig& config, DType dtype);

/// A parameter by both names.
struct HuggingFaceTensor {
  std::string name;              ///< Quire's global name: `layers.0.attention.q.weight`
  std::string huggingface_name;  ///< `model.layers.0.self_attn.q_proj.weight`
  std::vector<int64_t> shape;    ///< the same in both: linear weights are [out, in], rotary pairs are halves of a head
};
/// All parameters of a model, in the order of the data flow (no `head.weight` when tied).
std::vector<HuggingFaceTensor> huggingface_tensors(const ModelConfig& config);

/// An opened model whose tensors were all found, with the right shapes and readable types, and nothing unexpected beside them.
class HuggingFaceModel {
 public:
  const HuggingFaceConfig& config() const { return config_; }
  const std::vector<HuggingFaceTensor>& tensors() const { return tensors_; }
  /// Reads a parameter by Quire's name, converted to `dtype`, into memory for all its elements.
  void read(const std::string& name, DType dtype, void* into) const;

 private:
  friend HuggingFaceModel open_huggingface(FileSystem& fs, const std::string& config_path, const std::string& weights_path);
  HuggingFaceModel(HuggingFaceConfig config, Safetensors weights);
  void check_tied_head();
  HuggingFaceConfig config_;
  Safetensors weights_;
  std::vector<HuggingFaceTensor> tensors_;
};

/// A folder with config.json and model.safetensors or its index.
HuggingFaceModel open_huggingface(FileSystem& fs, const std::string& folder);
/// The files by name; `weights_path` is a .safetensors file or an index.
HuggingFaceModel open_huggingface(FileSystem& fs, const std::string& config_path, const std::string& weights_path);

/// Writes config.json and model.safetensors, each published when durable. `tensors` are named as in Quire, complete, of one
/// dtype. DataError names what is missing, unexpected or of a wrong shape.
void save_huggingface(FileSystem& fs, const std::string& folder, const HuggingFaceConfig& config,
                      std::vector<SafetensorsItem> tensors);

/// A contiguous tensor as an item to be written; it must outlive the writing.
SafetensorsItem safetensors_item(const std::string& name, const Tensor& tensor);

}  // namespace quire
