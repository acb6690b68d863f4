// A corpus: documents of token ids with an explicit index, however they are stored.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/content_digest.h"
#include "runtime/file.h"

namespace quire {

/// How token ids are stored in a file. Always said by the file's header or by the user, never guessed.
enum class TokenType : uint8_t { u16, u32, i32, i64 };
int64_t size_of(TokenType type);  ///< bytes of one id
std::string_view name_of(TokenType type);
/// From `u16`, `uint16` and so on; ConfigError with the nearest name.
TokenType token_type_from(std::string_view name);

/// What the index knows of one document, without reading a token.
struct DocumentInfo {
  int64_t length = 0;          ///< tokens, BOS and EOS included; at least 1
  int64_t valid = 0;           ///< targets that count: length - 1 without a mask
  int64_t text_bytes = -1;     ///< bytes of its text, -1 where not known
  int64_t unscored_bytes = 0;  ///< bytes of its text that no counted target covers (first token without BOS, masked prompts)
  bool operator==(const DocumentInfo&) const = default;
};

/// Sums over documents.
struct CorpusTotals {
  int64_t documents = 0, tokens = 0, valid = 0;
  int64_t text_bytes = 0;      ///< -1 where not known
  int64_t unscored_bytes = 0;
  bool operator==(const CorpusTotals&) const = default;
};

/// What is the same for all documents of a corpus.
struct CorpusInfo {
  std::string path;                 ///< where it came from, for messages
  std::string tokenizer;            ///< "" where not known
  int64_t vocabulary_size = 0;      ///< every id is below it
  int32_t eos = 0;
  std::optional<int32_t> bos;
  bool has_mask = false;            ///< some token is masked as a target
  uint64_t digest = 0;              ///< of documents, tokens and masks; does not depend on the division into files
  int64_t longest = 0;              ///< tokens of the longest document (an upper bound for a part of a corpus)
  std::vector<std::string> notes;   ///< what a log should say, such as a last document without EOS
};

/// How to open a path. Token files without an index of their own need `token_type` and `eos`; nothing is guessed.
struct CorpusOptions {
  std::string format;                ///< "" by what is there, or shards, raw, npy, text, jsonl
  std::string token_type;            ///< raw files: u16, u32, i32 or i64; "" where the header says it
  std::optional<int64_t> eos, bos;   ///< raw files
  int64_t vocabulary_size = 0;       ///< ids must be below it; 0: what the corpus says, or largest id + 1
  std::string tokenizer = "byte";    ///< text files
  bool add_bos = false;              ///< text files
  std::optional<std::string> separator;  ///< text files: the line between documents; without one a file is one document
  /// raw files: fills starts[i] with the index of the first token of token i's document, where a document ends after each `eos`. A plain loop
  /// where none is given; run/ gives the vectorised kernel.
  std::function<void(std::span<const int32_t> tokens, int32_t eos, std::span<int32_t> starts)> starts_from_eos;
  /// Whether every byte is checked against the digest at opening (prepared shards; raw files are always read through).
  /// `automatic`: up to 256 MiB of tokens. Ids and document ends are checked at every read besides.
  enum class Verify : uint8_t { automatic, always, never } verify = Verify::automatic;
};

/// Documents by number. Immutable; all reads may come from any thread.
class Corpus {
 public:
  virtual ~Corpus() = default;

  /// Opens token shards made by prepare (a folder with index.json); `.bin` or `.npy` token files or a folder of them; `.txt` or
  /// `.jsonl` text, tokenised in memory. FileError or DataError for what is missing, empty, truncated, of wrong magic, or holds ids
  /// outside the vocabulary; ConfigError where a raw file lacks its token type or EOS id.
  static std::shared_ptr<const Corpus> open(const std::string& path, const CorpusOptions& options = {}, FileSystem& fs = disk());

