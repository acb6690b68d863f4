#include "model/huggingface.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "check.h"
#include "files.h"
#include "runtime/faulty_file_system.h"

using namespace quire;
using namespace quire::test;
using nlohmann::json;

namespace {

json llama() {
  return {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}, {"hidden_size", 8}, {"intermediate_size", 12},
          {"num_hidden_layers", 2}, {"num_attention_heads", 2}, {"num_key_value_heads", 1}, {"vocab_size", 11}, {"rms_norm_eps", 1e-5},
          {"max_position_embeddings", 16}, {"tie_word_embeddings", false}};
}

json qwen3() {
  json config = llama();
  config["architectures"] = {"Qwen3ForCausalLM"};
  config["model_type"] = "qwen3";
  config["head_dim"] = 6;
  return config;
}

HuggingFaceConfig parse(const json& config) { return parse_huggingface_config("m/config.json", config.dump()); }

/// Weights for a config, every element distinct, kept alive beside their items.
struct Weights {
  std::vector<std::vector<float>> values;
  std::vector<SafetensorsItem> items;
};
Weights weights_for(const ModelConfig& model, bool huggingface_names) {
  Weights weights;
  float next = 0;
  for (const HuggingFaceTensor& tensor : huggingface_tensors(model)) {
    const int64_t elements = std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
    weights.values.emplace_back(static_cast<size_t>(elements));
    for (float& value : weights.values.back()) value = next += 0.5f;
    weights.items.push_back(
        {huggingface_names ? tensor.huggingface_name : tensor.name, DType::f32, tensor.shape, weights.values.back().data()});
  }
  return weights;
}

