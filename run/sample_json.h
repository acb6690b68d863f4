#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "model/generation.h"

namespace quire {

/// A sample as one line of JSON: sample (its number), prompt_tokens, end (end_token, tokens or context), ids (of the prompt and what follows) and, where it is
/// known, text. Bytes of `text` that are no UTF-8 become U+FFFD.
std::string to_json(int64_t sample, std::span<const int32_t> prompt, const Generated& generated, const std::optional<std::string>& text);

}  // namespace quire
