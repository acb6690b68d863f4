#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "data/shard.h"
#include "data/shard_format.h"
#include "runtime/error.h"

namespace quire {

using namespace shard_format;

namespace {

constexpr size_t buffer_bytes = size_t{1} << 20;

std::string without_trailing_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

void ShardWriter::Output::put(std::span<const std::byte> bytes) {
  buffer.insert(buffer.end(), bytes.begin(), bytes.end());
  if (buffer.size() >= buffer_bytes) flush();
}

void ShardWriter::Output::flush() {
  if (buffer.empty()) return;
  digest.update(buffer);
  file->write(buffer);
  buffer.clear();
}

ShardWriter::ShardWriter(std::string path, const ShardOptions& options, FileSystem& fs)
    : path_(without_trailing_slash(std::move(path))),
      beside_(path_ + ".writing"),
      options_(options),
      fs_(fs),
      wide_(options.vocabulary_size > 65536) {
  if (options.vocabulary_size < 1 || options.vocabulary_size > std::numeric_limits<int32_t>::max())
    fail<DataError>("shards", "vocabulary_size {} is not in [1, 2^31)", options.vocabulary_size);
  if (options.eos < 0 || options.eos >= options.vocabulary_size)
    fail<DataError>("shards", "EOS id {} is outside the vocabulary [0, {})", options.eos, options.vocabulary_size);
  if (options.bos && (*options.bos < 0 || *options.bos >= options.vocabulary_size))
    fail<DataError>("shards", "BOS id {} is outside the vocabulary [0, {})", *options.bos, options.vocabulary_size);
  if (fs_.exists(path_)) fail<FileError>("shards", "'{}' is there already; remove it or choose another folder", path_);
  fs_.remove_all(beside_);
  try {
    fs_.make_directories(beside_);
    open_output(index_, beside_ + "/index.bin", index_magic, sizeof(Entry));
    begin_shard();
  } catch (...) {
    discard();
    throw;
  }
}

ShardWriter::~ShardWriter() {
  if (!finished_) discard();
}

void ShardWriter::discard() noexcept {
  for (Output* output : {&tokens_, &mask_, &index_}) output->file.reset();
  try {
    fs_.remove_all(beside_);
  } catch (const std::exception&) {  // the error that led here matters more; the next writer removes what is left
  }
}

std::string ShardWriter::file_name(const char* kind, size_t shard) const {
  return fmt::format("{}/{}-{:05}.bin", beside_, kind, shard);
}

void ShardWriter::open_output(Output& output, const std::string& path, const char* magic, int64_t unit) {
  output.file = fs_.create(path);
  output.buffer.clear();
  output.digest = Digest();
  output.put(header(magic, unit));
}

void ShardWriter::close_output(Output& output) {
  output.flush();
  output.file->sync();
  output.file.reset();
}

void ShardWriter::begin_shard() {
  if (tokens_.file) close_output(tokens_);
  if (mask_.file) close_output(mask_);
  open_output(tokens_, file_name("tokens", shards_.size()), tokens_magic, wide_ ? 4 : 2);
  if (has_mask_) open_output(mask_, file_name("mask", shards_.size()), mask_magic, 1);
  shards_.emplace_back();
}

/// The first mask has come: everything before it counts.
void ShardWriter::begin_masks() {
  has_mask_ = true;
  const std::vector<std::byte> ones(buffer_bytes, std::byte{1});
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    if (mask_.file) close_output(mask_);
    open_output(mask_, file_name("mask", shard), mask_magic, 1);
    for (int64_t left = shards_[shard].tokens; left > 0; left -= static_cast<int64_t>(ones.size()))
      mask_.put(std::span(ones).first(std::min(ones.size(), static_cast<size_t>(left))));
  }
}

void ShardWriter::put_tokens(std::span<const int32_t> tokens) {
  if (wide_) {
    tokens_.put(std::as_bytes(tokens));
    return;
  }
  uint16_t narrow[4096];
  for (size_t i = 0; i < tokens.size(); i += std::size(narrow)) {
    const size_t count = std::min(std::size(narrow), tokens.size() - i);
    for (size_t j = 0; j < count; ++j) narrow[j] = static_cast<uint16_t>(tokens[i + j]);
    tokens_.put(std::as_bytes(std::span(narrow, count)));
  }
}

void ShardWriter::add(std::span<const int32_t> tokens, std::span<const uint8_t> mask, int64_t text_bytes, int64_t unscored_bytes) {
  if (finished_) fail<StateError>("shards", "a document after finish");
  check_document(tokens, mask, options_.vocabulary_size, options_.eos, fmt::format("document {}", summary_.documents));
  const bool masked = masks_something(mask);
  const int64_t length = static_cast<int64_t>(tokens.size()), width = wide_ ? 4 : 2;
  if (shards_.back().documents > 0 && (shards_.back().tokens + length) * width > options_.shard_bytes) begin_shard();
  if (masked && !has_mask_) begin_masks();

  put_tokens(tokens);
  if (has_mask_) {
    if (masked) {
      std::vector<uint8_t> bytes(mask.size());
      std::transform(mask.begin(), mask.end(), bytes.begin(), [](uint8_t m) { return static_cast<uint8_t>(m != 0); });
      bytes[0] = 1;
      mask_.put(std::as_bytes(std::span(bytes)));
      content_.add_document(tokens, bytes);
    } else {
      mask_.put(std::vector<std::byte>(tokens.size(), std::byte{1}));
    }
  }
  if (!masked) content_.add_document(tokens, {});
  const int64_t ignored = masked ? std::count(mask.begin() + 1, mask.end(), uint8_t{0}) : 0;
  const Entry entry{summary_.tokens, length, length - 1 - ignored, text_bytes, unscored_bytes};
  index_.put(std::as_bytes(std::span(&entry, 1)));

  shards_.back().tokens += length;
  ++shards_.back().documents;
  ++summary_.documents;
  summary_.tokens += length;
  summary_.valid += entry.valid;
  summary_.text_bytes = summary_.text_bytes < 0 || text_bytes < 0 ? -1 : summary_.text_bytes + text_bytes;
  longest_ = std::max(longest_, length);
}

ShardSummary ShardWriter::finish() {
  if (finished_) fail<StateError>("shards", "finish was called before");
  if (summary_.documents == 0) fail<DataError>("shards", "no document was given for '{}'", path_);
  for (Output* output : {&tokens_, &mask_, &index_})
    if (output->file) close_output(*output);
  summary_.digest = content_.value(options_.eos, options_.bos);

  const ShardIndex index{.tokenizer = options_.tokenizer,
                         .vocabulary_size = options_.vocabulary_size,
                         .documents = summary_.documents,
                         .tokens = summary_.tokens,
                         .valid = summary_.valid,
                         .text_bytes = summary_.text_bytes,
                         .longest = longest_,
                         .width = wide_ ? 4 : 2,
                         .eos = options_.eos,
                         .bos = options_.bos,
                         .has_mask = has_mask_,
                         .digest = summary_.digest,
                         .index_digest = index_.digest.value(),
                         .shards = shards_};
  write_atomically(fs_, beside_ + "/index.json", index.to_json());

  fs_.sync_directory(beside_);
  fs_.rename(beside_, path_);
  finished_ = true;
  fs_.sync_directory(folder_of(path_));
  return summary_;
}

}  // namespace quire