/// A folder of these weights and config, changed.
template <class Change>
void check_folder(const json& config, Change&& change, std::initializer_list<std::string> parts) {
  FaultyFileSystem fs;
  fs.make_directories("m");
  Weights weights = weights_for(parse(config).model, true);
  change(weights);
  put_text(fs, "m/config.json", config.dump());
  write_safetensors(fs, "m/model.safetensors", weights.items);
  if (parts.size() == 0) open_huggingface(fs, "m");
  else check_error<DataError>([&] { open_huggingface(fs, "m"); }, parts);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(huggingface)

BOOST_AUTO_TEST_CASE(a_llama_config_is_read) {
  const HuggingFaceConfig config = parse(llama());
  BOOST_TEST(config.architecture == "LlamaForCausalLM");
  const ModelConfig& model = config.model;
  BOOST_TEST(model.dim == 8);
  BOOST_TEST(model.ffn_hidden_dim == 12);
  BOOST_TEST(model.n_layers == 2);
  BOOST_TEST(model.n_heads == 2);
  BOOST_TEST(model.n_kv_heads == 1);
  BOOST_TEST(model.head_dim == 4);
  BOOST_TEST(model.vocab_size == 11);
  BOOST_TEST(model.max_seq_len == 16);
  BOOST_TEST(model.norm_eps == 1e-5);
  BOOST_TEST(model.rope_theta == 1e4);
  BOOST_TEST(!model.tie_embeddings);
  BOOST_TEST(!model.qk_norm);
  BOOST_TEST(config.bos_id == -1);
  BOOST_TEST(config.eos_ids.empty());
  BOOST_TEST(config.warnings.empty());
  json other = llama();
  other.merge_patch({{"rope_theta", 5e5}, {"head_dim", 16}, {"tie_word_embeddings", true}, {"bos_token_id", 1}, {"eos_token_id", {2, 3}},
                     {"initializer_range", 0.01}, {"hidden_act", "silu"}, {"attention_bias", false}, {"mlp_bias", false}, {"pretraining_tp", 1}});
  other["num_key_value_heads"] = nullptr;
  other.erase("rms_norm_eps");
  other.erase("architectures");
  const HuggingFaceConfig second = parse(other);
  BOOST_TEST(second.model.rope_theta == 5e5);
  BOOST_TEST(second.model.head_dim == 16);
  BOOST_TEST(second.model.n_kv_heads == 2);
  BOOST_TEST(second.model.norm_eps == 1e-6);
  BOOST_TEST(second.model.init_std == 0.01);
  BOOST_TEST(second.model.tie_embeddings);
  BOOST_TEST(second.bos_id == 1);
  BOOST_TEST(second.eos_ids == std::vector<int64_t>({2, 3}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_qwen3_config_is_read) {
  BOOST_TEST(parse(qwen3()).model.qk_norm);
  BOOST_TEST(parse(qwen3()).model.head_dim == 6);
  json config = qwen3();
  config.erase("head_dim");
  check_error<DataError>([&] { parse(config); }, {"head_dim", "lacks"});
  config = qwen3();
  config.erase("num_key_value_heads");
  check_error<DataError>([&] { parse(config); }, {"num_key_value_heads", "lacks"});
}

BOOST_AUTO_TEST_CASE(windows_are_honoured_layer_by_layer) {
  using Windows = std::vector<int64_t>;
  const auto windows = [](const json& patch) {
    json config = qwen3();
    for (const auto& [key, value] : patch.items()) config[key] = value;  // keeps nulls
    return parse(config).model.sliding_window;
  };
  BOOST_TEST(windows({{"use_sliding_window", false}, {"sliding_window", 4}, {"max_window_layers", 1}}) == Windows({0, 0}),
             boost::test_tools::per_element());
  BOOST_TEST(windows({{"sliding_window", 4}, {"max_window_layers", 0}}) == Windows({0, 0}), boost::test_tools::per_element());
  BOOST_TEST(windows({{"use_sliding_window", true}, {"sliding_window", 4}, {"max_window_layers", 1}}) == Windows({0, 4}),
             boost::test_tools::per_element());
  BOOST_TEST(windows({{"use_sliding_window", true}, {"sliding_window", 4}}) == Windows({0, 0}), boost::test_tools::per_element());
  BOOST_TEST(windows({{"use_sliding_window", true}, {"sliding_window", nullptr}, {"max_window_layers", 0}}) == Windows({0, 0}),
             boost::test_tools::per_element());
  BOOST_TEST(windows({{"use_sliding_window", true}, {"max_window_layers", 0}}) == Windows({4096, 4096}),
             boost::test_tools::per_element());
  const json types = {"sliding_attention", "full_attention"};
  BOOST_TEST(windows({{"use_sliding_window", true}, {"sliding_window", 4}, {"max_window_layers", 1}, {"layer_types", types}}) ==
                 Windows({4, 0}),
             boost::test_tools::per_element());
  check_error<DataError>([&] { windows({{"use_sliding_window", false}, {"sliding_window", 4}, {"layer_types", types}}); }, {"layer_types", "use_sliding_window"});
  check_error<DataError>([&] { windows({{"use_sliding_window", true}, {"layer_types", {"full_attention"}}}); }, {"layer_types", "each layer"});
  check_error<UnsupportedError>([&] { windows({{"layer_types", {"full_attention", "chunked_attention"}}}); }, {"layer_types", "chunked_attention"});
  check_error<DataError>([&] { windows({{"use_sliding_window", true}, {"sliding_window", 0}}); }, {"sliding_window", "0"});
}

BOOST_AUTO_TEST_CASE(keys_that_change_the_function_are_refused_by_name) {
  const std::vector<std::pair<json, std::string>> patches = {
      {{{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}}, "rope_scaling.rope_type"},
      {{{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}, "rope_scaling."},
      {{{"rope_scaling", {{"factor", 2.0}}}}, "rope_scaling.factor"},
      {{{"rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 1e4}}}}, "rope_parameters.rope_type"},
      {{{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}}, "rope_parameters.full_attention"},
      {{{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}}, "rope_parameters.partial_rotary_factor"},
      {{{"attention_bias", true}}, "attention_bias"},
      {{{"mlp_bias", true}}, "mlp_bias"},
      {{{"hidden_act", "gelu"}}, "hidden_act"},
      {{{"partial_rotary_factor", 0.5}}, "partial_rotary_factor"},
      {{{"pretraining_tp", 2}}, "pretraining_tp"},
      {{{"quantization_config", {{"bits", 4}}}}, "quantization_config"},
      {{{"auto_map", {{"AutoModel", "x.Y"}}}}, "auto_map"},
      {{{"is_encoder_decoder", true}}, "is_encoder_decoder"},
      {{{"num_local_experts", 8}}, "num_local_experts"},
      {{{"logits_scaling", 8.0}}, "logits_scaling"},
      {{{"sliding_window", 128}}, "sliding_window"},
      {{{"layer_types", {"full_attention", "sliding_attention"}}}, "layer_types"},
      {{{"architectures", {"MistralForCausalLM"}}}, "MistralForCausalLM"},
  };
  for (const auto& [patch, key] : patches) {
    json config = llama();
    config.merge_patch(patch);
    check_error<UnsupportedError>([&] { parse(config); }, {"m/config.json", key});
  }
}

BOOST_AUTO_TEST_CASE(harmless_values_of_the_same_keys_pass) {
  json config = llama();
  for (const char* key : {"rope_scaling", "quantization_config", "sliding_window", "partial_rotary_factor", "auto_map",
                          "layer_types", "rope_parameters"})
    config[key] = nullptr;
  config.update({{"hidden_act", "silu"}, {"pretraining_tp", 1}, {"is_encoder_decoder", false}, {"torch_dtype", "float16"}, {"use_cache", true},
                 {"transformers_version", "4.51.0"}, {"pad_token_id", 0}});
  BOOST_TEST(parse(config).warnings.empty());
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}, {"partial_rotary_factor", 1.0}};
  BOOST_TEST(parse(config).model.rope_theta == 5e5);
  config["rope_theta"] = 1e4;
  check_error<DataError>([&] { parse(config); }, {"rope_theta", "500000", "10000"});
  config.erase("rope_theta");
  config["rope_parameters"] = nullptr;
  config["rope_scaling"] = {{"type", "default"}};
  BOOST_TEST(parse(config).model.rope_theta == 1e4);
}

BOOST_AUTO_TEST_CASE(unknown_keys_and_keys_without_effect_are_reported) {
  json config = llama();
  config["rope_thetta"] = 5e5;
  config["attention_dropout"] = 0.1;
  config["zebra"] = {1, 2};
  const std::vector<std::string> warnings = parse(config).warnings;
  BOOST_REQUIRE(warnings.size() == 3u);
  BOOST_TEST(warnings[0].find("attention_dropout is 0.1") == 0u);
  BOOST_TEST(warnings[1].find("rope_thetta is 500000.0") == 0u);
  BOOST_TEST(warnings[1].find("did it mean rope_theta?") != std::string::npos);
  BOOST_TEST(warnings[2].find("zebra is [1,2]") == 0u);
}

BOOST_AUTO_TEST_CASE(wrong_values_are_named) {
  const auto refuse = [](const char* key, const json& value, std::initializer_list<std::string> parts) {
    json config = llama();
    config[key] = value;
    check_error<DataError>([&] { parse(config); }, parts);
  };
  refuse("hidden_size", nullptr, {"hidden_size", "lacks"});
  refuse("hidden_size", "8", {"hidden_size", "\"8\""});
  refuse("hidden_size", 8.5, {"hidden_size", "8.5"});
  refuse("hidden_size", -8, {"hidden_size", "-8"});
  refuse("hidden_size", UINT64_MAX, {"hidden_size", "18446744073709551615"});
  refuse("num_hidden_layers", int64_t{1} << 60, {"impossible model", "n_layers"});
  refuse("num_attention_heads", 3, {"impossible model"});
  refuse("rms_norm_eps", true, {"rms_norm_eps", "true"});
  refuse("rope_theta", 0, {"rope_theta", "0"});
  refuse("tie_word_embeddings", 1, {"tie_word_embeddings", "true or false"});
  refuse("eos_token_id", 11, {"eos_token_id", "11", "10"});
  refuse("eos_token_id", {2, -1}, {"eos_token_id", "-1"});
  refuse("model_type", "qwen3", {"contradict"});
  check_error<DataError>([] { parse_huggingface_config("m/config.json", "{\"hidden_size\":1,\"hidden_size\":2}"); },
                         {"twice", "hidden_size"});
  check_error<DataError>([] { parse_huggingface_config("m/config.json", ""); }, {"m/config.json", "JSON"});
  check_error<DataError>([] { parse_huggingface_config("m/config.json", "[]"); }, {"object"});
}

BOOST_AUTO_TEST_CASE(broken_configs_never_crash) {
  json config = qwen3();
  config.update({{"use_sliding_window", true}, {"sliding_window", 4}, {"layer_types", {"full_attention", "sliding_attention"}},
                 {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}}}});
  const std::string good = config.dump();
  std::mt19937_64 random(29);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bad = good;
    if (round % 8 == 0) bad.resize(random() % bad.size());
    for (uint64_t flips = random() % 4; flips > 0 && !bad.empty(); --flips)
      bad[random() % bad.size()] ^= static_cast<char>(1u << (random() % 8));
    try {
      parse_huggingface_config("m/config.json", bad).model.validate();
    } catch (const Error& error) {
      ++refused;
      BOOST_TEST_REQUIRE(std::string(error.what()).find("m/config.json") != std::string::npos, error.what());
    }
  }
  BOOST_TEST(refused > 2000);
  BOOST_TEST(refused < 3600);  // what was not changed, or only in a value, still reads
}

BOOST_AUTO_TEST_CASE(what_is_saved_is_read_back) {
  for (const bool qk_norm : {false, true}) {
    FaultyFileSystem fs;
    HuggingFaceConfig config;
    ModelConfig& model = config.model;
    model.dim = 8, model.n_layers = 3, model.n_heads = 2, model.vocab_size = 11, model.qk_norm = qk_norm, model.rope_theta = 5e5,
    model.norm_eps = 1e-6;
    model.tie_embeddings = qk_norm;
    if (qk_norm) model.sliding_window = {0, 5, 0};
    config.bos_id = 1;
    config.eos_ids = {2};
    const Weights weights = weights_for(model, false);
    save_huggingface(fs, "out/model", config, weights.items);
    BOOST_TEST(fs.list("out/model") == std::vector<std::string>({"config.json", "model.safetensors"}),
               boost::test_tools::per_element());
    const HuggingFaceModel read = open_huggingface(fs, "out/model");
    BOOST_TEST((read.config().model == model.resolved()));
    BOOST_TEST(read.config().bos_id == 1);
    BOOST_TEST(read.config().warnings.empty());
    BOOST_TEST(read.config().architecture == (qk_norm ? "Qwen3ForCausalLM" : "LlamaForCausalLM"));
    BOOST_TEST(read.tensors().size() == weights.items.size());
    for (size_t i = 0; i < weights.items.size(); ++i) {
      std::vector<float> values(weights.values[i].size());
      read.read(weights.items[i].name, DType::f32, values.data());
      BOOST_TEST((values == weights.values[i]));
    }
    check_error<DataError>([&] { read.read("layers.0.attention.w.weight", DType::f32, nullptr); },
                           {"layers.0.attention.w.weight", "nearest"});
    const Safetensors file(fs, "out/model/model.safetensors");
    BOOST_TEST((file.find("lm_head.weight") == nullptr) == qk_norm);
    BOOST_TEST((file.find("model.layers.2.self_attn.k_norm.weight") != nullptr) == qk_norm);

    Weights bad = weights_for(model, false);
    bad.items.pop_back();
    check_error<DataError>([&] { save_huggingface(fs, "other", config, bad.items); }, {weights.items.back().name, "missing"});
    bad.items.push_back(weights.items.back());
    bad.items[0].shape = {8, 11};
    check_error<DataError>([&] { save_huggingface(fs, "other", config, bad.items); }, {"embedding.weight", "(8,11)", "(11,8)"});
    bad.items[0] = weights.items[0];
    bad.items.push_back({"extra", DType::f32, {1}, weights.values[0].data()});
    check_error<DataError>([&] { save_huggingface(fs, "other", config, bad.items); }, {"extra"});
    BOOST_TEST(!fs.exists("other"));
    fs.set_faults({.capacity = fs.used() + 500});
    check_error<FileError>([&] { save_huggingface(fs, "full", config, weights.items); }, {"full/model.safetensors", "No space"});
    BOOST_TEST(fs.list("full").empty());
  }
  HuggingFaceConfig windows;
  windows.model.sliding_window = {16};
  check_error<UnsupportedError>([&] { huggingface_config_text(windows, DType::f32); }, {"model.sliding_window", "LlamaForCausalLM"});
  windows.model.qk_norm = true;
  BOOST_TEST(!huggingface_config_text(windows, DType::f32).empty());
  windows.model.sliding_window = {16, 0, 8, 0};
  check_error<UnsupportedError>([&] { huggingface_config_text(windows, DType::f32); }, {"16", "8"});
}

BOOST_AUTO_TEST_CASE(weights_must_fit_the_config) {
  check_folder(llama(), [](Weights&) {}, {});
  check_folder(llama(), [](Weights& w) { w.items.erase(w.items.begin() + 3); }, {"lacks", "model.layers.0.self_attn.k_proj.weight"});
  check_folder(llama(), [](Weights& w) { w.items.pop_back(); }, {"lacks", "lm_head.weight", "tie_word_embeddings"});
  check_folder(llama(), [](Weights& w) { w.items[0].shape = {8, 11}; }, {"model.embed_tokens.weight", "(8,11)", "(11,8)"});
  check_folder(llama(),
               [](Weights& w) {
                 w.items.push_back({"model.layers.0.self_attn.q_proj.bias", DType::f32, {8}, w.values[0].data()});
               },
               {"model.layers.0.self_attn.q_proj.bias", "does not have"});
  check_folder(llama(), [](Weights& w) { w.items.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {2}, w.values[0].data()}); }, {});
  check_folder(qwen3(), [](Weights& w) { w.items[5].name = "model.layers.0.self_attn.w_norm.weight"; }, {"w_norm", "does not have"});
}

