#include "data/shard_index.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "data/shard_format.h"
#include "runtime/digest.h"
#include "runtime/error.h"

namespace quire {

namespace {

using shard_format::json_magic;

class Fields {
 public:
  Fields(const nlohmann::json& json, const std::string& path) : json_(json), path_(path) {}
  const nlohmann::json& at(const char* key) const {
    const auto it = json_.find(key);
    if (it == json_.end()) fail<DataError>("shards", "'{}' lacks the key '{}'", path_, key);
    return *it;
  }
  int64_t integer(const char* key, int64_t least, int64_t most = std::numeric_limits<int64_t>::max()) const {
    const nlohmann::json& value = at(key);
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(most)) ||
        value.get<int64_t>() < least || value.get<int64_t>() > most)
      fail<DataError>("shards", "'{}', key '{}': {} is no integer in [{}, {}]", path_, key, value.dump(), least, most);
    return value.get<int64_t>();
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) fail<DataError>("shards", "'{}', key '{}': {} is no text", path_, key, at(key).dump());
    return at(key).get<std::string>();
  }

 private:
  const nlohmann::json& json_;
  const std::string& path_;
};

}  // namespace

std::string ShardIndex::to_json() const {
  nlohmann::ordered_json json;
  json["magic"] = json_magic;
  json["version"] = shard_format::version;
  json["tokenizer"] = tokenizer;
  json["vocabulary_size"] = vocabulary_size;
  json["eos"] = eos;
  json["bos"] = bos ? nlohmann::ordered_json(*bos) : nlohmann::ordered_json(nullptr);
  json["token_type"] = width == 4 ? "u32" : "u16";
  json["has_mask"] = has_mask;
  json["documents"] = documents;
  json["tokens"] = tokens;
  json["valid"] = valid;
  json["text_bytes"] = text_bytes;
  json["longest"] = longest;
  json["digest"] = to_hex(digest);
  json["index_digest"] = to_hex(index_digest);
  for (const Shard& shard : shards) json["shards"].push_back({{"tokens", shard.tokens}, {"documents", shard.documents}});
  return json.dump(2) + "\n";
}

ShardIndex ShardIndex::from_json(const std::string& path, std::string_view text) {
  if (text.empty()) fail<DataError>("shards", "'{}' is empty", path);
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    fail<DataError>("shards", "'{}' is no JSON ({}): it is truncated or damaged", path, error.what());
  }
  if (!json.is_object() || json.value("magic", nlohmann::json()) != nlohmann::json(json_magic))
    fail<DataError>("shards", "'{}' does not describe a corpus: its key 'magic' is not '{}'", path, json_magic);
  const Fields fields(json, path);
  const int64_t found = fields.integer("version", 0);
  if (found != shard_format::version)
    fail<DataError>("shards", "'{}' is of version {}; this program reads version {}: prepare the corpus again", path, found,
                    shard_format::version);

  ShardIndex d;
  d.tokenizer = fields.text("tokenizer");
  d.vocabulary_size = fields.integer("vocabulary_size", 1, std::numeric_limits<int32_t>::max());
  d.eos = static_cast<int32_t>(fields.integer("eos", 0, d.vocabulary_size - 1));
  if (!fields.at("bos").is_null()) d.bos = static_cast<int32_t>(fields.integer("bos", 0, d.vocabulary_size - 1));
  const std::string type = fields.text("token_type");
  if (type != "u16" && type != "u32") fail<DataError>("shards", "'{}', key 'token_type': '{}' is neither u16 nor u32", path, type);
  d.width = type == "u16" ? 2 : 4;
  if (!fields.at("has_mask").is_boolean()) fail<DataError>("shards", "'{}', key 'has_mask' is neither true nor false", path);
  d.has_mask = fields.at("has_mask").get<bool>();
  constexpr int64_t most = std::numeric_limits<int64_t>::max() / 64;  // keeps every size in bytes inside 64 bits
  d.documents = fields.integer("documents", 1, most);
  d.tokens = fields.integer("tokens", d.documents, most);
  d.valid = fields.integer("valid", 0, d.tokens - d.documents);
  d.text_bytes = fields.integer("text_bytes", -1);
  d.longest = fields.integer("longest", 1, d.tokens);
  d.digest = from_hex(fields.text("digest"));
  d.index_digest = from_hex(fields.text("index_digest"));
  const nlohmann::json& shards = fields.at("shards");
  if (!shards.is_array() || shards.empty()) fail<DataError>("shards", "'{}', key 'shards' is no list of shards", path);
  int64_t tokens = 0, documents = 0;
  for (const nlohmann::json& shard : shards) {
    if (!shard.is_object()) fail<DataError>("shards", "'{}', key 'shards': {} is no shard", path, shard.dump());
    const Fields of_shard(shard, path);
    d.shards.push_back({of_shard.integer("tokens", 1, d.tokens), of_shard.integer("documents", 1, d.documents)});
    tokens = std::min(tokens + d.shards.back().tokens, most + 1);  // saturates: a lying list can not overflow
    documents = std::min(documents + d.shards.back().documents, most + 1);
  }
  if (tokens != d.tokens || documents != d.documents)
    fail<DataError>("shards", "'{}': its shards hold {} tokens in {} documents, but it says {} in {}", path, tokens, documents,
                    d.tokens, d.documents);
  return d;
}

}  // namespace quire
