// Text to token ids and back, behind an interface that other tokenizers join.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// Turns UTF-8 text into ids in [0, vocabulary_size). Immutable after construction, so any number of threads may use one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;
  virtual int64_t vocabulary_size() const = 0;
  /// The id that opens every document, where this tokenizer was made with one.
  virtual std::optional<int32_t> bos() const = 0;
  /// The id that ends every document.
  virtual std::optional<int32_t> eos() const = 0;
  /// Appends the ids of `text` to `ids`; adds neither BOS nor EOS.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  /// The text of `ids`; BOS and EOS give nothing. DataError for an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
};

/// Ids 0 to 255 are bytes, 256 is EOS, 257 is BOS where asked for. The vocabulary is 257, with BOS 258.
class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(bool with_bos = false) : with_bos_(with_bos) {}
  std::string name() const override { return "byte"; }
  int64_t vocabulary_size() const override { return with_bos_ ? 258 : 257; }
  std::optional<int32_t> bos() const override { return with_bos_ ? std::optional<int32_t>(257) : std::nullopt; }
  std::optional<int32_t> eos() const override { return 256; }
  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::string decode(std::span<const int32_t> ids) const override;

 private:
  bool with_bos_;
};

/// The tokenizer of this name. ConfigError with the known names and the nearest one.
std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name, bool with_bos = false);

}  // namespace quire
