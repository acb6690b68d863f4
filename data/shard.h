// Token shards: our own format, with an explicit document index.
//
// A corpus is a folder:
//   index.json         magic, version, tokenizer, vocabulary, BOS and EOS, token type, counts, digests, tokens and documents per
//   shard index.bin          64-byte header (QUIREIDX), then per document five int64: first token (counted over all shards),
//   length, valid
//                      targets, bytes of text (-1: not known), bytes that no counted target covers
//   tokens-00000.bin   64-byte header (QUIRETOK), then the ids as u16 or u32. A document lies in one shard.
//   mask-00000.bin     only where some target is masked: 64-byte header (QUIREMSK), then a byte per token, 1 where it counts as a
//   target
// All numbers are little-endian.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/shard_index.h"

namespace quire {

struct ShardOptions {
  std::string tokenizer;                      ///< name, "" where not known
  int64_t vocabulary_size = 0;                ///< u16 where it is at most 65,536, else u32
  int32_t eos = 0;
  std::optional<int32_t> bos;
  int64_t shard_bytes =
      int64_t{4} << 30;  ///< a new shard begins before one grows beyond this (a longer document is a shard of its own)
};

struct ShardSummary {
  int64_t documents = 0, tokens = 0, valid = 0, text_bytes = 0;
  uint64_t digest = 0;
};

/// Writes a corpus document by document, in bounded memory, beside its place; `finish` makes it durable and renames it there. Without
/// `finish` nothing is left at the path.
class ShardWriter final : public DocumentSink {
 public:
  /// FileError where `path` is there already. Removes what an earlier writer that died left beside it.
  ShardWriter(std::string path, const ShardOptions& options, FileSystem& fs = disk());
  ~ShardWriter() override;
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// DataError for no tokens, ids outside the vocabulary, a last token that is not EOS, or a mask of another length.
  void add(std::span<const int32_t> tokens, std::span<const uint8_t> mask = {}, int64_t text_bytes = -1,
           int64_t unscored_bytes = 0) override;
  /// DataError where there is no document.
  ShardSummary finish();

 private:
  struct Output {
    std::unique_ptr<File> file;
    std::vector<std::byte> buffer;
    Digest digest;
    void put(std::span<const std::byte> bytes);
    void flush();
  };

  std::string file_name(const char* kind, size_t shard) const;
  void open_output(Output& output, const std::string& path, const char* magic, int64_t unit);
  void close_output(Output& output);
  void discard() noexcept;
  void begin_shard();
  void begin_masks();
  void put_tokens(std::span<const int32_t> tokens);

  std::string path_, beside_;
  ShardOptions options_;
  FileSystem& fs_;
  bool wide_, has_mask_ = false, finished_ = false;
  Output tokens_, mask_, index_;
  std::vector<ShardIndex::Shard> shards_;
  ShardSummary summary_;
  int64_t longest_ = 0;
  ContentDigest content_;
};

/// Opens a folder of token shards (see Corpus::open).
std::shared_ptr<const Corpus> open_shards(const std::string& path, const CorpusOptions& options, FileSystem& fs);

}  // namespace quire
