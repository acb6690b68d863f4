// The identity of a corpus: one digest over documents, tokens and masks, whatever files they are stored in.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/digest.h"

namespace quire {

/// True where some target of a document is masked. The first token is never a target.
inline bool masks_something(std::span<const uint8_t> mask) {
  return mask.size() > 1 && std::find(mask.begin() + 1, mask.end(), uint8_t{0}) != mask.end();
}

class ContentDigest {
 public:
  void add_document(std::span<const int32_t> tokens, std::span<const uint8_t> mask) {
    const bool masked = masks_something(mask);
    begin_document(static_cast<int64_t>(tokens.size()), masked);
    add_tokens(tokens);
    if (masked) digest_.update(std::as_bytes(mask.subspan(1)));
  }
  /// A document in parts: its length, then its tokens in any number of parts.
  void begin_document(int64_t length, bool masked) { digest_.update_value(length * 2 + (masked ? 1 : 0)); }
  void add_tokens(std::span<const int32_t> tokens) { digest_.update(std::as_bytes(tokens)); }

  uint64_t value(int32_t eos, std::optional<int32_t> bos) const {
    Digest whole = digest_;
    whole.update_value(eos);
    whole.update_value(bos.value_or(-1));
    return whole.value();
  }

 private:
  Digest digest_;
};

}  // namespace quire
