#include "data/raw_corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "data/npy_header.h"
#include "runtime/error.h"

namespace quire {

namespace {

constexpr int32_t llmc_magic = 20240520, llmc_version = 1, llama3_magic = 20240801, llama3_version = 7;
constexpr int64_t llmc_header_bytes = 1024;

/// A file of ids: `count` of them from byte `begin`.
struct TokenFile {
  std::string path;
  std::unique_ptr<File> file;
  TokenType type;
  int64_t begin = 0, count = 0;
  int64_t first = 0;  // number of its first token in the corpus

  void read(int64_t at, std::span<int32_t> tokens) const {
    std::byte bytes[32768];
    const int64_t width = size_of(type);
    const size_t step = sizeof bytes / static_cast<size_t>(width);
    for (size_t i = 0; i < tokens.size(); i += step) {
      const size_t n = std::min(step, tokens.size() - i);
      file->read_at(begin + (at + static_cast<int64_t>(i)) * width, std::span(bytes).first(n * static_cast<size_t>(width)));
      convert(bytes, tokens.subspan(i, n), at + static_cast<int64_t>(i));
    }
  }

 private:
  template <class T>
  static void widen(const std::byte* from, std::span<int32_t> to) {
    for (size_t i = 0; i < to.size(); ++i) {
      T value;
      std::memcpy(&value, from + i * sizeof(T), sizeof(T));
      to[i] = static_cast<int32_t>(value);
    }
  }
  void convert(const std::byte* from, std::span<int32_t> to, int64_t at) const {
    switch (type) {
      case TokenType::u16: return widen<uint16_t>(from, to);
      case TokenType::u32:
      case TokenType::i32:
        return widen<int32_t>(from, to);  // a u32 beyond int32 becomes negative: outside any vocabulary
      case TokenType::i64: break;
    }
    for (size_t i = 0; i < to.size(); ++i) {
      int64_t value;
      std::memcpy(&value, from + i * sizeof value, sizeof value);
      if (value < 0 || value > std::numeric_limits<int32_t>::max())
        fail<DataError>("corpus", "'{}', token {}: id {} is outside any vocabulary [0, 2^31)", path, at + static_cast<int64_t>(i),
                        value);
      to[i] = static_cast<int32_t>(value);
    }
  }
};

void open_flat(TokenFile& file, const CorpusOptions& options) {
  if (options.token_type.empty())
    fail<ConfigError>("corpus", "'{}' does not say how wide its ids are; give the token type: u16, u32, i32 or i64", file.path);
  file.type = token_type_from(options.token_type);
  const int64_t size = file.file->size(), width = size_of(file.type);
  int32_t head[3] = {};
  if (size >= static_cast<int64_t>(sizeof head)) file.file->read_at(0, std::as_writable_bytes(std::span(head)));
  if (head[0] == llmc_magic || head[0] == llama3_magic) {
    const int32_t version = head[0] == llmc_magic ? llmc_version : llama3_version;
    const TokenType type = head[0] == llmc_magic ? TokenType::u16 : TokenType::u32;
    if (head[1] != version)
      fail<DataError>("corpus", "'{}' has llm.c's magic number {} but version {}, not {}", file.path, head[0], head[1], version);
    if (file.type != type)
      fail<ConfigError>("corpus", "'{}' has llm.c's magic number {}, which means {}, but the token type given is {}", file.path,
                        head[0], name_of(type), name_of(file.type));
    if (size != llmc_header_bytes + head[2] * width)
      fail<DataError>("corpus", "'{}' has {} bytes, its header's {} tokens need {}: it is truncated or damaged", file.path, size,
                      head[2], llmc_header_bytes + head[2] * width);
    file.begin = llmc_header_bytes;
    file.count = head[2];
    return;
  }
  if (size % width != 0)
    fail<DataError>("corpus", "'{}' has {} bytes, not a multiple of the {} of {}: another token type, or truncated", file.path,
                    size, width, name_of(file.type));
  file.count = size / width;
}

void open_npy(TokenFile& file, const CorpusOptions& options) {
  const NpyHeader header = read_npy_header(*file.file, file.path);
  if (!options.token_type.empty() && token_type_from(options.token_type) != header.type)
    fail<ConfigError>("corpus", "'{}' holds {}, but the token type given is {}", file.path, name_of(header.type), options.token_type);
  file.type = header.type;
  file.begin = header.begin;
  file.count = header.count;
}

void plain_starts(std::span<const int32_t> tokens, int32_t eos, std::span<int32_t> starts) {
  for (size_t i = 0; i < tokens.size(); ++i) starts[i] = i > 0 && tokens[i - 1] != eos ? starts[i - 1] : static_cast<int32_t>(i);
}

class RawCorpus final : public Corpus {
 public:
  RawCorpus(const std::string& path, const std::string& format, const CorpusOptions& options, FileSystem& fs) {
    if (!options.eos)
      fail<ConfigError>("corpus", "'{}' does not say which id ends a document; give the EOS id", path);
    const int64_t limit = options.vocabulary_size > 0 ? options.vocabulary_size : std::numeric_limits<int32_t>::max();
    for (const auto& [name, id] : {std::pair("EOS", options.eos), std::pair("BOS", options.bos)})
      if (id && (*id < 0 || *id >= limit))
        fail<ConfigError>("corpus", "{} id {} is outside the vocabulary [0, {})", name, *id, limit);
    info_.path = path;
    info_.eos = static_cast<int32_t>(*options.eos);
    if (options.bos) info_.bos = static_cast<int32_t>(*options.bos);
    int64_t first = 0;
    for (const std::string& name : file_names(path, format, fs)) {
      TokenFile file{name, fs.open(name), TokenType::u16};
      if (file.file->size() == 0) fail<DataError>("corpus", "'{}' is empty", name);
      format == "npy" ? open_npy(file, options) : open_flat(file, options);
      if (file.count == 0) fail<DataError>("corpus", "'{}' holds no tokens", name);
      file.first = first;
      first += file.count;
      files_.push_back(std::move(file));
    }
    tokens_ = first;
    find_documents(limit, options);
  }

