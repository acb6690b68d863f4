#include "data/text_documents.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "runtime/error.h"

namespace quire {

size_t valid_utf8_prefix(std::string_view text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  const size_t size = text.size();
  size_t i = 0;
  while (i < size) {
    uint64_t eight;
    while (i + 8 <= size && (std::memcpy(&eight, bytes + i, 8), (eight & 0x8080808080808080u) == 0)) i += 8;
    if (i == size) break;
    const unsigned char lead = bytes[i];
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xC2 && lead <= 0xDF ? 2 : lead >= 0xE0 && lead <= 0xEF ? 3 : lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
    if (length == 0 || i + length > size) return i;
    // The second byte's range keeps out overlong forms, surrogates and what lies beyond U+10FFFF (Unicode, table 3-7).
    const unsigned char least = lead == 0xE0   ? 0xA0
                                : lead == 0xF0 ? 0x90
                                               : 0x80,
                        most = lead == 0xED   ? 0x9F
                               : lead == 0xF4 ? 0x8F
                                              : 0xBF;
    if (bytes[i + 1] < least || bytes[i + 1] > most) return i;
    for (size_t j = 2; j < length; ++j)
      if ((bytes[i + j] & 0xC0) != 0x80) return i;
    i += length;
  }
  return size;
}

namespace {

constexpr int64_t chunk_bytes = int64_t{1} << 20;

/// Place of the first zero or invalid byte, or npos.
size_t first_bad_byte(std::string_view text) {
  const size_t valid = valid_utf8_prefix(text);
  const size_t zero = text.substr(0, valid).find('\0');
  return zero != std::string_view::npos ? zero : valid < text.size() ? valid : std::string_view::npos;
}

[[noreturn]] void refuse_byte(const std::string& path, int64_t offset, unsigned char byte) {
  fail<DataError>("text", "'{}', byte {}: 0x{:02x} is {}; convert the file to UTF-8 (iconv) or leave it out", path, offset, byte,
                  byte == 0 ? "no text" : "not valid UTF-8 there");
}

/// A file's bytes from some offset on: whole lines are validated as they come.
class LineBuffer {
 public:
  LineBuffer(const File& file, const std::string& path) : file_(file), path_(path), size_(file.size()) {}

  /// Reads on, forgetting the first `consumed` bytes. Returns false when there is nothing more to read.
  bool more(size_t consumed) {
    bytes_.erase(0, consumed);
    base_ += static_cast<int64_t>(consumed);
    checked_ -= consumed;
    const int64_t at = base_ + static_cast<int64_t>(bytes_.size());
    const int64_t count = std::min(chunk_bytes, size_ - at);
    if (count == 0) return false;
    const size_t before = bytes_.size();
    bytes_.resize(before + static_cast<size_t>(count));
    file_.read_at(at, std::as_writable_bytes(std::span(bytes_).subspan(before)));
    const size_t newline = std::string_view(bytes_).substr(before).rfind('\n');
    if (at + count == size_) whole_ = bytes_.size();
    else whole_ = newline != std::string_view::npos ? before + newline + 1 : checked_;
    const std::string_view fresh = std::string_view(bytes_).substr(checked_, whole_ - checked_);
    if (const size_t bad = first_bad_byte(fresh); bad != std::string_view::npos)
      refuse_byte(path_, base_ + static_cast<int64_t>(checked_ + bad), static_cast<unsigned char>(fresh[bad]));
    checked_ = whole_;
    return true;
  }
  std::string_view lines() const { return std::string_view(bytes_).substr(0, whole_); }  ///< whole lines; at the end all that is left

 private:
  const File& file_;
  const std::string& path_;
  const int64_t size_;
  std::string bytes_;
  int64_t base_ = 0;
  size_t checked_ = 0, whole_ = 0;
};

std::string_view without_line_break(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.ends_with('\r')) text.remove_suffix(1);
  return text;
}

/// Length of the separator line, line break included, where one stands at `at` (a line's beginning), else 0.
size_t separator_line(std::string_view text, size_t at, std::string_view separator) {
  const std::string_view rest = text.substr(at + separator.size());
  for (const std::string_view line_break : {std::string_view("\n"), std::string_view("\r\n")})
    if (rest.starts_with(line_break)) return separator.size() + line_break.size();
  return rest.empty() ? separator.size() : 0;
}

void separated(const File& file, const std::string& path, std::string_view separator,
               const std::function<void(const TextDocument&)>& take) {
  LineBuffer buffer(file, path);
  size_t begin = 0, scan = 0;  // of the document; up to where no separator is
  bool after_separator = false;
  while (buffer.more(begin)) {
    scan -= begin;
    begin = 0;
    const std::string_view text = buffer.lines();
    for (size_t at; (at = text.find(separator, scan)) != std::string_view::npos;) {
      scan = at + 1;
      if (at > 0 && text[at - 1] != '\n') continue;
      const size_t line = separator_line(text, at, separator);
      if (line == 0) continue;
      take({without_line_break(text.substr(begin, at - begin)), std::nullopt});
      begin = scan = at + line;
      after_separator = true;
    }
    scan = std::max(scan, text.size());
  }
  const std::string_view rest = buffer.lines();  // what `begin` came after has been forgotten
  if (!rest.empty() || !after_separator) take({without_line_break(rest), std::nullopt});
}

void whole_file(const File& file, const std::string& path, const std::function<void(const TextDocument&)>& take) {
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  if (const size_t bad = first_bad_byte(text); bad != std::string_view::npos)
    refuse_byte(path, static_cast<int64_t>(bad), static_cast<unsigned char>(text[bad]));
  take({text, std::nullopt});
}

void take_json_line(std::string_view line, int64_t number, const std::string& path, const TextSettings& settings,
                    const std::function<void(const TextDocument&)>& take) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    fail<DataError>("jsonl", "'{}', line {}: no JSON ({})", path, number, error.what());
  }
  if (!json.is_object()) fail<DataError>("jsonl", "'{}', line {}: {} is no object", path, number, json.type_name());
  const auto text_of = [&](const std::string& key) -> const std::string& {
    if (!json[key].is_string())
      fail<DataError>("jsonl", "'{}', line {}: key '{}' is no text but {}", path, number, key, json[key].type_name());
    return json[key].get_ref<const std::string&>();
  };
  if (json.contains(settings.text_key)) {
    take({text_of(settings.text_key), std::nullopt});
    return;
  }
  if (json.contains(settings.prompt_key) && json.contains(settings.completion_key)) {
    take({text_of(settings.completion_key), text_of(settings.prompt_key)});
    return;
  }
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  const std::string near = nearest(settings.text_key, keys);
  std::string found;
  for (const std::string& key : keys) found += (found.empty() ? "" : ", ") + key;
  fail<DataError>("jsonl", "'{}', line {}: neither key '{}' nor '{}' and '{}'; found: {}{}", path, number, settings.text_key,
                  settings.prompt_key, settings.completion_key, found.empty() ? "no key" : found,
                  near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
}

