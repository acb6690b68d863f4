// Prints the documents that a config trains on or holds out, as text: documents CONFIG [--held-out] [section.key=value]...
#include <cstdio>

#include "data/tokenizer.h"
#include "run/data_source.h"
#include "runtime/error.h"
#include "tools/command_line.h"
#include "tools/output.h"

namespace {

using namespace quire;

void print_documents(const Config& config, bool held_out, const std::string& between) {
  const CorpusSplit split = open_data(config);
  const std::shared_ptr<const Corpus> corpus = held_out ? split.held_out : split.train;
  if (!corpus) fail<ConfigError>("documents", "nothing is held out; set data.eval_fraction or data.eval_path");
  const auto tokenizer = make_tokenizer(corpus->info().tokenizer, corpus->bos().has_value());
  std::vector<int32_t> tokens;
  for (int64_t d = 0; d < corpus->document_count(); ++d) {
    tokens.resize(static_cast<size_t>(corpus->length(d)));
    corpus->read(d, 0, tokens);
    const std::string text = tokenizer->decode(tokens) + between;
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) fail<FileError>("documents", "standard output can not be written");
  }
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine app{"documents", "Prints the documents of a config's training or held-out part, one after the other."};
  std::string config, between;
  std::vector<std::string> overrides;
  bool held_out = false;
  app.option("config", config, "TOML file").required();
  app.option("overrides", overrides, "section.key=value");
  app.flag("--held-out", held_out, "the held-out part instead of the training part");
  app.option("--between", between, "text printed after each document; nothing by default");
  if (const auto ended = app.parse(argc, argv)) return *ended;
  try {
    print_documents(load_config(config, overrides), held_out, between);
    finish_output("documents");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
