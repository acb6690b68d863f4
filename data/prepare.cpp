#include "data/prepare.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "data/shard.h"
#include "runtime/digest.h"
#include "runtime/error.h"

namespace quire {

namespace {

namespace files = std::filesystem;

struct Input {
  std::string path;
  bool named = true;  // by the user; false: found in a folder, and skipped where it is no text
  int64_t bytes = 0;
};

bool matches(const std::vector<std::string>& patterns, const files::path& relative) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), relative.filename().c_str(), 0) == 0 || fnmatch(pattern.c_str(), relative.c_str(), 0) == 0;
  });
}

void walk(const std::string& folder, const PrepareSettings& settings, std::vector<Input>& inputs, PrepareSummary& summary) try {
  std::vector<Input> found;
  for (files::recursive_directory_iterator it(folder), end; it != end; ++it) {
    const files::path& path = it->path();
    const files::file_status status = it->symlink_status();
    if (matches(settings.exclude, path.lexically_relative(folder))) {
      summary.skipped.emplace_back(path.string(), "excluded");
      it.disable_recursion_pending();
    } else if (files::is_symlink(status)) {
      summary.skipped.emplace_back(path.string(), "link");
    } else if (files::is_regular_file(status)) {
      found.push_back({path.string(), false, static_cast<int64_t>(it->file_size())});
    } else if (!files::is_directory(status)) {
      summary.skipped.emplace_back(path.string(), "no regular file");
    }
  }
  std::sort(found.begin(), found.end(), [](const Input& a, const Input& b) { return a.path < b.path; });
  inputs.insert(inputs.end(), found.begin(), found.end());
} catch (const files::filesystem_error& error) {
  fail<FileError>("prepare", "can not list the folder '{}': {}", folder, error.code().message());
}

std::vector<Input> gather(const PrepareSettings& settings, PrepareSummary& summary) {
  std::vector<Input> inputs;
  for (const std::string& path : settings.inputs) {
    std::error_code error;
    const files::file_status status = files::status(path, error);
    if (!files::exists(status)) fail<FileError>("prepare", "the input '{}' does not exist", path);
    if (files::is_directory(status)) walk(path, settings, inputs, summary);
    else inputs.push_back({path, true, static_cast<int64_t>(files::file_size(path, error))});
  }
  if (inputs.empty())
    fail<DataError>(
        "prepare", "no input{}",
        settings.inputs.empty() ? "; name files or folders" : fmt::format(": nothing to read in '{}'", settings.inputs.front()));
  return inputs;
}

/// 128 bits of a document's text; equal for exact duplicates only, for all practical numbers of documents.
struct TextKey {
  uint64_t first, second;
  bool operator==(const TextKey&) const = default;
};
struct TextKeyHash {
  size_t operator()(const TextKey& key) const { return key.first; }
};

TextKey key_of(const TextDocument& document) {
  const auto digest = [&](uint64_t seed) {
    Digest d(seed);
    d.update_value(document.prompt ? static_cast<int64_t>(document.prompt->size()) : int64_t{-1});
    if (document.prompt) d.update(std::as_bytes(std::span(*document.prompt)));
    d.update(std::as_bytes(std::span(document.text)));
    return d.value();
  };
  return {digest(0), digest(1)};
}

}  // namespace

PrepareSummary prepare(const PrepareSettings& settings, FileSystem& fs) {
  PrepareSummary summary;
  check_text_settings(settings.text);
  if (settings.output.empty()) fail<ConfigError>("prepare", "no output folder is given");
  const auto tokenizer = make_tokenizer(settings.tokenizer, settings.bos);
  const std::vector<Input> inputs = gather(settings, summary);
  int64_t total = 0, done = 0;
  for (const Input& input : inputs) total += input.bytes;

  std::sort(summary.skipped.begin(), summary.skipped.end());
  DocumentEncoder encoder(tokenizer);
  ShardWriter writer(settings.output,
                     {tokenizer->name(), tokenizer->vocabulary_size(), *tokenizer->eos(), tokenizer->bos(), settings.shard_bytes},
                     fs);
  std::unordered_set<TextKey, TextKeyHash> seen;
  int64_t read = 0;  // of this file, text only: close enough for a progress bar
  const auto take = [&](const TextDocument& document) {
    if (settings.stop && settings.stop()) fail<StateError>("prepare", "stopped; '{}' was not written", settings.output);
    read += static_cast<int64_t>(document.text.size());
    if (settings.progress) settings.progress(std::min(done + read, total), total);
    if (document.text.empty() && (!document.prompt || document.prompt->empty())) {
      ++summary.empty;
      return;
    }
    if (!seen.insert(key_of(document)).second) {
      ++summary.duplicates;
      if (settings.deduplicate) return;
    }
    encoder.encode(document, writer);
  };
  for (const Input& input : inputs) {
    if (settings.stop && settings.stop()) fail<StateError>("prepare", "stopped; '{}' was not written", settings.output);
    const std::unique_ptr<File> file = fs.open(input.path);
    const int64_t binary = input.named ? -1 : first_binary_byte(*file);
    if (binary >= 0) {
      summary.skipped.emplace_back(input.path, fmt::format("no text (byte {})", binary));
    } else {
      ++summary.files;
      read = 0;
      for_each_document(*file, input.path, text_format_of(input.path), settings.text, take);
    }
    done += input.bytes;
  }
  const ShardSummary written = writer.finish();
  summary.documents = written.documents;
  summary.tokens = written.tokens;
  summary.text_bytes = written.text_bytes;
  summary.digest = written.digest;
  return summary;
}

}  // namespace quire
