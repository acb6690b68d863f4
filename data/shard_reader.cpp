#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "data/shard.h"
#include "data/shard_format.h"
#include "data/shard_index.h"
#include "runtime/error.h"

namespace quire {

using namespace shard_format;

namespace {

constexpr int64_t largest_index_in_memory = int64_t{64} << 20, largest_verified = int64_t{256} << 20;  // bytes

struct Part {
  std::string path;
  std::unique_ptr<File> file;
};

Part open_part(FileSystem& fs, std::string path, const char* magic, int64_t unit, int64_t count) {
  Part part{std::move(path), nullptr};
  part.file = fs.open(part.path);
  const int64_t size = part.file->size(), expected = header_bytes + unit * count;
  if (size == 0) fail<DataError>("shards", "'{}' is empty", part.path);
  std::array<std::byte, header_bytes> found{};
  if (size >= header_bytes) part.file->read_at(0, found);
  const auto wanted = header(magic, unit);
  if (size >= header_bytes && !std::equal(found.begin(), found.begin() + 8, wanted.begin()))
    fail<DataError>("shards", "'{}' does not begin with {}: it is no such file", part.path, magic);
  if (size >= header_bytes && found != wanted)
    fail<DataError>("shards", "'{}' has a header of another version or width than {}", part.path, unit);
  if (size != expected)
    fail<DataError>("shards", "'{}' has {} bytes, index.json needs {}: it is {}", part.path, size, expected,
                    size < expected ? "truncated" : "of another corpus");
  return part;
}

class ShardCorpus final : public Corpus {
 public:
  ShardCorpus(const std::string& path, const CorpusOptions& options, FileSystem& fs)
      : description_(ShardIndex::from_json(path + "/index.json", read_text(fs, path + "/index.json"))) {
    const ShardIndex& d = description_;
    info_.path = path;
    info_.tokenizer = d.tokenizer;
    info_.vocabulary_size = d.vocabulary_size;
    info_.eos = d.eos;
    info_.bos = d.bos;
    info_.has_mask = d.has_mask;
    info_.digest = d.digest;
    info_.longest = d.longest;
    check_options(options);
    index_ = open_part(fs, path + "/index.bin", index_magic, sizeof(Entry), d.documents);
    int64_t first = 0;
    for (size_t i = 0; i < d.shards.size(); ++i) {
      starts_.push_back(first);
      first += d.shards[i].tokens;
      tokens_.push_back(open_part(fs, fmt::format("{}/tokens-{:05}.bin", path, i), tokens_magic, d.width, d.shards[i].tokens));
      if (d.has_mask) masks_.push_back(open_part(fs, fmt::format("{}/mask-{:05}.bin", path, i), mask_magic, 1, d.shards[i].tokens));
    }
    if (d.documents * static_cast<int64_t>(sizeof(Entry)) <= largest_index_in_memory) load_index();
    const bool verify = options.verify == CorpusOptions::Verify::always ||
                        (options.verify == CorpusOptions::Verify::automatic && d.tokens * d.width <= largest_verified);
    if (verify) verify_content();
  }

  int64_t document_count() const override { return description_.documents; }

  DocumentInfo document(int64_t d) const override {
    const Entry e = entry(d);
    return {e.length, e.valid, e.text_bytes, e.unscored_bytes};
  }

  void read(int64_t d, int64_t offset, std::span<int32_t> tokens) const override {
    const Entry e = entry(d);
    check_range(d, e.length, offset, tokens.size());
    if (tokens.empty()) return;
    const size_t shard = shard_of(d, e);
    const Part& part = tokens_[shard];
    const int64_t first = e.first - starts_[shard] + offset;
    if (description_.width == 4) {
      part.file->read_at(header_bytes + first * 4, std::as_writable_bytes(tokens));
    } else {
      uint16_t narrow[8192];
      for (size_t i = 0; i < tokens.size(); i += std::size(narrow)) {
        const size_t count = std::min(std::size(narrow), tokens.size() - i);
        part.file->read_at(header_bytes + (first + static_cast<int64_t>(i)) * 2, std::as_writable_bytes(std::span(narrow, count)));
        std::copy_n(narrow, count, tokens.begin() + static_cast<ptrdiff_t>(i));
      }
    }
    check_ids(tokens, info_.vocabulary_size, part.path, first);
    if (offset + static_cast<int64_t>(tokens.size()) == e.length && tokens.back() != info_.eos)
      fail<DataError>("shards", "'{}': document {} ends with id {}, not with EOS {}", part.path, d, tokens.back(), info_.eos);
  }

  void read_mask(int64_t d, int64_t offset, std::span<uint8_t> mask) const override {
    const Entry e = entry(d);
    check_range(d, e.length, offset, mask.size());
    if (masks_.empty()) {
      std::fill(mask.begin(), mask.end(), uint8_t{1});
      return;
    }
    const size_t shard = shard_of(d, e);
    masks_[shard].file->read_at(header_bytes + e.first - starts_[shard] + offset, std::as_writable_bytes(mask));
    for (const uint8_t m : mask)
      if (m > 1) fail<DataError>("shards", "'{}': document {} has a mask of {}, neither 0 nor 1", masks_[shard].path, d, m);
  }

