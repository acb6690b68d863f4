#include "data/corpus.h"

#include <algorithm>
#include <cmath>

#include "data/raw_corpus.h"
#include "data/shard.h"
#include "data/text_corpus.h"
#include "runtime/error.h"
#include "runtime/random.h"

namespace quire {

int64_t size_of(TokenType type) {
  switch (type) {
    case TokenType::u16: return 2;
    case TokenType::u32: case TokenType::i32: return 4;
    case TokenType::i64: return 8;
  }
  return 0;
}

std::string_view name_of(TokenType type) {
  switch (type) {
    case TokenType::u16: return "u16";
    case TokenType::u32: return "u32";
    case TokenType::i32: return "i32";
    case TokenType::i64: return "i64";
  }
  return "";
}

TokenType token_type_from(std::string_view name) {
  if (name == "u16" || name == "uint16") return TokenType::u16;
  if (name == "u32" || name == "uint32") return TokenType::u32;
  if (name == "i32" || name == "int32") return TokenType::i32;
  if (name == "i64" || name == "int64") return TokenType::i64;
  const std::string near = nearest(name, {"u16", "u32", "i32", "i64", "uint16", "uint32", "int32", "int64"});
  fail<ConfigError>("corpus", "unknown token type '{}'; known: u16, u32, i32, i64{}", name,
                    near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

void Corpus::check_range(int64_t d, int64_t length, int64_t offset, size_t count) {
  if (offset < 0 || offset > length || static_cast<int64_t>(count) > length - offset)
    fail("corpus", "tokens [{}, {}) of document {}, which has {}", offset, offset + static_cast<int64_t>(count), d, length);
}

int64_t Corpus::valid_in(int64_t d, const DocumentInfo& document, int64_t offset, int64_t length) const {
  const int64_t end = std::min(offset + length + 1, document.length);  // one past the last target
  const int64_t targets = std::max<int64_t>(end - offset - 1, 0);
  if (!info_.has_mask || document.valid == document.length - 1) return targets;
  if (offset == 0 && end == document.length) return document.valid;
  std::vector<uint8_t> mask(static_cast<size_t>(targets));
  read_mask(d, offset + 1, mask);
  return static_cast<int64_t>(mask.size()) - std::count(mask.begin(), mask.end(), uint8_t{0});
}

CorpusTotals Corpus::totals() const {
  CorpusTotals totals;
  totals.documents = document_count();
  for (int64_t d = 0; d < totals.documents; ++d) {
    const DocumentInfo info = document(d);
    totals.tokens += info.length;
    totals.valid += info.valid;
    totals.unscored_bytes += info.unscored_bytes;
    totals.text_bytes = totals.text_bytes < 0 || info.text_bytes < 0 ? -1 : totals.text_bytes + info.text_bytes;
  }
  return totals;
}

namespace {

/// Part of a corpus: the images [first, first + count) of a permutation of its documents.
class CorpusPart final : public Corpus {
 public:
  CorpusPart(std::shared_ptr<const Corpus> whole, const Permutation& order, int64_t first, int64_t count, uint64_t seed)
      : whole_(std::move(whole)), order_(order), first_(first), count_(count) {
    info_ = whole_->info();
    Digest digest(whole_->digest());
    for (const uint64_t value : {static_cast<uint64_t>(first), static_cast<uint64_t>(count), seed}) digest.update_value(value);
    info_.digest = digest.value();
  }

  int64_t document_count() const override { return count_; }
  DocumentInfo document(int64_t d) const override { return whole_->document(at(d)); }
  void read(int64_t d, int64_t offset, std::span<int32_t> tokens) const override { whole_->read(at(d), offset, tokens); }
  void read_mask(int64_t d, int64_t offset, std::span<uint8_t> mask) const override { whole_->read_mask(at(d), offset, mask); }

 private:
  int64_t at(int64_t d) const {
    if (d < 0 || d >= count_) fail("corpus", "document {} of a part of {} documents", d, count_);
    return static_cast<int64_t>(order_(static_cast<uint64_t>(first_ + d)));
  }
  std::shared_ptr<const Corpus> whole_;
  Permutation order_;
  int64_t first_, count_;
};

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

std::string format_of(const std::string& path, FileSystem& fs) {
  if (fs.exists(path + "/index.json") || fs.exists(path + "/index.bin")) return "shards";
  for (const char* format : {"npy", "txt", "jsonl", "bin"})
    if (ends_with(path, std::string(".") + format))
      return format == std::string("bin") ? "raw" : format == std::string("txt") ? "text" : format;
  std::unique_ptr<File> file;
  try {
    file = fs.open(path);
  } catch (const FileError&) {  // a folder, for all that FileSystem says
    const std::vector<std::string> names = fs.list(path);
    for (const char* format : {"bin", "npy"})
      if (std::any_of(names.begin(), names.end(),
                      [&](const std::string& name) { return ends_with(name, std::string(".") + format); }))
        return format == std::string("bin") ? "raw" : "npy";
    fail<DataError>("corpus", "'{}' is no corpus: it has neither index.json (made by prepare) nor .bin or .npy token files", path);
  }
  fail<DataError>("corpus", "'{}' has no known ending; known: a folder made by prepare, .bin, .npy, .txt, .jsonl; or say format",
                  path);
}

}  // namespace

std::shared_ptr<const Corpus> Corpus::open(const std::string& path, const CorpusOptions& options, FileSystem& fs) {
  if (!fs.exists(path)) fail<FileError>("corpus", "'{}' does not exist; tools/prepare makes a corpus from text", path);
  const std::string format = options.format.empty() ? format_of(path, fs) : options.format;
  if (format == "shards") return open_shards(path, options, fs);
  if (format == "raw" || format == "npy") return open_raw(path, format, options, fs);
  if (format == "text" || format == "jsonl") return open_text(path, format, options, fs);
  const std::string near = nearest(format, {"shards", "raw", "npy", "text", "jsonl"});
  fail<ConfigError>("corpus", "unknown format '{}'; known: shards, raw, npy, text, jsonl{}", format,
                    near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

CorpusSplit split_corpus(std::shared_ptr<const Corpus> corpus, double eval_fraction, uint64_t seed) {
  if (!(eval_fraction >= 0 && eval_fraction < 1)) fail<ConfigError>("corpus", "eval_fraction {} is not in [0, 1)", eval_fraction);
  if (eval_fraction == 0) return {corpus, nullptr};
  const int64_t documents = corpus->document_count();
  const int64_t held_out = std::max<int64_t>(1, std::llround(eval_fraction * static_cast<double>(documents)));
  if (held_out >= documents)
    fail<DataError>("corpus", "eval_fraction {} of {} documents leaves none to train on; give more documents or a smaller fraction",
                    eval_fraction, documents);
  const Permutation order(static_cast<uint64_t>(documents), seed, stream_of("data.held_out"));
  return {std::make_shared<CorpusPart>(corpus, order, held_out, documents - held_out, seed),
          std::make_shared<CorpusPart>(corpus, order, 0, held_out, seed)};
}

MemoryCorpus::MemoryCorpus(CorpusInfo info) {
  info_ = std::move(info);
  info_.has_mask = false;
  info_.longest = 0;
  if (info_.eos < 0 || info_.eos >= info_.vocabulary_size)
    fail<DataError>("corpus", "EOS id {} is outside the vocabulary [0, {})", info_.eos, info_.vocabulary_size);
  info_.digest = content_.value(info_.eos, info_.bos);
}

void MemoryCorpus::add(std::span<const int32_t> tokens, std::span<const uint8_t> mask, int64_t text_bytes, int64_t unscored_bytes) {
  const int64_t length = static_cast<int64_t>(tokens.size());
  const int64_t d = document_count();
  check_document(tokens, mask, info_.vocabulary_size, info_.eos, fmt::format("document {}", d));
  const bool masked = masks_something(mask);
  std::vector<uint8_t> normal(masked ? mask.size() : 0, 1);
  for (size_t i = 1; i < normal.size(); ++i) normal[i] = mask[i] != 0;
  if (masked && !info_.has_mask) {
    info_.has_mask = true;
    mask_.assign(tokens_.size(), 1);
  }
  offsets_.push_back(static_cast<int64_t>(tokens_.size()));
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  if (info_.has_mask) {
    if (masked) mask_.insert(mask_.end(), normal.begin(), normal.end());
    else mask_.resize(tokens_.size(), 1);
  }
  const int64_t ignored = masked ? std::count(mask.begin() + 1, mask.end(), uint8_t{0}) : 0;
  documents_.push_back({length, length - 1 - ignored, text_bytes, unscored_bytes});
  content_.add_document(tokens, normal);
  info_.digest = content_.value(info_.eos, info_.bos);
  info_.longest = std::max(info_.longest, length);
}

DocumentInfo MemoryCorpus::document(int64_t d) const {
  if (d < 0 || d >= document_count()) fail("corpus", "document {} of {}", d, document_count());
  return documents_[static_cast<size_t>(d)];
}

void MemoryCorpus::read(int64_t d, int64_t offset, std::span<int32_t> tokens) const {
  check_range(d, document(d).length, offset, tokens.size());
  std::copy_n(tokens_.begin() + static_cast<ptrdiff_t>(offsets_[static_cast<size_t>(d)] + offset), tokens.size(), tokens.begin());
}

void MemoryCorpus::read_mask(int64_t d, int64_t offset, std::span<uint8_t> mask) const {
  check_range(d, document(d).length, offset, mask.size());
  if (mask_.empty()) std::fill(mask.begin(), mask.end(), uint8_t{1});
  else std::copy_n(mask_.begin() + static_cast<ptrdiff_t>(offsets_[static_cast<size_t>(d)] + offset), mask.size(), mask.begin());
}

void check_document(std::span<const int32_t> tokens, std::span<const uint8_t> mask, int64_t vocabulary_size, int32_t eos,
                    std::string_view what) {
  if (tokens.empty()) fail<DataError>("corpus", "{} has no tokens; leave empty documents out", what);
  if (tokens.back() != eos) fail<DataError>("corpus", "{} ends with id {}, not with EOS {}", what, tokens.back(), eos);
  if (!mask.empty() && mask.size() != tokens.size())
    fail<DataError>("corpus", "{} has {} tokens but a mask of {}", what, tokens.size(), mask.size());
  check_ids(tokens, vocabulary_size, what, 0);
}

void check_ids(std::span<const int32_t> tokens, int64_t vocabulary_size, std::string_view what, int64_t first) {
  uint32_t largest = 0;  // a negative id is a large unsigned one
  for (const int32_t id : tokens) largest = std::max(largest, static_cast<uint32_t>(id));
  if (tokens.empty() || largest < static_cast<uint64_t>(vocabulary_size)) return;
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= vocabulary_size)
      fail<DataError>("corpus", "{}, token {}: id {} is outside the vocabulary [0, {})", what, first + static_cast<int64_t>(i),
                      tokens[i], vocabulary_size);
}

}  // namespace quire