  int64_t document_count() const override { return static_cast<int64_t>(begins_.size()); }
  DocumentInfo document(int64_t d) const override {
    if (d < 0 || d >= document_count()) fail("corpus", "document {} of {}", d, document_count());
    const size_t i = static_cast<size_t>(d);
    const int64_t length = (i + 1 < begins_.size() ? begins_[i + 1] : tokens_) - begins_[i];
    return {length, length - 1, -1, 0};
  }
  void read(int64_t d, int64_t offset, std::span<int32_t> tokens) const override {
    check_range(d, document(d).length, offset, tokens.size());
    if (tokens.empty()) return;
    const int64_t at = begins_[static_cast<size_t>(d)];
    const auto after =
        std::upper_bound(files_.begin(), files_.end(), at, [](int64_t token, const TokenFile& file) { return token < file.first; });
    const TokenFile& file = *(after - 1);
    file.read(at - file.first + offset, tokens);
    check_ids(tokens, info_.vocabulary_size, file.path, at - file.first + offset);
  }
  void read_mask(int64_t d, int64_t offset, std::span<uint8_t> mask) const override {
    check_range(d, document(d).length, offset, mask.size());
    std::fill(mask.begin(), mask.end(), uint8_t{1});
  }

 private:
  static std::vector<std::string> file_names(const std::string& path, const std::string& format, FileSystem& fs) {
    const std::string end = format == "npy" ? ".npy" : ".bin";
    try {
      fs.open(path);
      return {path};
    } catch (const FileError&) {  // a folder, or an error that listing repeats
    }
    std::vector<std::string> names;
    for (const std::string& name : fs.list(path))
      if (name.size() > end.size() && name.ends_with(end)) names.push_back(path + "/" + name);
    if (names.empty()) fail<DataError>("corpus", "'{}' can not be read, and is no folder with {} files", path, end);
    return names;
  }

  /// One pass: boundaries, largest id, digest.
  void find_documents(int64_t limit, const CorpusOptions& options) {
    std::vector<int32_t> chunk, starts;
    int64_t unterminated = 0, largest = std::max<int64_t>(info_.eos, info_.bos.value_or(0));
    Digest digest;
    for (const TokenFile& file : files_) {
      bool open = false;  // inside a document
      for (int64_t at = 0; at < file.count; at += static_cast<int64_t>(chunk.size())) {
        chunk.resize(static_cast<size_t>(std::min<int64_t>(file.count - at, 1 << 20)));
        file.read(at, chunk);
        check_ids(chunk, limit, file.path, at);
        digest.update(std::as_bytes(std::span(chunk)));
        starts.resize(chunk.size());
        options.starts_from_eos ? options.starts_from_eos(chunk, info_.eos, starts) : plain_starts(chunk, info_.eos, starts);
        for (size_t i = 0; i < chunk.size(); ++i) {
          const bool begins = starts[i] == static_cast<int32_t>(i) && (i > 0 || !open);  // a chunk's first token may go on with a document
          if (begins) begins_.push_back(file.first + at + static_cast<int64_t>(i));
          largest = std::max<int64_t>(largest, chunk[i]);
        }
        open = chunk.back() != info_.eos;
      }
      unterminated += open;
    }
    const int64_t ends = document_count() - unterminated;
    if (ends == 0)
      fail<DataError>("corpus", "'{}' has no EOS: id {} is not among its {} tokens; give the id that ends its documents",
                      info_.path, info_.eos, tokens_);
    if (unterminated > 0)
      info_.notes.push_back(fmt::format("{} of {} files of '{}' end without EOS; their last document is used as it is",
                                        unterminated, files_.size(), info_.path));
    info_.vocabulary_size = options.vocabulary_size > 0 ? options.vocabulary_size : largest + 1;
    for (int64_t d = 0; d < document_count(); ++d) info_.longest = std::max(info_.longest, document(d).length);
    for (const TokenFile& file : files_) digest.update_value(file.count);
    digest.update_value(info_.eos);
    digest.update_value(info_.bos.value_or(-1));
    info_.digest = digest.value();
  }

  std::vector<TokenFile> files_;
  std::vector<int64_t> begins_;  // first token of each document
  int64_t tokens_ = 0;
};

}  // namespace

std::shared_ptr<const Corpus> open_raw(const std::string& path, const std::string& format, const CorpusOptions& options,
                                       FileSystem& fs) {
  return std::make_shared<RawCorpus>(path, format, options, fs);
}

}  // namespace quire
