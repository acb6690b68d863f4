// Token files of other programs, as they are: flat ids whose documents end at each EOS.
#pragma once
#include <memory>
#include <string>

#include "data/corpus.h"

namespace quire {

/// Opens one file, or every `.bin` (format raw) or `.npy` (format npy) of a folder in the order of their names. They are read
/// through once. raw: ids of `options.token_type` from the first byte (KempnerForge, OLMo), or after the 1,024-byte header of llm.c
/// and nanoGPT's descendants where the file begins with its magic number. npy: one-dimensional u16, u32, i32 or i64. A document
/// never spans two files; a file's last document may lack EOS (noted in info().notes). ConfigError without token type (raw) or EOS
/// id; DataError for wrong sizes, ids outside the vocabulary, or no EOS at all.
std::shared_ptr<const Corpus> open_raw(const std::string& path, const std::string& format, const CorpusOptions& options,
                                       FileSystem& fs);

}  // namespace quire
