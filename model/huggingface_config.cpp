// config.json: every key that changes what the model computes is honoured or refused; the lists below say which and why.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "model/huggingface.h"
#include "model/strict_json.h"
#include "runtime/error.h"

namespace quire {
namespace {

using nlohmann::json;

/// Keys that change the function in a way that Quire does not compute, with the values under which they change nothing (null
/// always is one).
struct Refusal {
  const char* key;
  std::vector<json> harmless;
  const char* reason;
};

const std::vector<Refusal>& refusals() {
  static const std::vector<Refusal> list = {
      {"attention_bias", {false}, "projections of queries, keys and values have no bias here"},
      {"qkv_bias", {false}, "projections of queries, keys and values have no bias here"},
      {"mlp_bias", {false}, "feed-forward projections have no bias here"},
      {"hidden_act", {"silu", "swish"}, "the feed-forward activation is SiLU (SwiGLU)"},
      {"partial_rotary_factor", {1, 1.0}, "all of a head is rotated"},
      {"rotary_pct", {1, 1.0}, "all of a head is rotated"},
      {"rope_interleaved", {false}, "rotary pairs are the halves of a head; permute the query and key rows when converting"},
      {"pretraining_tp",
       {1},
       "products that were split in training are not split here, which rounds differently; set it to 1 to accept that"},
      {"quantization_config", {}, "weights must be stored as F64, F32, F16 or BF16; dequantize them first"},
      {"compression_config", {}, "weights must be stored as F64, F32, F16 or BF16; decompress them first"},
      {"auto_map", {}, "the model brings code of its own, so its function is not known from the file"},
      {"is_encoder_decoder", {false}, "only decoders are built"},
      {"add_cross_attention", {false}, "there is no cross-attention"},
      {"pruned_heads", {json::object()}, "heads can not be pruned"},
      {"num_experts", {0, 1}, "there are no experts"},
      {"num_local_experts", {0, 1}, "there are no experts"},
      {"no_rope_layers", {json::array()}, "every layer has rotary positions"},
      {"clip_qkv", {}, "queries, keys and values are not clipped"},
      {"attn_logit_softcapping", {}, "attention scores are not capped"},
      {"final_logit_softcapping", {}, "logits are not capped"},
      {"query_pre_attn_scalar", {}, "scores are divided by the square root of head_dim"},
      {"attention_multiplier", {}, "scores are divided by the square root of head_dim"},
      {"embedding_multiplier", {1, 1.0}, "embeddings are not scaled"},
      {"residual_multiplier", {1, 1.0}, "residual branches are not scaled"},
      {"logits_scaling", {1, 1.0}, "logits are not scaled"},
      {"logit_scale", {1, 1.0}, "logits are not scaled"},
  };
  return list;
}

/// Keys without effect on what a given sequence of tokens computes.
const std::set<std::string>& harmless_keys() {
  static const std::set<std::string> keys = {
      "architectures", "model_type", "_name_or_path", "name_or_path", "_commit_hash", "_attn_implementation", "attn_implementation",
      "_attn_implementation_autoset", "transformers_version", "torch_dtype", "dtype", "use_cache", "pad_token_id", "sep_token_id",
      "decoder_start_token_id", "cross_attention_hidden_size", "is_decoder", "tie_encoder_decoder", "chunk_size_feed_forward",
      "gradient_checkpointing", "return_dict", "return_dict_in_generate", "output_attentions", "output_hidden_states", "output_scores",
      "use_return_dict", "torchscript", "tf_legacy_loss", "use_bfloat16", "id2label", "label2id", "num_labels", "problem_type",
      "finetuning_task", "task_specific_params", "tokenizer_class", "prefix", "do_sample", "early_stopping", "num_beams",
      "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
      "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "forced_bos_token_id",
      "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
      "begin_suppress_tokens", "max_length", "min_length", "max_new_tokens", "classifier_dropout", "use_flash_attn", "unsloth_version",
      "unsloth_fixed"};
  return keys;
}

const std::set<std::string>& honoured_keys() {
  static const std::set<std::string> keys = {
      "hidden_size",      "intermediate_size", "num_hidden_layers",       "num_attention_heads", "num_key_value_heads",
      "head_dim",         "vocab_size",        "max_position_embeddings", "rms_norm_eps",        "rope_theta",
      "rope_scaling",     "rope_parameters",   "tie_word_embeddings",     "initializer_range",   "bos_token_id",
      "eos_token_id",     "sliding_window",    "use_sliding_window",      "max_window_layers",   "layer_types",
      "attention_dropout"};
  return keys;
}

class ConfigReader {
 public:
  ConfigReader(std::string path, std::string_view text) : path_(std::move(path)) {
    root_ = parse_strict_json("config.json", path_, text);
    if (!root_.is_object()) fail<DataError>("config.json", "'{}' must hold an object, found {}", path_, shortened(root_));
  }