 private:
  void check_options(const CorpusOptions& options) const {
    if (options.eos && *options.eos != info_.eos)
      fail<ConfigError>("shards", "'{}' has EOS id {}, the settings say {}; leave the setting out", info_.path, info_.eos,
                        *options.eos);
    if (options.vocabulary_size > 0 && options.vocabulary_size < info_.vocabulary_size)
      fail<DataError>("shards", "'{}' has a vocabulary of {}, more than the {} allowed", info_.path, info_.vocabulary_size,
                      options.vocabulary_size);
  }

  Entry entry(int64_t d) const {
    if (d < 0 || d >= description_.documents) fail("corpus", "document {} of {}", d, description_.documents);
    if (!entries_.empty()) return entries_[static_cast<size_t>(d)];
    Entry e;
    index_.file->read_at(header_bytes + d * static_cast<int64_t>(sizeof(Entry)), std::as_writable_bytes(std::span(&e, 1)));
    check_entry(d, e);
    return e;
  }

  void check_entry(int64_t d, const Entry& e) const {
    if (e.length < 1 || e.length > info_.longest || e.first < 0 || e.first > description_.tokens - e.length || e.valid < 0 ||
        e.valid > e.length - 1 || (!info_.has_mask && e.valid != e.length - 1) || e.text_bytes < -1 || e.unscored_bytes < 0 ||
        (e.text_bytes >= 0 && e.unscored_bytes > e.text_bytes))
      fail<DataError>(
          "shards",
          "'{}': document {} has impossible values (first token {}, length {}, valid {}, text {}, unscored {}): it is damaged",
          index_.path, d, e.first, e.length, e.valid, e.text_bytes, e.unscored_bytes);
  }

  size_t shard_of(int64_t d, const Entry& e) const {
    const size_t shard = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), e.first) - starts_.begin()) - 1;
    if (e.first + e.length > starts_[shard] + description_.shards[shard].tokens)
      fail<DataError>("shards", "'{}': document {} reaches beyond its shard: the index is damaged", index_.path, d);
    return shard;
  }

  void load_index() {
    std::vector<Entry> entries(static_cast<size_t>(description_.documents));
    index_.file->read_at(header_bytes, std::as_writable_bytes(std::span(entries)));
    Digest digest;
    digest.update(header(index_magic, sizeof(Entry)));
    digest.update(std::as_bytes(std::span(entries)));
    if (digest.value() != description_.index_digest)
      fail<DataError>("shards", "'{}' has digest {}, index.json says {}: it is damaged or of another corpus", index_.path,
                      to_hex(digest.value()), to_hex(description_.index_digest));
    int64_t next = 0, valid = 0, longest = 0;
    for (int64_t d = 0; d < description_.documents; ++d) {
      const Entry& e = entries[static_cast<size_t>(d)];
      check_entry(d, e);
      if (e.first != next)
        fail<DataError>("shards", "'{}': document {} begins at token {}, not at {}", index_.path, d, e.first, next);
      shard_of(d, e);
      next += e.length;
      valid += e.valid;
      longest = std::max(longest, e.length);
    }
    if (next != description_.tokens || valid != description_.valid || longest != info_.longest)
      fail<DataError>("shards", "'{}' holds {} tokens, {} of them valid, longest document {}; index.json says {}, {}, {}",
                      index_.path, next, valid, longest, description_.tokens, description_.valid, info_.longest);
    entries_ = std::move(entries);
  }

  void verify_content() const {
    ContentDigest content;
    std::vector<int32_t> tokens;
    std::vector<uint8_t> mask;
    for (int64_t d = 0; d < description_.documents; ++d) {
      const Entry e = entry(d);
      tokens.resize(static_cast<size_t>(e.length));
      read(d, 0, tokens);
      mask.resize(info_.has_mask ? tokens.size() : 0);
      read_mask(d, 0, mask);
      content.add_document(tokens, mask);
      if (!mask.empty() && std::count(mask.begin() + 1, mask.end(), uint8_t{1}) != e.valid)
        fail<DataError>("shards", "'{}': the mask of document {} does not have the {} valid targets of the index", info_.path, d,
                        e.valid);
    }
    const uint64_t found = content.value(info_.eos, info_.bos);
    if (found != info_.digest)
      fail<DataError>("shards",
                      "the tokens in '{}' have digest {}, index.json says {}: a file is damaged; prepare the corpus again",
                      info_.path, to_hex(found), to_hex(info_.digest));
  }

  ShardIndex description_;
  Part index_;
  std::vector<Part> tokens_, masks_;
  std::vector<int64_t> starts_;   // first token of each shard
  std::vector<Entry> entries_;    // empty where the index is too large to hold
};

}  // namespace

std::shared_ptr<const Corpus> open_shards(const std::string& path, const CorpusOptions& options, FileSystem& fs) {
  if (!fs.exists(path + "/index.json"))
    fail<DataError>("shards", "'{}' has no index.json: it is no corpus, or preparing it did not finish; tools/prepare makes one",
                    path);
  return std::make_shared<ShardCorpus>(path, options, fs);
}

}  // namespace quire
