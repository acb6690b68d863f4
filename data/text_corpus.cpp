#include "data/text_corpus.h"

#include "data/text_documents.h"
#include "runtime/error.h"

namespace quire {

std::shared_ptr<const Corpus> open_text(const std::string& path, const std::string& format, const CorpusOptions& options,
                                        FileSystem& fs) {
  const auto tokenizer = make_tokenizer(options.tokenizer, options.add_bos);
  if (options.vocabulary_size > 0 && options.vocabulary_size < tokenizer->vocabulary_size())
    fail<DataError>("corpus", "the tokenizer '{}' has a vocabulary of {}, more than the {} allowed", options.tokenizer,
                    tokenizer->vocabulary_size(), options.vocabulary_size);
  DocumentEncoder encoder(tokenizer);
  CorpusInfo info;
  info.path = path;
  info.tokenizer = tokenizer->name();
  info.vocabulary_size = tokenizer->vocabulary_size();
  info.eos = *tokenizer->eos();
  info.bos = tokenizer->bos();
  auto corpus = std::make_shared<MemoryCorpus>(info);
  TextSettings settings;
  settings.separator = options.separator;
  for_each_document(*fs.open(path), path, format == "jsonl" ? TextFormat::jsonl : TextFormat::text, settings,
                    [&](const TextDocument& document) {
                      if (!document.text.empty() || (document.prompt && !document.prompt->empty()))
                        encoder.encode(document, *corpus);
                    });
  if (corpus->document_count() == 0) fail<DataError>("corpus", "'{}' has no text", path);
  return corpus;
}

}  // namespace quire