  const CorpusInfo& info() const { return info_; }
  int64_t vocabulary_size() const { return info_.vocabulary_size; }
  int32_t eos() const { return info_.eos; }
  std::optional<int32_t> bos() const { return info_.bos; }
  bool has_mask() const { return info_.has_mask; }
  uint64_t digest() const { return info_.digest; }

  virtual int64_t document_count() const = 0;
  /// From the index; no token is read.
  virtual DocumentInfo document(int64_t d) const = 0;
  int64_t length(int64_t d) const { return document(d).length; }
  int64_t valid(int64_t d) const { return document(d).valid; }
  int64_t text_bytes(int64_t d) const { return document(d).text_bytes; }

  /// Tokens [offset, offset + tokens.size()) of document d. DataError for ids outside the vocabulary.
  virtual void read(int64_t d, int64_t offset, std::span<int32_t> tokens) const = 0;
  /// 1 where that token counts as a target, else 0; all 1 without a mask. The document's first token is never a target, whatever
  /// this says.
  virtual void read_mask(int64_t d, int64_t offset, std::span<uint8_t> mask) const = 0;
  /// Sums over all documents, from the index.
  virtual CorpusTotals totals() const;

  /// Counted targets of the inputs [offset, offset + length) of document d. Reads masks (no tokens) where there are masks and the
  /// document is cut.
  int64_t valid_in(int64_t d, const DocumentInfo& document, int64_t offset, int64_t length) const;

 protected:
  /// Throws Error unless document d has [offset, offset + count).
  static void check_range(int64_t d, int64_t length, int64_t offset, size_t count);
  CorpusInfo info_;
};

/// Receives documents one by one. `tokens` hold BOS and EOS; an empty mask means all ones.
class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  virtual void add(std::span<const int32_t> tokens, std::span<const uint8_t> mask, int64_t text_bytes, int64_t unscored_bytes) = 0;
};

/// Documents held in memory: for programs with their own data, small texts, and tests.
class MemoryCorpus final : public Corpus, public DocumentSink {
 public:
  /// `info` gives vocabulary_size, eos, bos, tokenizer and path; the rest is filled in.
  explicit MemoryCorpus(CorpusInfo info);
  /// A document ends with EOS and its ids are inside the vocabulary (DataError).
  void add(std::span<const int32_t> tokens, std::span<const uint8_t> mask = {}, int64_t text_bytes = -1,
           int64_t unscored_bytes = 0) override;

  int64_t document_count() const override { return static_cast<int64_t>(documents_.size()); }
  DocumentInfo document(int64_t d) const override;
  void read(int64_t d, int64_t offset, std::span<int32_t> tokens) const override;
  void read_mask(int64_t d, int64_t offset, std::span<uint8_t> mask) const override;

 private:
  std::vector<DocumentInfo> documents_;
  std::vector<int64_t> offsets_;
  std::vector<int32_t> tokens_;
  std::vector<uint8_t> mask_;  ///< empty while no document has a mask
  ContentDigest content_;
};

/// DataError, naming `what`, unless the document has tokens, ends with EOS, stays inside the vocabulary and has a mask of its size
/// or none.
void check_document(std::span<const int32_t> tokens, std::span<const uint8_t> mask, int64_t vocabulary_size, int32_t eos,
                    std::string_view what);
/// DataError for the first id outside [0, vocabulary_size), as token `first` + its place of `what`.
void check_ids(std::span<const int32_t> tokens, int64_t vocabulary_size, std::string_view what, int64_t first);

/// Training and held-out parts of one corpus.
struct CorpusSplit {
  std::shared_ptr<const Corpus> train;
  std::shared_ptr<const Corpus> held_out;  ///< null where eval_fraction is 0
};
/// Splits by document: round(eval_fraction * documents), at least 1, are held out, chosen by a permutation keyed with the seed (no
/// state per document). ConfigError unless 0 <= eval_fraction < 1; DataError where a part would be empty.
CorpusSplit split_corpus(std::shared_ptr<const Corpus> corpus, double eval_fraction, uint64_t seed);

}  // namespace quire