BOOST_AUTO_TEST_CASE(a_copy_of_the_embedding_as_head_is_accepted_when_tied) {
  json config = llama();
  config["tie_word_embeddings"] = true;
  for (const bool equal : {true, false}) {
    FaultyFileSystem fs;
    fs.make_directories("m");
    Weights weights = weights_for(parse(config).model, true);
    std::vector<float> head = weights.values[0];
    if (!equal) head.back() += 1;
    weights.items.push_back({"lm_head.weight", DType::f32, {11, 8}, head.data()});
    put_text(fs, "m/config.json", config.dump());
    write_safetensors(fs, "m/model.safetensors", weights.items);
    const HuggingFaceModel model = open_huggingface(fs, "m");
    BOOST_TEST(model.config().warnings.size() == (equal ? 0u : 1u));
    if (!equal) BOOST_TEST(model.config().warnings[0].find("lm_head.weight") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(stored_halves_become_floats) {
  FaultyFileSystem fs;
  fs.make_directories("m");
  put_text(fs, "m/config.json", llama().dump());
  const std::vector<HuggingFaceTensor> tensors = huggingface_tensors(parse(llama()).model);
  std::string header, data;
  json entries = json::object();
  for (const HuggingFaceTensor& tensor : tensors) {
    const int64_t bytes = 2 * std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
    const int64_t begin = static_cast<int64_t>(data.size());
    entries[tensor.huggingface_name] = {{"dtype", "F16"}, {"shape", tensor.shape}, {"data_offsets", {begin, begin + bytes}}};
    for (int64_t i = 0; i < bytes / 2; ++i) data += std::string("\x00\x3e", 2);  // 1.5
  }
  header = entries.dump();
  uint64_t length = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  put_text(fs, "m/model.safetensors", text + header + data);
  const HuggingFaceModel model = open_huggingface(fs, "m");
  std::vector<double> norm(8);
  model.read("norm.weight", DType::f64, norm.data());
  BOOST_TEST(norm == std::vector<double>(8, 1.5), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(outside_models_are_read) {
  if (!cases_present()) return;
  const HuggingFaceModel stories = open_huggingface(disk(), cases + "/stories260K/hf");
  BOOST_TEST(stories.config().model.parameter_count() == 260032);
  BOOST_TEST(stories.config().bos_id == 1);
  BOOST_TEST(stories.config().eos_ids == std::vector<int64_t>({2}), boost::test_tools::per_element());
  BOOST_TEST(stories.config().warnings.empty());
  BOOST_TEST(stories.config().model.tie_embeddings);
  // The same numbers as in the original file, whose first table after the header of seven int32 is the embedding.
  std::vector<float> embedding(512 * 64), original(512 * 64);
  stories.read("embedding.weight", DType::f32, embedding.data());
  disk().open(cases + "/stories260K/stories260K.bin")->read_at(28, std::as_writable_bytes(std::span(original)));
  BOOST_TEST((embedding == original));

  const std::string tiny = cases + "/tiny_llama/tiny_llama";
  const HuggingFaceModel single = open_huggingface(disk(), tiny + "_config.json", tiny + ".safetensors");
  const HuggingFaceModel sharded = open_huggingface(disk(), tiny + "_config.json", tiny + ".safetensors.index.json");
  BOOST_TEST(single.config().warnings.empty());
  BOOST_TEST(single.tensors().size() == 21u);
  for (const HuggingFaceTensor& tensor : single.tensors()) {
    const int64_t elements = std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
    std::vector<float> a(static_cast<size_t>(elements)), b(a.size());
    single.read(tensor.name, DType::f32, a.data());
    sharded.read(tensor.name, DType::f32, b.data());
    BOOST_TEST((a == b), tensor.name);
  }
}

BOOST_AUTO_TEST_SUITE_END()
