// Text, JSONL and folders of files to token shards.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "data/text_documents.h"
#include "runtime/file.h"

namespace quire {

struct PrepareSettings {
  std::vector<std::string>
      inputs;  ///< files and folders, in this order; folders are walked in the order of their paths, links in them skipped
  std::string output;                ///< folder of the corpus; must not be there
  std::string tokenizer = "byte";
  bool bos = false;
  bool deduplicate = false;          ///< leave out documents whose text came before
  std::vector<std::string>
      exclude;  ///< shell patterns for the names of files and for their paths inside an input folder; they also keep folders out
  TextSettings text;
  int64_t shard_bytes = int64_t{4} << 30;
  /// Called now and then with bytes of input read and bytes in all.
  std::function<void(int64_t, int64_t)> progress;
  /// Asked now and then: true stops with StateError, and nothing is left at `output`.
  std::function<bool()> stop;
};

struct PrepareSummary {
  int64_t files = 0;
  int64_t documents = 0;     ///< written
  int64_t tokens = 0;        ///< written, BOS and EOS included
  int64_t text_bytes = 0;    ///< of the documents written
  int64_t duplicates = 0;    ///< documents whose text came before; written unless deduplicate
  int64_t empty = 0;         ///< documents without text, not written
  uint64_t digest = 0;
  std::vector<std::pair<std::string, std::string>>
      skipped;  ///< path and reason: files of input folders that are links, no text, or excluded
};

/// Writes the corpus. Either all of it is there afterwards or nothing is. FileError, DataError or ConfigError for what can not be
/// read, is no text though named as an input, or does not fit together; files of folders that are no text are skipped instead.
PrepareSummary prepare(const PrepareSettings& settings, FileSystem& fs = disk());

}  // namespace quire
