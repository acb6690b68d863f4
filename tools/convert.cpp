// Writes a trained model in the layout of Hugging Face: convert MODEL OUT. (The way in needs no conversion: generate reads such folders, and
// checkpoint.load_path trains on from them.)
#include <cstdio>

#include "model/huggingface.h"
#include "run/model_source.h"
#include "tools/command_line.h"

namespace {

using namespace quire;

void convert(const std::string& from, const std::string& out, const std::string& dtype) {
  if (!disk().list(out).empty()) fail<FileError>("convert", "'{}' is there already and not empty; give a folder of its own", out);
  const std::unique_ptr<ModelSource> source = open_model_source(disk(), from);
  const ModelInfo& info = source->info();
  const DType type = dtype.empty() ? info.dtype : dtype_from(dtype);
  Rank rank;
  Model model(rank, info.model, type, false);
  source->load(rank, model);
  HuggingFaceConfig config;
  config.model = info.model;
  if (info.bos) config.bos_id = *info.bos;
  config.eos_ids.assign(info.eos.begin(), info.eos.end());
  std::vector<SafetensorsItem> items;
  for (const Parameter& p : model.parameters()) items.push_back(safetensors_item(p.name, p.value));
  save_huggingface(disk(), out, config, items);
  std::printf("%s: %lld parameters as %s, written to %s\n", info.origin.c_str(), static_cast<long long>(model.parameters().elements()),
              std::string(name_of(type)).c_str(), out.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine app{"convert", "Writes a run's newest checkpoint (or a Hugging Face folder, in another dtype) as config.json and model.safetensors."};
  std::string from, out, dtype;
  app.option("model", from, "run folder, checkpoint folder or Hugging Face folder").required();
  app.option("out", out, "folder to write").required();
  app.option("--dtype", dtype, "f64, f32 or bf16; as trained by default");
  if (const auto ended = app.parse(argc, argv)) return *ended;
  try {
    convert(from, out, dtype);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