  HuggingFaceConfig read() {
    read_architecture();
    for (const Refusal& refusal : refusals()) check(refusal);
    read_sizes();
    read_rotary();
    read_windows();
    read_tokens();
    if (const json* dropout = given("attention_dropout"); dropout && (!dropout->is_number() || dropout->get<double>() != 0))
      warn("attention_dropout is {}, which has no effect when a model is used and is not applied when it is trained here",
           shortened(*dropout));
    report_unknown();
    try {
      result_.model = model_.resolved();
    } catch (const ConfigError& error) {
      fail<DataError>("config.json", "'{}' describes an impossible model: {}", path_, error.what());
    }
    return std::move(result_);
  }

 private:
  /// nullptr when absent or null: config.json does not tell them apart, unless said otherwise below.
  const json* given(const char* key) const {
    const auto found = root_.find(key);
    return found == root_.end() || found->is_null() ? nullptr : &*found;
  }
  bool qwen3() const { return result_.architecture == "Qwen3ForCausalLM"; }

  template <class... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    result_.warnings.push_back(fmt::vformat(format, fmt::make_format_args(args...)));
  }
  [[noreturn]] void wrong(const std::string& key, const json& found, std::string_view allowed) const {
    fail<DataError>("config.json", "'{}': {} is {}; allowed: {}", path_, key, shortened(found), allowed);
  }
  [[noreturn]] void unsupported(const std::string& key, const json& found, std::string_view reason) const {
    fail<UnsupportedError>("config.json", "'{}': {} is {}, which changes what the model computes and is not supported: {}", path_,
                           key, shortened(found), reason);
  }

  int64_t whole(const char* key, const json& value) const {
    if (!value.is_number_integer() || value > INT64_MAX || value < 0) wrong(key, value, "a whole number from 0");
    return value.get<int64_t>();
  }
  int64_t size(const char* key) const {
    const json* value = given(key);
    if (!value) fail<DataError>("config.json", "'{}' lacks {}, without which the model is not known", path_, key);
    if (whole(key, *value) < 1) wrong(key, *value, "a whole number from 1");
    return value->get<int64_t>();
  }
  int64_t size_or(const char* key, int64_t otherwise) const { return given(key) ? size(key) : otherwise; }
  double number_or(const char* key, double otherwise) const {
    const json* value = given(key);
    if (!value) return otherwise;
    if (!value->is_number()) wrong(key, *value, "a number");
    return value->get<double>();
  }
  bool flag_or(const char* key, bool otherwise) const {
    const json* value = given(key);
    if (!value) return otherwise;
    if (!value->is_boolean()) wrong(key, *value, "true or false");
    return value->get<bool>();
  }

  void read_architecture() {
    std::string named;
    if (const json* list = given("architectures")) {
      if (!list->is_array() || list->size() != 1 || !(*list)[0].is_string()) wrong("architectures", *list, "a list of one name");
      named = (*list)[0].get<std::string>();
    }
    std::string type;
    if (const json* value = given("model_type")) {
      if (!value->is_string()) wrong("model_type", *value, "llama or qwen3");
      type = value->get<std::string>();
    }
    const std::string by_type = type == "llama" ? "LlamaForCausalLM" : type == "qwen3" ? "Qwen3ForCausalLM" : "";
    result_.architecture = named.empty() ? by_type : named;
    if (result_.architecture != "LlamaForCausalLM" && result_.architecture != "Qwen3ForCausalLM")
      fail<UnsupportedError>(
          "config.json",
          "'{}': architectures is '{}' and model_type '{}'; supported: LlamaForCausalLM (llama), Qwen3ForCausalLM (qwen3)", path_,
          named, type);
    if (!type.empty() && by_type != result_.architecture)
      fail<DataError>("config.json", "'{}': architectures says {}, model_type says '{}': they contradict each other", path_,
                      named, type);
  }

  void check(const Refusal& refusal) const {
    const json* value = given(refusal.key);
    if (!value) return;
    for (const json& harmless : refusal.harmless)
      if (*value == harmless && value->is_boolean() == harmless.is_boolean()) return;
    unsupported(refusal.key, *value, refusal.reason);
  }

