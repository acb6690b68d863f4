// generate MODEL: text from trained weights.
#include <fmt/format.h>

#include <charconv>
#include <cstdio>

#include "data/text_documents.h"
#include "data/tokenizer.h"
#include "model/generation.h"
#include "run/machine.h"
#include "run/model_source.h"
#include "run/rank_options.h"
#include "run/sample_json.h"
#include "tools/command_line.h"
#include "tools/output.h"

namespace {

using namespace quire;

struct Settings {
  std::string model, weights, prompt, prompt_ids, dtype, device = "auto";
  GenerationOptions generation;
  int64_t samples = 1, threads = 0;
  bool has_prompt = false, ids = false, jsonl = false;
};

constexpr int64_t samples_at_once = 64;

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  const char *at = text.data(), *end = at + text.size();
  while (true) {
    while (at < end && *at == ' ') ++at;
    int32_t id = 0;
    const auto [after, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (after < end && *after != ',')) fail<ConfigError>("generate", "--prompt-ids '{}': expected token ids with commas between them, such as 1,2,3", text);
    ids.push_back(id);
    if (after == end) return ids;
    at = after + 1;
  }
}

std::shared_ptr<const Tokenizer> tokenizer_of(const ModelInfo& info) {
  return info.tokenizer.empty() ? nullptr : make_tokenizer(info.tokenizer, info.bos.has_value());
}

std::vector<int32_t> prompt_tokens(const Settings& settings, const ModelInfo& info, const Tokenizer* tokenizer) {
  if (!settings.prompt_ids.empty()) return parse_ids(settings.prompt_ids);
  std::vector<int32_t> tokens;
  if (info.bos) tokens.push_back(*info.bos);
  if (settings.has_prompt) {
    if (tokenizer == nullptr) fail<ConfigError>("generate", "{} comes without a tokenizer known here, so --prompt can not be read; give --prompt-ids 1,2,3", info.origin);
    if (const size_t valid = valid_utf8_prefix(settings.prompt); valid != settings.prompt.size())
      fail<ConfigError>("generate", "--prompt is not UTF-8 from byte {} on; give UTF-8 text or --prompt-ids", valid);
    tokenizer->encode(settings.prompt, tokens);
  }
  if (tokens.empty()) fail<ConfigError>("generate", "{} has no BOS to begin with; give --prompt{} or --prompt-ids", info.origin, tokenizer ? " with some text" : "");
  return tokens;
}

/// The text of tokens, where the model may know ids that its tokenizer does not.
std::string decode(const Tokenizer& tokenizer, std::span<const int32_t> tokens) {
  std::string text;
  for (const int32_t& token : tokens) text += token < tokenizer.vocabulary_size() ? tokenizer.decode({&token, 1}) : "\uFFFD";
  return text;
}

std::string joined(const std::vector<int32_t>& prompt, const std::vector<int32_t>& tokens) {
  return fmt::format("{}{}{}", fmt::join(prompt, " "), tokens.empty() ? "" : " ", fmt::join(tokens, " "));
}

void print_sample(const Settings& settings, const Tokenizer* tokenizer, int64_t sample, const std::vector<int32_t>& prompt, const Generated& generated) {
  if (settings.jsonl) {
    std::optional<std::string> text;
    if (tokenizer != nullptr) text = decode(*tokenizer, prompt) + decode(*tokenizer, generated.tokens);
    fmt::print("{}\n", to_json(sample, prompt, generated, text));
    return;
  }
  if (settings.ids || tokenizer == nullptr) {
    fmt::print("{}\n", joined(prompt, generated.tokens));
    return;
  }
  const std::string text = decode(*tokenizer, prompt) + decode(*tokenizer, generated.tokens);
  if (sample > 0) fmt::print("{}\n", std::string(40, '-'));
  fmt::print("{}{}", text, text.ends_with('\n') ? "" : "\n");
}

