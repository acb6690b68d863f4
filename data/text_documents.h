// Text files to documents, in memory bounded by the largest document.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus.h"
#include "data/tokenizer.h"

namespace quire {

/// Bytes of the longest prefix of `text` that is valid UTF-8 (no surrogates, nothing overlong, at most U+10FFFF). All of it:
/// text.size().
size_t valid_utf8_prefix(std::string_view text);

/// One document. Where there is a prompt, its tokens count as inputs only.
struct TextDocument {
  std::string_view text;
  std::optional<std::string_view> prompt;
};

enum class TextFormat : uint8_t { text, jsonl };
/// jsonl for names that end in .jsonl, else text.
TextFormat text_format_of(std::string_view path);

struct TextSettings {
  std::optional<std::string>
      separator;  ///< text: the line between documents (without its newline); without one the file is a document
  std::string text_key = "text";         ///< jsonl: objects with this key are a document
  std::string prompt_key = "prompt";     ///< jsonl: objects without it are a masked prompt and a completion
  std::string completion_key = "completion";
};

/// Calls `take` for every document of the file in order, empty ones included (a separator at the file's very end ends the last
/// document and begins none). The line break before a separator line, and before the end of a file with separators, belongs to no
/// document. DataError with file and byte offset for what is not UTF-8 or holds a zero byte, with file and line for bad JSON.
void for_each_document(const File& file, const std::string& path, TextFormat format, const TextSettings& settings,
                       const std::function<void(const TextDocument&)>& take);

/// ConfigError for an empty separator or one of several lines.
void check_text_settings(const TextSettings& settings);

/// First byte of the file that is zero or no UTF-8, or -1 where all is text.
int64_t first_binary_byte(const File& file);

/// Encodes documents with BOS (where the tokenizer has one) and EOS and gives them to a sink.
class DocumentEncoder {
 public:
  /// ConfigError for a tokenizer without EOS.
  explicit DocumentEncoder(std::shared_ptr<const Tokenizer> tokenizer);
  void encode(const TextDocument& document, DocumentSink& sink);

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<int32_t> tokens_;
  std::vector<uint8_t> mask_;
};

}  // namespace quire