  /// Defaults of absent keys are those of the architecture's class in transformers.
  void read_sizes() {
    model_.dim = size("hidden_size");
    model_.n_layers = size("num_hidden_layers");
    model_.n_heads = size("num_attention_heads");
    model_.vocab_size = size("vocab_size");
    model_.ffn_hidden_dim = size("intermediate_size");
    // Qwen3's own defaults (32 heads, 128 wide) belong to one model size: a file that leaves them out is taken for incomplete.
    model_.n_kv_heads = qwen3() && !root_.contains("num_key_value_heads") ? size("num_key_value_heads")
                                                                            : size_or("num_key_value_heads", model_.n_heads);
    model_.head_dim = qwen3() ? size("head_dim") : size_or("head_dim", 0);
    model_.max_seq_len = size_or("max_position_embeddings", qwen3() ? 32768 : 2048);
    model_.norm_eps = number_or("rms_norm_eps", 1e-6);
    model_.init_std = number_or("initializer_range", 0.02);
    model_.tie_embeddings = flag_or("tie_word_embeddings", false);
    model_.qk_norm = qwen3();
  }

  /// One of the two places that describe rotary positions; returns its rope_theta or 0.
  double check_rotary(const char* place) const {
    const json* rotary = given(place);
    if (!rotary) return 0;
    if (!rotary->is_object()) wrong(place, *rotary, "null or an object");
    double theta = 0;
    for (const char* key : {"rope_type", "type"})
      if (const auto type = rotary->find(key); type != rotary->end() && *type != "default")
        unsupported(fmt::format("{}.{}", place, key), *type,
                    "rotary frequencies are the plain powers of rope_theta (type 'default')");
    for (const auto& [key, value] : rotary->items()) {
      const std::string name = fmt::format("{}.{}", place, key);
      if (key == "rope_type" || key == "type") continue;
      if (key == "rope_theta") {
        if (!value.is_number() || value.get<double>() <= 0) wrong(name, value, "a number above 0");
        theta = value.get<double>();
      } else if (key == "partial_rotary_factor") {
        if (value != 1) unsupported(name, value, "all of a head is rotated");
      } else if (!value.is_null()) {
        unsupported(name, value, "it belongs to scaled or per-layer rotary positions");
      }
    }
    return theta;
  }

  void read_rotary() {
    double theta = number_or("rope_theta", 0);
    if (given("rope_theta") && theta <= 0) wrong("rope_theta", root_["rope_theta"], "a number above 0");
    for (const char* place : {"rope_scaling", "rope_parameters"}) {
      const double here = check_rotary(place);
      if (here == 0) continue;
      if (theta != 0 && theta != here)
        fail<DataError>("config.json", "'{}': rope_theta is {} and also {} in {}: which is meant?", path_, theta, here, place);
      theta = here;
    }
    model_.rope_theta = theta == 0 ? 1e4 : theta;
  }

  std::vector<std::string> layer_types() const {
    const json* list = given("layer_types");
    if (!list) return {};
    std::vector<std::string> types;
    if (!list->is_array() || static_cast<int64_t>(list->size()) != model_.n_layers)
      wrong("layer_types", *list, "a list with one entry for each layer");
    for (const json& type : *list) {
      if (type != "full_attention" && type != "sliding_attention")
        unsupported("layer_types", type, "layers are 'full_attention' or 'sliding_attention'");
      types.push_back(type.get<std::string>());
    }
    return types;
  }

  void read_windows() {
    const std::vector<std::string> types = layer_types();
    const bool sliding_layers = std::find(types.begin(), types.end(), "sliding_attention") != types.end();
    if (!qwen3()) {
      // transformers computes Llama without windows whatever these say, so a file with them does not say what it means.
      if (const json* window = given("sliding_window"))
        unsupported("sliding_window", *window, "LlamaForCausalLM has no window in transformers; set it to null for full attention");
      if (flag_or("use_sliding_window", false))
        unsupported("use_sliding_window", true, "LlamaForCausalLM has no window in transformers; set it to false for full attention");
      if (sliding_layers) unsupported("layer_types", root_["layer_types"], "LlamaForCausalLM has no window in transformers");
      return;
    }
    const bool used = flag_or("use_sliding_window", false);
    if (!used) {
      if (sliding_layers)
        fail<DataError>("config.json",
                        "'{}': layer_types has sliding_attention, but use_sliding_window is not true: which is meant?", path_);
      return;
    }
    if (root_.contains("sliding_window") && root_["sliding_window"].is_null()) {
      if (sliding_layers)
        fail<DataError>("config.json", "'{}': layer_types has sliding_attention, but sliding_window is null", path_);
      return;
    }
    const int64_t window = size_or("sliding_window", 4096);
    const int64_t first = given("max_window_layers") ? whole("max_window_layers", root_["max_window_layers"]) : 28;
    for (int64_t layer = 0; layer < std::min<int64_t>(model_.n_layers, 1 << 20); ++layer) {
      const bool slides = types.empty() ? layer >= first : types[static_cast<size_t>(layer)] == "sliding_attention";
      model_.sliding_window.push_back(slides ? window : 0);
    }
  }

