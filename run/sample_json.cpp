#include "run/sample_json.h"

#include <nlohmann/json.hpp>

namespace quire {

std::string to_json(int64_t sample, std::span<const int32_t> prompt, const Generated& generated, const std::optional<std::string>& text) {
  std::vector<int32_t> ids(prompt.begin(), prompt.end());
  ids.insert(ids.end(), generated.tokens.begin(), generated.tokens.end());
  nlohmann::ordered_json line = {{"sample", sample}, {"prompt_tokens", prompt.size()}, {"end", std::string(name_of(generated.end))}, {"ids", ids}};
  if (text) line["text"] = *text;
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace quire
