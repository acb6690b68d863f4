#include "run/model_source.h"

#include <nlohmann/json.hpp>

#include "model/huggingface.h"
#include "model/strict_json.h"
#include "ops/elementwise.h"
#include "parallel/checkpoint.h"
#include "run/config_schema.h"

namespace quire {

namespace {

using nlohmann::json;

class HuggingFaceSource final : public ModelSource {
 public:
  explicit HuggingFaceSource(HuggingFaceModel model, const std::string& path) : model_(std::move(model)) {
    const HuggingFaceConfig& config = model_.config();
    info_.model = config.model;
    info_.origin = fmt::format("{} in {}", config.architecture, path);
    if (config.bos_id >= 0) info_.bos = static_cast<int32_t>(config.bos_id);
    for (const int64_t id : config.eos_ids) info_.eos.push_back(static_cast<int32_t>(id));
    info_.warnings = config.warnings;
  }

 private:
  Tensor read(Rank& rank, const Parameter& parameter, DType wanted, bool) override {
    const Tensor result = Tensor::empty(rank, parameter.shape, wanted, Category::other);
    if (result.on_host()) {
      model_.read(parameter.name, wanted, result.raw());
    } else {
      std::vector<std::byte> values(static_cast<size_t>(result.bytes()));
      model_.read(parameter.name, wanted, values.data());
      result.from_host(0, values);
    }
    return result;
  }
  HuggingFaceModel model_;
};

/// A value of state.json of the right type, or DataError.
template <class T>
T state_value(const json& state, const std::string& path, const char* key) {
  try {
    return state.at(key).get<T>();
  } catch (const json::exception& error) {
    fail<DataError>("checkpoint", "{}: '{}' is missing or of a wrong type ({})", path, key, error.what());
  }
}

class CheckpointSource final : public ModelSource {
 public:
  CheckpointSource(FileSystem& fs, const std::string& folder, const std::string& shown) : reader_(fs, folder, CheckpointCheck::sizes) {
    const std::string path = folder + "/state.json";
    const json state = parse_strict_json("checkpoint", path, reader_.state());
    if (!state.is_object() || !state.contains("format") || state["format"] != 1)
      fail<DataError>("checkpoint", "{} is of no format known here; allowed: a checkpoint of training, \"format\": 1", path);
    const Config config = parse_stored_config(state_value<std::string>(state, path, "config"), path);
    info_.model = config.model;
    info_.dtype = config.dtype();
    info_.step = reader_.step();
    info_.origin = fmt::format("step {} of {}", info_.step, shown);
    info_.tokenizer = state_value<std::string>(state, path, "tokenizer");
    if (!state.value("bos", json()).is_null()) info_.bos = state_value<int32_t>(state, path, "bos");
    info_.eos = {state_value<int32_t>(state, path, "eos")};
    for (const CheckpointReader::Entry& entry : reader_.entries()) dtypes_[{entry.kind, entry.name}] = entry.dtype;
  }
  void add_warnings(const std::vector<std::string>& warnings) { info_.warnings.insert(info_.warnings.end(), warnings.begin(), warnings.end()); }

 private:
  Tensor read(Rank& rank, const Parameter& parameter, DType wanted, bool master) override {
    const std::string kind = master && reader_.contains("master", parameter.name) ? "master" : "parameter";
    const auto found = dtypes_.find({kind, parameter.name});
    const Tensor result = Tensor::empty(rank, parameter.shape, found == dtypes_.end() ? wanted : found->second, Category::other);
    reader_.read(kind, parameter.name, result);
    return cast(rank, result, wanted);
  }
  CheckpointReader reader_;
  std::map<std::pair<std::string, std::string>, DType> dtypes_;
};

/// Throws ConfigError naming the first size or switch that differs. What changes no tensor's shape, such as the attention backend, may differ.
void check_same_shape(const ModelConfig& stored, const ModelConfig& wanted, const std::string& origin) {
  const auto same = [&](const char* key, auto a, auto b) {
    if (a != b) fail<ConfigError>("model", "model.{} is {}, but the weights ({}) have {}; set it alike", key, b, origin, a);
  };
  same("dim", stored.dim, wanted.dim);
  same("n_layers", stored.n_layers, wanted.n_layers);
  same("n_heads", stored.n_heads, wanted.n_heads);
  same("n_kv_heads", stored.n_kv_heads, wanted.n_kv_heads);
  same("head_dim", stored.head_dim, wanted.head_dim);
  same("vocab_size", stored.vocab_size, wanted.vocab_size);
  same("ffn_hidden_dim", stored.ffn_hidden_dim, wanted.ffn_hidden_dim);
  same("qk_norm", stored.qk_norm, wanted.qk_norm);
  same("tie_embeddings", stored.tie_embeddings, wanted.tie_embeddings);
}

std::unique_ptr<ModelSource> open_run(FileSystem& fs, const std::string& path) {
  const CheckpointSearch search = latest_checkpoint(fs, path);
  if (!search.found()) {
    std::string reasons;
    for (const std::string& damage : search.damaged) reasons += "; " + damage;
    fail<DataError>("model", "{} holds no complete checkpoint{}; train saves one at its end, when stopped, and every checkpoint.interval steps", path, reasons);
  }
  auto source = std::make_unique<CheckpointSource>(fs, search.folder, path);
  source->add_warnings(search.damaged);
  return source;
}

}  // namespace

void ModelSource::load(Rank& rank, Model& model) {
  check_same_shape(info_.model, model.config(), info_.origin);
  for (Parameter& parameter : model.parameters()) {
    copy(rank, read(rank, parameter, parameter.value.dtype(), false), parameter.value);
    if (parameter.master.defined() && !parameter.master.shares_storage(parameter.value))
      copy(rank, read(rank, parameter, parameter.master.dtype(), true), parameter.master);
  }
}

bool has_checkpoint(FileSystem& fs, const std::string& run_folder) {
  const CheckpointSearch search = latest_checkpoint(fs, run_folder, CheckpointCheck::sizes);
  return search.found() || !search.damaged.empty();
}

std::unique_ptr<ModelSource> open_model_source(FileSystem& fs, const std::string& path, const std::string& weights) {
  if (!weights.empty()) return std::make_unique<HuggingFaceSource>(open_huggingface(fs, path, weights), path);
  const auto holds = [&](const char* name) { return fs.exists(path + "/" + name); };
  if (!fs.exists(path)) fail<FileError>("model", "{} does not exist; allowed: a run folder, a checkpoint's folder, or a folder with config.json and model.safetensors", path);
  if (holds("state.json")) return std::make_unique<CheckpointSource>(fs, path, path);
  if (holds("checkpoints") || holds("config.toml")) return open_run(fs, path);
  if (holds("config.json")) return std::make_unique<HuggingFaceSource>(open_huggingface(fs, path), path);
  fail<DataError>("model", "{} is no model; allowed: a run folder (config.toml and checkpoints/), a checkpoint's folder (index.json and state.json), a folder with "
                  "config.json and model.safetensors, or a config.json with its weights named beside it", path);
}

}  // namespace quire
