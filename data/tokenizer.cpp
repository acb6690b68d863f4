#include "data/tokenizer.h"

#include <algorithm>

#include "runtime/error.h"

namespace quire {

void ByteTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  const size_t before = ids.size();
  ids.resize(before + text.size());
  std::transform(text.begin(), text.end(), ids.begin() + static_cast<ptrdiff_t>(before),
                 [](char c) { return static_cast<int32_t>(static_cast<unsigned char>(c)); });
}

std::string ByteTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocabulary_size())
      fail<DataError>("tokenizer", "id {} is outside the vocabulary [0, {})", id, vocabulary_size());
    if (id < 256) text.push_back(static_cast<char>(id));
  }
  return text;
}

std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name, bool with_bos) {
  if (name == "byte") return std::make_shared<ByteTokenizer>(with_bos);
  const std::string near = nearest(name, {"byte"});
  fail<ConfigError>("tokenizer", "unknown tokenizer '{}'; known: byte{}", name,
                    near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

}  // namespace quire
