#include "model/huggingface.h"

#include <algorithm>
#include <map>

#include "runtime/error.h"

namespace quire {
namespace {

constexpr const char* head_name = "lm_head.weight";
constexpr const char* embedding_name = "model.embed_tokens.weight";

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += fmt::format("{}{}", text.empty() ? "" : ",", size);
  return fmt::format("({})", text);
}

bool is_readable(const std::string& dtype) { return dtype == "F64" || dtype == "F32" || dtype == "F16" || dtype == "BF16"; }

/// Tables of rotary frequencies that old versions stored: they follow from rope_theta.
bool is_legacy(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

}  // namespace

std::vector<HuggingFaceTensor> huggingface_tensors(const ModelConfig& config) {
  const ModelConfig model = config.resolved();
  const int64_t dim = model.dim, ffn = model.ffn_hidden_dim, head = model.head_dim;
  const int64_t queries = model.n_heads * head, keys = model.n_kv_heads * head;
  std::vector<HuggingFaceTensor> tensors = {{"embedding.weight", embedding_name, {model.vocab_size, dim}}};
  for (int64_t i = 0; i < model.n_layers; ++i) {
    const auto add = [&](const char* name, const char* huggingface_name, std::vector<int64_t> shape) {
      tensors.push_back({fmt::format("layers.{}.{}.weight", i, name),
                         fmt::format("model.layers.{}.{}.weight", i, huggingface_name), std::move(shape)});
    };
    add("attention_norm", "input_layernorm", {dim});
    add("attention.q", "self_attn.q_proj", {queries, dim});
    add("attention.k", "self_attn.k_proj", {keys, dim});
    add("attention.v", "self_attn.v_proj", {keys, dim});
    if (model.qk_norm) {
      add("attention.q_norm", "self_attn.q_norm", {head});
      add("attention.k_norm", "self_attn.k_norm", {head});
    }
    add("attention.o", "self_attn.o_proj", {dim, queries});
    add("ffn_norm", "post_attention_layernorm", {dim});
    add("ffn.gate", "mlp.gate_proj", {ffn, dim});
    add("ffn.up", "mlp.up_proj", {ffn, dim});
    add("ffn.down", "mlp.down_proj", {dim, ffn});
  }
  tensors.push_back({"norm.weight", "model.norm.weight", {dim}});
  if (!model.tie_embeddings) tensors.push_back({"head.weight", head_name, {model.vocab_size, dim}});
  return tensors;
}

HuggingFaceModel::HuggingFaceModel(HuggingFaceConfig config, Safetensors weights)
    : config_(std::move(config)), weights_(std::move(weights)), tensors_(huggingface_tensors(config_.model)) {
  std::map<std::string, const HuggingFaceTensor*> expected;
  for (const HuggingFaceTensor& tensor : tensors_) expected[tensor.huggingface_name] = &tensor;
  for (const std::string& name : weights_.names())
    if (!expected.contains(name) && !is_legacy(name) && !(config_.model.tie_embeddings && name == head_name))
      fail<DataError>(
          "huggingface",
          "'{}' holds tensor '{}', which a {} of this config does not have: the config and the weights do not belong together",
          weights_.path_of(name), name, config_.architecture);
  for (const HuggingFaceTensor& tensor : tensors_) {
    const SafetensorsEntry* entry = weights_.find(tensor.huggingface_name);
    if (!entry)
      fail<DataError>("huggingface", "'{}' lacks tensor '{}'{}", weights_.path(), tensor.huggingface_name,
                      tensor.huggingface_name == head_name ? ", and tie_word_embeddings is not true" : "");
    if (entry->shape != tensor.shape)
      fail<DataError>("huggingface", "'{}': tensor '{}' is {}; the config says {}", weights_.path_of(entry->name), entry->name,
                      shape_text(entry->shape), shape_text(tensor.shape));
    if (!is_readable(entry->dtype))
      fail<UnsupportedError>("huggingface", "'{}': tensor '{}' is stored as {}; supported: F64, F32, F16, BF16",
                             weights_.path_of(entry->name), entry->name, entry->dtype);
  }
  if (config_.model.tie_embeddings && weights_.find(head_name)) check_tied_head();
}

/// Tied models are sometimes saved with a copy of the embedding as the head; tied in the config is what counts.
void HuggingFaceModel::check_tied_head() {
  const SafetensorsEntry &head = weights_.at(head_name), &embedding = weights_.at(embedding_name);
  bool equal = head.dtype == embedding.dtype && head.shape == embedding.shape;
  constexpr int64_t piece = 1 << 20;
  std::vector<std::byte> a, b;
  for (int64_t begin = 0; equal && begin < head.bytes; begin += piece) {
    a.resize(static_cast<size_t>(std::min(piece, head.bytes - begin)));
    b.resize(a.size());
    weights_.read_bytes(head_name, begin, a);
    weights_.read_bytes(embedding_name, begin, b);
    equal = a == b;
  }
  if (!equal)
    config_.warnings.push_back(fmt::format("'{}' holds {} that differs from {}; it is ignored, because tie_word_embeddings is true",
                                           weights_.path_of(head_name), head_name, embedding_name));
}

void HuggingFaceModel::read(const std::string& name, DType dtype, void* into) const {
  for (const HuggingFaceTensor& tensor : tensors_)
    if (tensor.name == name) return weights_.read(tensor.huggingface_name, dtype, into);
  std::vector<std::string> known;
  for (const HuggingFaceTensor& tensor : tensors_) known.push_back(tensor.name);
  const std::string near = nearest(name, known);
  fail<DataError>("huggingface", "'{}' has no parameter '{}'{}", weights_.path(), name,
                  near.empty() ? "" : fmt::format("; the nearest is '{}'", near));
}

HuggingFaceModel open_huggingface(FileSystem& fs, const std::string& config_path, const std::string& weights_path) {
  return HuggingFaceModel(parse_huggingface_config(config_path, read_text(fs, config_path)), Safetensors(fs, weights_path));
}

HuggingFaceModel open_huggingface(FileSystem& fs, const std::string& folder) {
  return open_huggingface(fs, folder + "/config.json", folder);
}

SafetensorsItem safetensors_item(const std::string& name, const Tensor& tensor) {
  if (!tensor.is_contiguous()) fail<ShapeError>("safetensors", "'{}' {} is not contiguous", name, describe(tensor));
  if (!tensor.on_host()) fail<StateError>("safetensors", "'{}' lies on {}; allowed: host memory", name, to_string(tensor.device()));
  return {name, tensor.dtype(), {tensor.shape().begin(), tensor.shape().end()}, tensor.raw()};
}

void save_huggingface(FileSystem& fs, const std::string& folder, const HuggingFaceConfig& config,
                      std::vector<SafetensorsItem> tensors) {
  const std::vector<HuggingFaceTensor> expected = huggingface_tensors(config.model);
  std::map<std::string, SafetensorsItem> given;
  for (SafetensorsItem& tensor : tensors) {
    const std::string name = tensor.name;
    if (!given.emplace(name, std::move(tensor)).second) fail<DataError>("huggingface", "parameter '{}' is given twice", name);
  }
  std::vector<SafetensorsItem> items;
  for (const HuggingFaceTensor& tensor : expected) {
    const auto found = given.find(tensor.name);
    if (found == given.end()) fail<DataError>("huggingface", "parameter '{}' is missing and the model can not be saved", tensor.name);
    SafetensorsItem item = std::move(found->second);
    given.erase(found);
    if (item.shape != tensor.shape)
      fail<DataError>("huggingface", "parameter '{}' is {}; the config says {}", tensor.name, shape_text(item.shape),
                      shape_text(tensor.shape));
    if (!items.empty() && item.dtype != items[0].dtype)
      fail<DTypeError>("huggingface", "parameter '{}' is {}, others are {}: one dtype is needed", tensor.name,
                       safetensors_name(item.dtype), safetensors_name(items[0].dtype));
    item.name = tensor.huggingface_name;
    items.push_back(std::move(item));
  }
  if (!given.empty())
    fail<DataError>("huggingface", "parameter '{}' does not belong to a model of this config", given.begin()->first);
  const std::string text = huggingface_config_text(config, items[0].dtype);

  if (fs.exists(folder + "/model.safetensors.index.json"))
    fail<DataError>("huggingface", "'{}' holds a model in shards (model.safetensors.index.json); save to another folder", folder);
  fs.make_directories(folder);
  const std::string weights = folder + "/model.safetensors", beside = weights + ".writing";
  try {
    write_safetensors(fs, beside, items, {{"format", "pt"}});
  } catch (const FileError&) {
    try {
      fs.remove_all(beside);
    } catch (const FileError&) {  // the first reason is the one to tell
    }
    throw;
  }
  fs.rename(beside, weights);
  write_atomically(fs, folder + "/config.json", text);
}

}  // namespace quire
