// The documents that a config names.
#pragma once
#include "data/corpus.h"
#include "run/config.h"

namespace quire {

/// Opens data.dataset_path and what is held out (data.eval_fraction or data.eval_path; null without either). Throws what Corpus::open throws, and
/// ConfigError where the corpus does not fit the model (vocabulary) or the held-out documents are of another tokenizer.
CorpusSplit open_data(const Config& config, FileSystem& fs = disk());

}  // namespace quire
