// Weights come back from runs, checkpoints and the layout of Hugging Face, in any floating type; what is no model is refused in one line.
#include "run/model_source.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "check.h"
#include "model/huggingface.h"
#include "parallel/checkpoint.h"
#include "run/scratch.h"
#include "run/selfcheck.h"

using namespace quire;
using namespace quire::test;

namespace {

Config source_config(const Scratch& scratch, const std::string& precision) {
  std::ofstream(scratch.path("data.txt")) << "One text.\n%\nAnother text.\n";
  return parse_config("[model]\ndim = 16\nn_layers = 1\nn_heads = 2\n[train]\nseq_len = 16\n[data]\ndataset_path = \"data.txt\"\nseparator = \"%\"\n", "small.toml", scratch.path(),
                      {"run.dir=" + scratch.path("run"), "train.mixed_precision=" + precision, "run.threads=1"});
}

nlohmann::json state_of(const Config& config, int64_t step) {
  return {{"format", 1}, {"step", step}, {"config", to_toml(config)}, {"tokenizer", "byte"}, {"bos", nullptr}, {"eos", 256}};
}

/// Saves a model as training does; returns its weights' bytes in the order of the parameters.
std::vector<std::vector<float>> save(const Scratch& scratch, const Config& config, int64_t step, uint64_t seed, const nlohmann::json& state) {
  Rank rank;
  Model model(rank, config.model, config.dtype());
  model.initialize(rank, seed);
  std::vector<CheckpointTensor> tensors;
  std::vector<std::vector<float>> values;
  for (const Parameter& p : model.parameters()) {
    const std::vector<int64_t> origin(static_cast<size_t>(p.shape.dims()), 0);
    tensors.push_back({p.name, "parameter", p.shape, origin, p.value});
    if (!p.master.shares_storage(p.value)) tensors.push_back({p.name, "master", p.shape, origin, p.master});
    if (config.dtype() == DType::f64) {
      const std::vector<double> wide = p.value.to_vector<double>();
      values.emplace_back(wide.begin(), wide.end());
    } else {
      values.push_back(p.master.to_vector<float>());
    }
  }
  save_checkpoint(disk(), scratch.path("run"), step, tensors, state.dump());
  return values;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(model_source)

BOOST_AUTO_TEST_CASE(a_run_s_newest_checkpoint_is_read_in_any_type) {
  for (const std::string precision : {"f64", "f32", "bf16"}) {
    const Scratch scratch;
    const Config config = source_config(scratch, precision);
    BOOST_TEST(!has_checkpoint(disk(), config.run.dir));
    save(scratch, config, 3, 1, state_of(config, 3));
    const auto newest = save(scratch, config, 5, 2, state_of(config, 5));
    BOOST_TEST(has_checkpoint(disk(), config.run.dir));
    for (const std::string& path : {scratch.path("run"), checkpoint_folder(scratch.path("run"), 5)}) {
      const auto source = open_model_source(disk(), path);
      BOOST_TEST(source->info().step == 5);
      BOOST_TEST(source->info().tokenizer == "byte");
      BOOST_TEST(source->info().eos == std::vector<int32_t>{256});
      BOOST_TEST(!source->info().bos.has_value());
      BOOST_TEST((source->info().dtype == config.dtype()));
      BOOST_TEST((source->info().model == config.model));
      Rank rank;
      Model bare(rank, source->info().model, DType::f32, false), full(rank, source->info().model, DType::bf16);
      source->load(rank, bare);
      source->load(rank, full);
      for (size_t i = 0; i < newest.size(); ++i) {
        const std::vector<float> values = bare.parameters()[i].value.to_vector<float>();
        const std::vector<float> masters = full.parameters()[i].master.to_vector<float>();
        const std::vector<bf16> rounded = full.parameters()[i].value.to_vector<bf16>();
        for (size_t e = 0; e < newest[i].size(); ++e) {
          const float wanted = newest[i][e], narrow = static_cast<float>(bf16(wanted));
          BOOST_REQUIRE_EQUAL(values[e], precision == "bf16" ? narrow : wanted);
          BOOST_REQUIRE_EQUAL(masters[e], wanted);
          BOOST_REQUIRE_EQUAL(static_cast<float>(rounded[e]), narrow);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_damaged_newest_checkpoint_is_told_and_passed_over) {
  const Scratch scratch;
  const Config config = source_config(scratch, "f32");
  save(scratch, config, 3, 1, state_of(config, 3));
  save(scratch, config, 5, 2, state_of(config, 5));
  std::ofstream(checkpoint_folder(scratch.path("run"), 5) + "/index.json") << "{";
  const auto source = open_model_source(disk(), scratch.path("run"));
  BOOST_TEST(source->info().step == 3);
  BOOST_REQUIRE(source->info().warnings.size() == 1u);
  BOOST_TEST(source->info().warnings[0].find("step-00000005") != std::string::npos);
  std::ofstream(checkpoint_folder(scratch.path("run"), 3) + "/index.json") << "{";
  check_error<DataError>([&] { open_model_source(disk(), scratch.path("run")); }, {"no complete checkpoint", "step-00000003"});
  // Weights that can not be read are no reason to check others in silence.
  check_error<DataError>([&] { selfcheck(config); }, {"no complete checkpoint"});
}

BOOST_AUTO_TEST_CASE(selfcheck_takes_the_run_s_weights) {
  const Scratch scratch;
  Config config = source_config(scratch, "f32");
  save(scratch, config, 7, 3, state_of(config, 7));
  SelfcheckReport report = selfcheck(config);
  BOOST_TEST(report.passed(), report.table());
  BOOST_TEST(report.table().find("step 7 of " + config.run.dir) != std::string::npos);
  config.checkpoint.load_path = config.run.dir;
  config.run.dir = scratch.path("another");
  report = selfcheck(config);
  BOOST_TEST(report.table().find("step 7 of " + config.checkpoint.load_path) != std::string::npos);
  config.model.dim = 32;
  config.model.head_dim = 16;
  check_error<ConfigError>([&] { selfcheck(config); }, {"model.dim is 32", "have 16"});
}

BOOST_AUTO_TEST_CASE(models_in_the_layout_of_hugging_face_are_read) {
  const Scratch scratch;
  const ModelConfig config = source_config(scratch, "f32").model;
  Rank rank;
  Model model(rank, config, DType::f32);
  model.initialize(rank, 4);
  std::vector<SafetensorsItem> items;
  for (const Parameter& p : model.parameters()) items.push_back(safetensors_item(p.name, p.value));
  HuggingFaceConfig described;
  described.model = config;
  described.bos_id = 1;
  described.eos_ids = {2, 3};
  save_huggingface(disk(), scratch.path("hf"), described, items);
  for (const bool by_files : {false, true}) {
    const auto source = by_files ? open_model_source(disk(), scratch.path("hf/config.json"), scratch.path("hf/model.safetensors")) : open_model_source(disk(), scratch.path("hf"));
    BOOST_TEST(source->info().bos.value() == 1);
    BOOST_TEST(source->info().eos == (std::vector<int32_t>{2, 3}));
    BOOST_TEST(source->info().tokenizer.empty());
    Model read(rank, source->info().model, DType::f64);
    source->load(rank, read);
    for (size_t i = 0; i < read.parameters().size(); ++i) {
      const std::vector<float> wanted = model.parameters()[i].value.to_vector<float>();
      BOOST_TEST(read.parameters()[i].value.to_vector<double>() == std::vector<double>(wanted.begin(), wanted.end()));
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_no_model_is_refused) {
  const Scratch scratch;
  const Config config = source_config(scratch, "f32");
  check_error<FileError>([&] { open_model_source(disk(), scratch.path("nothing")); }, {"[model]", "nothing", "does not exist"});
  check_error<DataError>([&] { open_model_source(disk(), scratch.path()); }, {"[model]", "is no model", "run folder"});
  check_error<DataError>([&] { open_model_source(disk(), scratch.path("data.txt")); }, {"is no model"});
  std::filesystem::create_directories(scratch.path("empty/checkpoints"));
  check_error<DataError>([&] { open_model_source(disk(), scratch.path("empty")); }, {"no complete checkpoint"});
  for (const char* broken : {"format", "config", "tokenizer", "eos"}) {
    nlohmann::json state = state_of(config, 1);
    state.erase(broken);
    save(scratch, config, 1, 1, state);
    check_error<DataError>([&] { open_model_source(disk(), scratch.path("run")); }, {"[checkpoint]", "state.json", broken});
  }
  nlohmann::json state = state_of(config, 1);
  state["config"] = "[model]\ndimm = 3\n";
  save(scratch, config, 1, 1, state);
  check_error<ConfigError>([&] { open_model_source(disk(), scratch.path("run")); }, {"state.json", "dimm"});
}

BOOST_AUTO_TEST_SUITE_END()
