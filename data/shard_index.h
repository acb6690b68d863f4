// index.json of token shards (see data/shard.h): what the writer says of a corpus and the reader believes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

struct ShardIndex {
  struct Shard { int64_t tokens = 0, documents = 0; };

  std::string tokenizer;
  int64_t vocabulary_size = 0, documents = 0, tokens = 0, valid = 0, text_bytes = 0, longest = 0;
  int64_t width = 0;                         ///< bytes of a token: 2 or 4
  int32_t eos = 0;
  std::optional<int32_t> bos;
  bool has_mask = false;
  uint64_t digest = 0, index_digest = 0;     ///< of the content; of index.bin
  std::vector<Shard> shards;

  std::string to_json() const;
  /// DataError that names `path`, and the key that is missing, of another type or out of range; also for counts that contradict each other.
  static ShardIndex from_json(const std::string& path, std::string_view text);
};

}  // namespace quire
