// A text file as a corpus, tokenised in memory: for small texts. Not installed.
#pragma once
#include <memory>
#include <string>

#include "data/corpus.h"

namespace quire {

/// format: text or jsonl. Uses options.tokenizer, add_bos and separator. DataError where there is no document.
std::shared_ptr<const Corpus> open_text(const std::string& path, const std::string& format, const CorpusOptions& options,
                                        FileSystem& fs);

}  // namespace quire