/// One sample of text on the way: each token is shown when it is there.
void stream(Rank& rank, Model& model, const Settings& settings, const Tokenizer& tokenizer, const std::vector<int32_t>& prompt) {
  bool at_line_start = true;
  const auto show = [&](std::span<const int32_t> tokens) {
    const std::string text = decode(tokenizer, tokens);
    if (text.empty()) return;
    at_line_start = text.back() == '\n';
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  show(prompt);
  generate(rank, model, {prompt}, settings.generation, [&](size_t, int32_t token) { show({&token, 1}); });
  if (!at_line_start) fmt::print("\n");
}

void run(const Settings& settings) {
  const std::unique_ptr<ModelSource> source = open_model_source(disk(), settings.model, settings.weights);
  const ModelInfo& info = source->info();
  for (const std::string& warning : info.warnings) fmt::print(stderr, "note: {}\n", warning);
  const std::shared_ptr<const Tokenizer> tokenizer = tokenizer_of(info);
  const std::vector<int32_t> prompt = prompt_tokens(settings, info, tokenizer.get());
  RankOptions options;
  options.threads = settings.threads > 0 ? static_cast<int>(settings.threads) : usable_processors();
  const DType dtype = settings.dtype.empty() ? info.dtype : dtype_from(settings.dtype);
  options.device = device_of(settings.device, dtype, {});
  Rank rank(options);
  check_device(rank, dtype);
  Model model(rank, info.model, dtype, false);
  source->load(rank, model);
  GenerationOptions generation = settings.generation;
  generation.end_tokens = info.eos;
  if (settings.samples == 1 && tokenizer && !settings.ids && !settings.jsonl) {
    Settings one = settings;
    one.generation = generation;
    stream(rank, model, one, *tokenizer, prompt);
    return;
  }
  for (int64_t first = 0; first < settings.samples; first += samples_at_once) {
    generation.first_sequence = first;
    const std::vector<std::vector<int32_t>> prompts(static_cast<size_t>(std::min(samples_at_once, settings.samples - first)), prompt);
    const std::vector<Generated> all = generate(rank, model, prompts, generation);
    for (size_t i = 0; i < all.size(); ++i) print_sample(settings, tokenizer.get(), first + static_cast<int64_t>(i), prompt, all[i]);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CommandLine app(
      "generate",
      "Samples text from trained weights.\n"
      "MODEL is a run folder, a checkpoint's folder, or a folder in the layout of Hugging Face (config.json and safetensors).");
  app.option("model", settings.model, "the model").required().type_name("MODEL");
  app.option("--weights", settings.weights, "MODEL is a config.json, and this its .safetensors file or index");
  const CommandLineOption prompt = app.option("--prompt", settings.prompt, "text to continue, after BOS where there is one; without: BOS alone");
  app.option("--prompt-ids", settings.prompt_ids, "token ids to continue, taken as they are: 1,2,3").excludes(prompt);
  app.option("--tokens", settings.generation.tokens, "most new tokens").with_default().not_negative();
  app.option("--temperature", settings.generation.temperature, "0 takes the most likely token").with_default().not_negative();
  app.option("--top-k", settings.generation.top_k, "only the K most likely tokens; 0: all").with_default().not_negative();
  app.option("--top-p", settings.generation.top_p, "only the most likely tokens that together have probability P").with_default();
  app.option("--seed", settings.generation.seed, "decides what is drawn").with_default();
  app.option("--samples", settings.samples, "texts; each is the same whatever their number").with_default().positive();
  app.flag("--ids", settings.ids, "print token ids, prompt included, a line per sample");
  app.flag("--jsonl", settings.jsonl, "print a JSON object per sample: sample, prompt_tokens, end (end_token, tokens or context), ids, text");
  app.option("--dtype", settings.dtype, "f64, f32 or bf16; without: what it was trained in, or f32").one_of({"f64", "f32", "bf16"});
  app.option("--device", settings.device, "auto, cpu or cuda; auto: a CUDA device where there is one, for f32 and bf16").with_default().one_of({"auto", "cpu", "cuda"});
  app.option("--threads", settings.threads, "0: every processor this process may use").with_default().within(0, 4096);
  if (const auto ended = app.parse(argc, argv)) return *ended;
  settings.has_prompt = prompt.given();
  try {
    run(settings);
    finish_output("generate");
    return 0;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