  int64_t token(const char* key, const json& value) const {
    if (!value.is_number_integer() || value < 0 || value >= model_.vocab_size)
      wrong(key, value, fmt::format("a token id from 0 to vocab_size - 1 = {}", model_.vocab_size - 1));
    return value.get<int64_t>();
  }

  void read_tokens() {
    if (const json* bos = given("bos_token_id")) result_.bos_id = token("bos_token_id", *bos);
    if (const json* eos = given("eos_token_id")) {
      if (!eos->is_array()) result_.eos_ids = {token("eos_token_id", *eos)};
      else
        for (const json& id : *eos) result_.eos_ids.push_back(token("eos_token_id", id));
    }
  }

  void report_unknown() {
    std::vector<std::string> known(honoured_keys().begin(), honoured_keys().end());
    for (const Refusal& refusal : refusals()) known.push_back(refusal.key);
    for (const auto& [key, value] : root_.items()) {
      if (harmless_keys().contains(key) || std::find(known.begin(), known.end(), key) != known.end()) continue;
      const std::string near = nearest(key, known);
      warn("{} is {}, a key that is not known here and has no effect{}", key, shortened(value),
           near.empty() ? "" : fmt::format(" (did it mean {}?)", near));
    }
  }

  std::string path_;
  json root_;
  ModelConfig model_;
  HuggingFaceConfig result_;
};

}  // namespace

HuggingFaceConfig parse_huggingface_config(const std::string& path, std::string_view text) { return ConfigReader(path, text).read(); }

std::string huggingface_config_text(const HuggingFaceConfig& config, DType dtype) {
  const ModelConfig model = config.model.resolved();
  nlohmann::ordered_json out;
  out["architectures"] = {model.qk_norm ? "Qwen3ForCausalLM" : "LlamaForCausalLM"};
  out["model_type"] = model.qk_norm ? "qwen3" : "llama";
  out["attention_bias"] = false;
  out["attention_dropout"] = 0.0;
  out["bos_token_id"] = config.bos_id < 0 ? json(nullptr) : json(config.bos_id);
  out["eos_token_id"] = config.eos_ids.empty()       ? json(nullptr)
                        : config.eos_ids.size() == 1 ? json(config.eos_ids[0])
                                                     : json(config.eos_ids);
  out["head_dim"] = model.head_dim;
  out["hidden_act"] = "silu";
  out["hidden_size"] = model.dim;
  out["initializer_range"] = model.init_std;
  out["intermediate_size"] = model.ffn_hidden_dim;
  out["max_position_embeddings"] = model.max_seq_len;
  out["num_attention_heads"] = model.n_heads;
  out["num_hidden_layers"] = model.n_layers;
  out["num_key_value_heads"] = model.n_kv_heads;
  out["rms_norm_eps"] = model.norm_eps;
  out["rope_scaling"] = nullptr;
  out["rope_theta"] = model.rope_theta;
  out["tie_word_embeddings"] = model.tie_embeddings;
  out["torch_dtype"] = dtype == DType::f64 ? "float64" : dtype == DType::bf16 ? "bfloat16" : "float32";
  out["vocab_size"] = model.vocab_size;
  std::set<int64_t> windows(model.sliding_window.begin(), model.sliding_window.end());
  windows.erase(0);
  if (!windows.empty() && !model.qk_norm)
    fail<UnsupportedError>("huggingface",
                           "model.sliding_window without model.qk_norm: LlamaForCausalLM has no window, and only it and "
                           "Qwen3ForCausalLM are written");
  if (windows.size() > 1)
    fail<UnsupportedError>(
        "huggingface",
        "model.sliding_window has layers of {} and of {} tokens; Qwen3ForCausalLM has one size for all layers that slide",
        *windows.begin(), *windows.rbegin());
  if (!model.qk_norm) {
    out["mlp_bias"] = false;
    return out.dump(2) + "\n";
  }
  out["use_sliding_window"] = !windows.empty();
  out["sliding_window"] = windows.empty() ? json(nullptr) : json(*windows.begin());
  // Readers older than layer_types know only "all layers from max_window_layers on".
  const auto first = std::find_if(model.sliding_window.begin(), model.sliding_window.end(), [](int64_t w) { return w > 0; });
  out["max_window_layers"] = first - model.sliding_window.begin();
  out["layer_types"] = json::array();
  for (const int64_t window : model.sliding_window) out["layer_types"].push_back(window > 0 ? "sliding_attention" : "full_attention");
  return out.dump(2) + "\n";
}

}  // namespace quire
