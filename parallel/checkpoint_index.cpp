#include "parallel/checkpoint_index.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "model/strict_json.h"
#include "runtime/digest.h"
#include "runtime/error.h"

namespace quire {
namespace {

using nlohmann::json;

constexpr std::string_view format_name = "quire checkpoint 1";
constexpr std::string_view digest_key = "\"digest\":\"", digest_end = "\"}\n";

uint64_t text_digest(std::string_view text) { return digest_of(std::as_bytes(std::span(text))); }

int64_t integer(const json& object, const char* key) {
  const json& value = object.at(key);
  if (!value.is_number_integer() || value < 0 || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    throw DataError(fmt::format("{} is {}; allowed: whole numbers from 0", key, shortened(value)));
  return value.get<int64_t>();
}

std::vector<int64_t> integers(const json& object, const char* key) {
  std::vector<int64_t> values;
  for (const json& value : object.at(key)) values.push_back(integer({{key, value}}, key));
  return values;
}

/// A name inside the folder, not a way out of it.
std::string file_name(const json& object, const char* key) {
  const std::string name = object.at(key).get<std::string>();
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
    throw DataError(fmt::format("{} is '{}'; allowed: a file of the checkpoint's folder", key, name));
  return name;
}

CheckpointPiece parse_piece(const std::string& path, const json& record, const std::map<std::string, int64_t>& file_bytes) {
  CheckpointPiece piece;
  piece.kind = record.at("kind").get<std::string>();
  piece.name = record.at("name").get<std::string>();
  piece.dtype = dtype_from(record.at("dtype").get<std::string>());
  piece.global_shape = integers(record, "global_shape");
  piece.offset = integers(record, "offset");
  piece.shape = integers(record, "shape");
  piece.file = file_name(record, "file");
  piece.file_offset = integer(record, "file_offset");
  piece.bytes = integer(record, "bytes");
  piece.checksum = from_hex(record.at("checksum").get<std::string>());
  const auto file = file_bytes.find(piece.file);
  if (file == file_bytes.end()) throw DataError(fmt::format("'{}' lies in '{}', which is not listed", piece.name, piece.file));
  if (piece.file_offset > file->second || piece.bytes > file->second - piece.file_offset)
    throw DataError(fmt::format("'{}' ends after its file '{}'", piece.name, piece.file));
  int64_t needed = 0;
  if (__builtin_mul_overflow(checked_elements(path, piece.shape), size_of(piece.dtype), &needed) || needed != piece.bytes)
    throw DataError(fmt::format("'{}' has {} bytes, which its shape and dtype contradict", piece.name, piece.bytes));
  return piece;
}

bool overlap(const CheckpointPiece& a, const CheckpointPiece& b) {
  for (size_t d = 0; d < a.shape.size(); ++d)
    if (a.offset[d] + a.shape[d] <= b.offset[d] || b.offset[d] + b.shape[d] <= a.offset[d]) return false;
  return true;
}

/// `pieces` of one tensor.
void check_tensor(const std::string& path, std::vector<const CheckpointPiece*> pieces) {
  const CheckpointPiece& first = *pieces.front();
  const auto wrong = [&](std::string_view what) {
    fail<DataError>("checkpoint", "'{}': {} '{}': {}", path, first.kind, first.name, what);
  };
  int64_t covered = 0;
  for (const CheckpointPiece* piece : pieces) {
    if (piece->global_shape != first.global_shape || piece->dtype != first.dtype) wrong("slices disagree about shape or dtype");
    if (piece->shape.size() != first.global_shape.size() || piece->offset.size() != first.global_shape.size())
      wrong("a slice has another number of dimensions");
    for (size_t d = 0; d < piece->shape.size(); ++d)
      if (piece->offset[d] > piece->global_shape[d] || piece->shape[d] > piece->global_shape[d] - piece->offset[d])
        wrong("a slice does not lie inside");
    covered += checked_elements(path, piece->shape);
  }
  std::erase_if(pieces, [&](const CheckpointPiece* piece) { return piece->bytes == 0; });
  const auto begin_of = [](const CheckpointPiece* piece) { return piece->offset.empty() ? 0 : piece->offset[0]; };
  const auto end_of = [&](const CheckpointPiece* piece) { return piece->shape.empty() ? 1 : piece->offset[0] + piece->shape[0]; };
  std::sort(pieces.begin(), pieces.end(), [&](const auto* a, const auto* b) { return begin_of(a) < begin_of(b); });
  for (size_t i = 0; i < pieces.size(); ++i)
    for (size_t j = i + 1; j < pieces.size() && begin_of(pieces[j]) < end_of(pieces[i]); ++j)
      if (overlap(*pieces[i], *pieces[j])) wrong("two slices overlap: an element must be saved by one rank only");
  if (covered != checked_elements(path, first.global_shape))
    wrong(fmt::format("{} of {} elements were saved", covered, checked_elements(path, first.global_shape)));
}

}  // namespace

int64_t checked_elements(const std::string& path, const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(elements, size, &elements))
      fail<DataError>("checkpoint", "'{}': an impossible shape", path);
  return elements;
}

std::string to_text(const CheckpointIndex& index) {
  std::string text = fmt::format("{{\"format\":{},\"step\":{},\n\"files\":[", json(format_name).dump(), index.step);
  const char* separator = "\n";
  try {
    for (const CheckpointFile& file : index.files) {
      text += separator + json{{"name", file.name}, {"bytes", file.bytes}, {"checksum", to_hex(file.checksum)}}.dump();
      separator = ",\n";
    }
    text += "],\n\"pieces\":[";
    separator = "\n";
    for (const CheckpointPiece& piece : index.pieces) {
      text += separator + nlohmann::ordered_json{{"kind", piece.kind}, {"name", piece.name}, {"dtype", name_of(piece.dtype)},
                                                 {"global_shape", piece.global_shape}, {"offset", piece.offset}, {"shape", piece.shape},
                                                 {"file", piece.file}, {"file_offset", piece.file_offset}, {"bytes", piece.bytes},
                                                 {"checksum", to_hex(piece.checksum)}}.dump();
      separator = ",\n";
    }
  } catch (const json::exception& error) {
    fail<DataError>("checkpoint", "a name is not UTF-8: {}", error.what());
  }
  text += "],\n";
  return text + std::string(digest_key) + to_hex(text_digest(text)) + std::string(digest_end);
}

CheckpointIndex parse_checkpoint_index(const std::string& path, std::string_view text) {
  const size_t tail = digest_key.size() + 16 + digest_end.size();
  if (text.size() < tail || text.substr(text.size() - tail, digest_key.size()) != digest_key || !text.ends_with(digest_end))
    fail<DataError>("checkpoint", "'{}' is truncated or not the index of a checkpoint", path);
  const std::string_view body = text.substr(0, text.size() - tail);
  if (to_hex(text_digest(body)) != text.substr(body.size() + digest_key.size(), 16))
    fail<DataError>("checkpoint", "'{}' is damaged: its checksum is not that of its content", path);
  const json root = parse_strict_json("checkpoint", path, text);
  CheckpointIndex index;
  try {
    if (root.at("format") != format_name)
      throw DataError(fmt::format("format is {}; allowed: '{}'", shortened(root.at("format")), format_name));
    index.step = integer(root, "step");
    std::map<std::string, int64_t> file_bytes;
    for (const json& record : root.at("files")) {
      index.files.push_back(
          {file_name(record, "name"), integer(record, "bytes"), from_hex(record.at("checksum").get<std::string>())});
      if (!file_bytes.emplace(index.files.back().name, index.files.back().bytes).second)
        throw DataError(fmt::format("the file '{}' is listed twice", index.files.back().name));
    }
    for (const json& record : root.at("pieces")) index.pieces.push_back(parse_piece(path, record, file_bytes));
  } catch (const json::exception& error) {
    fail<DataError>("checkpoint", "'{}': {}", path, error.what());
  } catch (const Error& error) {
    fail<DataError>("checkpoint", "'{}': {}", path, error.what());
  }
  return index;
}

void check_coverage(const std::string& path, const std::vector<CheckpointPiece>& pieces) {
  std::map<std::pair<std::string_view, std::string_view>, std::vector<const CheckpointPiece*>> tensors;
  for (const CheckpointPiece& piece : pieces) tensors[{piece.kind, piece.name}].push_back(&piece);
  for (auto& [key, list] : tensors) check_tensor(path, std::move(list));
}

}  // namespace quire
