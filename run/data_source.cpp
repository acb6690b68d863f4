#include "run/data_source.h"

#include "ops/kernels.h"
#include "runtime/dispatch.h"
#include "runtime/error.h"

namespace quire {

namespace {

CorpusOptions corpus_options(const Config& config) {
  CorpusOptions options;
  options.token_type = config.data.tokens_dtype;
  if (config.data.eos_id >= 0) options.eos = config.data.eos_id;
  options.tokenizer = config.data.tokenizer;
  if (!config.data.separator.empty()) options.separator = config.data.separator;
  options.starts_from_eos = [rank = std::make_shared<Rank>(RankOptions{})](std::span<const int32_t> tokens, int32_t eos, std::span<int32_t> starts) {
    dispatch(*rank, StartsFromEosArgs{static_cast<int64_t>(tokens.size()), tokens.data(), eos, starts.data()});
  };
  return options;
}

std::shared_ptr<const Corpus> open_checked(const Config& config, const std::string& key, const std::string& path, FileSystem& fs) {
  std::shared_ptr<const Corpus> corpus = Corpus::open(path, corpus_options(config), fs);
  if (corpus->vocabulary_size() > config.model.vocab_size)
    fail<ConfigError>("model.vocab_size", "{} is too small for {} ({}), whose vocabulary is {}; set model.vocab_size={} or more", config.model.vocab_size, key, path,
                      corpus->vocabulary_size(), corpus->vocabulary_size());
  return corpus;
}

}  // namespace

CorpusSplit open_data(const Config& config, FileSystem& fs) {
  const std::shared_ptr<const Corpus> corpus = open_checked(config, "data.dataset_path", config.data.dataset_path, fs);
  if (config.data.eval_path.empty()) return split_corpus(corpus, config.data.eval_fraction, static_cast<uint64_t>(config.train.data_seed));
  const std::shared_ptr<const Corpus> held_out = open_checked(config, "data.eval_path", config.data.eval_path, fs);
  if (held_out->eos() != corpus->eos() || held_out->bos() != corpus->bos() || held_out->info().tokenizer != corpus->info().tokenizer)
    fail<ConfigError>("data.eval_path", "{} was made with another tokenizer, BOS or EOS than {}; prepare both alike", config.data.eval_path, config.data.dataset_path);
  return {corpus, held_out};
}

}  // namespace quire