void json_lines(const File& file, const std::string& path, const TextSettings& settings,
                const std::function<void(const TextDocument&)>& take) {
  LineBuffer buffer(file, path);
  size_t consumed = 0;
  int64_t number = 0;
  while (buffer.more(consumed)) {
    const std::string_view text = buffer.lines();
    for (consumed = 0; consumed < text.size();) {
      const size_t end = std::min(text.find('\n', consumed), text.size());
      const std::string_view line = text.substr(consumed, end - consumed);
      ++number;
      if (line.find_first_not_of(" \t\r") != std::string_view::npos) take_json_line(line, number, path, settings, take);
      consumed = std::min(end + 1, text.size());
    }
  }
}

}  // namespace

TextFormat text_format_of(std::string_view path) { return path.ends_with(".jsonl") ? TextFormat::jsonl : TextFormat::text; }

void check_text_settings(const TextSettings& settings) {
  if (settings.separator && (settings.separator->empty() || settings.separator->find_first_of("\r\n") != std::string::npos))
    fail<ConfigError>("text", "the separator must be one line that is not empty");
}

void for_each_document(const File& file, const std::string& path, TextFormat format, const TextSettings& settings,
                       const std::function<void(const TextDocument&)>& take) {
  check_text_settings(settings);
  if (format == TextFormat::jsonl) json_lines(file, path, settings, take);
  else if (settings.separator) separated(file, path, *settings.separator, take);
  else whole_file(file, path, take);
}

int64_t first_binary_byte(const File& file) {
  std::string bytes;
  int64_t base = 0;
  const int64_t size = file.size();
  while (base + static_cast<int64_t>(bytes.size()) < size) {
    const size_t kept = bytes.size();  // a character that the chunk's end cut
    bytes.resize(kept + static_cast<size_t>(std::min(chunk_bytes, size - base - static_cast<int64_t>(kept))));
    file.read_at(base + static_cast<int64_t>(kept), std::as_writable_bytes(std::span(bytes).subspan(kept)));
    const size_t valid = valid_utf8_prefix(bytes);
    if (const size_t zero = std::string_view(bytes).substr(0, valid).find('\0'); zero != std::string_view::npos)
      return base + static_cast<int64_t>(zero);
    if (bytes.size() - valid > 3 || (valid < bytes.size() && base + static_cast<int64_t>(bytes.size()) == size))
      return base + static_cast<int64_t>(valid);
    bytes.erase(0, valid);
    base += static_cast<int64_t>(valid);
  }
  return -1;
}

DocumentEncoder::DocumentEncoder(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {
  if (!tokenizer_->eos()) fail<ConfigError>("tokenizer", "'{}' has no EOS id, which ends every document", tokenizer_->name());
}

void DocumentEncoder::encode(const TextDocument& document, DocumentSink& sink) {
  tokens_.clear();
  mask_.clear();
  if (tokenizer_->bos()) tokens_.push_back(*tokenizer_->bos());
  int64_t text_bytes = static_cast<int64_t>(document.text.size()), unscored_bytes = 0;
  if (document.prompt) {
    tokenizer_->encode(*document.prompt, tokens_);
    mask_.assign(tokens_.size(), 0);
    unscored_bytes = static_cast<int64_t>(document.prompt->size());
    text_bytes += unscored_bytes;
  }
  const size_t scored = tokens_.size();
  tokenizer_->encode(document.text, tokens_);
  if (scored == 0 && !tokens_.empty()) unscored_bytes = static_cast<int64_t>(tokenizer_->decode(std::span(tokens_).first(1)).size());
  tokens_.push_back(*tokenizer_->eos());
  if (document.prompt) mask_.resize(tokens_.size(), 1);
  sink.add(tokens_, mask_, text_bytes, unscored_bytes);
}

}  // namespace quire
