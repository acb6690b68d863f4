#include "model/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "model/convert_elements.h"
#include "model/strict_json.h"
#include "runtime/error.h"

namespace quire {
namespace {

using nlohmann::json;
static_assert(std::endian::native == std::endian::little, "the format is little-endian and bytes are not swapped");

constexpr int64_t largest_header = 100'000'000;  // as in the format's reference implementation
constexpr int64_t chunk_bytes = int64_t{1} << 20;

/// Bytes of one element, 0 for a type that this reader does not know.
int64_t element_bytes(const std::string& dtype) {
  static const std::map<std::string, int64_t> sizes = {
      {"F64", 8}, {"I64", 8}, {"U64", 8}, {"C64", 8}, {"F32", 4},  {"I32", 4},     {"U32", 4},     {"F16", 2},    {"BF16", 2},
      {"I16", 2}, {"U16", 2}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

/// A count that fits in int64, or DataError.
int64_t count_of(const json& value, const std::string& path, const std::string& name, const char* what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    fail<DataError>("safetensors", "'{}': tensor '{}': {} holds {}; allowed: whole numbers from 0", path, name, what,
                    shortened(value));
  return value.get<int64_t>();
}

/// One header record. Offsets stay relative to the data.
SafetensorsEntry parse_entry(const std::string& path, const std::string& name, const json& record) {
  const auto malformed = [&](const char* what) {
    fail<DataError>("safetensors", "'{}': tensor '{}': {}, found {}", path, name, what, shortened(record));
  };
  if (!record.is_object()) malformed("an object is needed");
  for (const auto& [key, value] : record.items())
    if (key != "dtype" && key != "shape" && key != "data_offsets") malformed("only dtype, shape and data_offsets are allowed");
  if (!record.contains("dtype") || !record["dtype"].is_string()) malformed("dtype must be a string");
  if (!record.contains("shape") || !record["shape"].is_array()) malformed("shape must be a list");
  if (!record.contains("data_offsets") || !record["data_offsets"].is_array() || record["data_offsets"].size() != 2)
    malformed("data_offsets must be two numbers");

  SafetensorsEntry entry{.name = name, .dtype = record["dtype"].get<std::string>()};
  int64_t elements = 1;
  bool too_large = false;
  for (const json& size : record["shape"]) {
    entry.shape.push_back(count_of(size, path, name, "shape"));
    too_large = too_large || __builtin_mul_overflow(elements, entry.shape.back(), &elements);
  }
  entry.offset = count_of(record["data_offsets"][0], path, name, "data_offsets");
  const int64_t end = count_of(record["data_offsets"][1], path, name, "data_offsets");
  if (end < entry.offset) malformed("data_offsets must not decrease");
  entry.bytes = end - entry.offset;
  const int64_t size = element_bytes(entry.dtype);
  int64_t needed = 0;
  too_large = too_large || __builtin_mul_overflow(elements, size, &needed);
  if (too_large || (size > 0 && needed != entry.bytes))
    fail<DataError>("safetensors", "'{}': tensor '{}' of {} {} holds {} bytes, which its shape and dtype contradict", path, name,
                    entry.dtype, shortened(record["shape"]), entry.bytes);
  return entry;
}

/// Where the tensors lie: one after the other, filling the data exactly.
void check_layout(const std::string& path, std::vector<SafetensorsEntry>& entries, int64_t data_begin, int64_t file_bytes) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  int64_t end = 0;
  for (SafetensorsEntry& entry : entries) {
    if (entry.offset != end)
      fail<DataError>("safetensors", "'{}': tensor '{}' begins at data byte {}, but {} at {}", path, entry.name, entry.offset,
                      entry.offset < end ? "the one before it ends" : "a hole begins", end);
    if (entry.bytes > file_bytes - data_begin - end)
      fail<DataError>("safetensors",
                      "'{}' is truncated or its header lies: tensor '{}' needs {} bytes from byte {}, the file has {}", path,
                      entry.name, entry.bytes, data_begin + end, file_bytes);
    entry.offset += data_begin;
    end += entry.bytes;
  }
  if (data_begin + end != file_bytes)
    fail<DataError>("safetensors", "'{}': {} bytes after the last tensor belong to none", path, file_bytes - data_begin - end);
}

}  // namespace

int64_t SafetensorsEntry::elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

SafetensorsFile::SafetensorsFile(FileSystem& fs, std::string path) : path_(std::move(path)), file_(fs.open(path_)) {
  const int64_t file_bytes = file_->size();
  uint64_t header_bytes = 0;
  if (file_bytes < 8)
    fail<DataError>("safetensors", "'{}' has {} bytes; a safetensors file begins with 8 bytes of header length", path_, file_bytes);
  file_->read_at(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  if (header_bytes > static_cast<uint64_t>(file_bytes - 8) || header_bytes > static_cast<uint64_t>(largest_header) ||
      header_bytes < 2)
    fail<DataError>(
        "safetensors",
        "'{}' says that its header has {} bytes; allowed: 2 to {} (the file has {} bytes): truncated, or another format", path_,
        header_bytes, std::min(largest_header, file_bytes - 8), file_bytes);
  std::string text(static_cast<size_t>(header_bytes), '\0');
  file_->read_at(8, std::as_writable_bytes(std::span(text)));
  if (text.front() != '{') fail<DataError>("safetensors", "'{}': the header does not begin with '{{': another format", path_);
  const json header = parse_strict_json("safetensors", path_, text, 4);
  for (const auto& [name, record] : header.items()) {
    if (name != "__metadata__") {
      entries_.push_back(parse_entry(path_, name, record));
      continue;
    }
    if (!record.is_object())
      fail<DataError>("safetensors", "'{}': __metadata__ must be an object, found {}", path_, shortened(record));
    for (const auto& [key, value] : record.items()) {
      if (!value.is_string())
        fail<DataError>("safetensors", "'{}': __metadata__ '{}' must be a string, found {}", path_, key, shortened(value));
      metadata_[key] = value.get<std::string>();
    }
  }
  check_layout(path_, entries_, static_cast<int64_t>(header_bytes) + 8, file_bytes);
  for (size_t i = 0; i < entries_.size(); ++i) by_name_[entries_[i].name] = i;
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

void SafetensorsFile::read_bytes(const SafetensorsEntry& entry, int64_t begin, std::span<std::byte> into) const {
  const int64_t length = static_cast<int64_t>(into.size());
  if (begin < 0 || begin > entry.bytes || length > entry.bytes - begin)
    fail<DataError>("safetensors", "'{}': bytes {} to {} asked of tensor '{}', which has {}", path_, begin, begin + length,
                    entry.name, entry.bytes);
  file_->read_at(entry.offset + begin, into);
}

void SafetensorsFile::read(const SafetensorsEntry& entry, DType wanted, void* into) const {
  const ElementConversion conversion = find_conversion(entry.dtype, wanted);
  if (!conversion.convert)
    fail<DTypeError>("safetensors",
                     "'{}': tensor '{}' is {} and can not be read as {}; readable are F64, F32, F16, BF16 as floating types, "
                     "I64, I32 as integers",
                     path_, entry.name, entry.dtype, safetensors_name(wanted));
  if (conversion.same) {
    read_bytes(entry, 0, {static_cast<std::byte*>(into), static_cast<size_t>(entry.bytes)});
    return;
  }
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(chunk_bytes, entry.bytes)));
  std::byte* out = static_cast<std::byte*>(into);
  const int64_t element = element_bytes(entry.dtype);
  for (int64_t begin = 0; begin < entry.bytes; begin += chunk_bytes) {
    const int64_t length = std::min(chunk_bytes, entry.bytes - begin), count = length / element;
    read_bytes(entry, begin, std::span(buffer).first(static_cast<size_t>(length)));
    if (!conversion.convert(buffer.data(), count, out))
      fail<DataError>("safetensors", "'{}': tensor '{}' of {} holds values that do not fit in {}", path_, entry.name, entry.dtype,
                      safetensors_name(wanted));
    out += count * size_of(wanted);
  }
}

// ---- several files ----

namespace {

std::string folder_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

std::string find_weights(FileSystem& fs, const std::string& path) {
  if (path.ends_with(".safetensors") || path.ends_with(".json")) return path;
  const std::string single = path + "/model.safetensors", index = path + "/model.safetensors.index.json";
  if (fs.exists(single) && fs.exists(index))
    fail<DataError>("safetensors", "'{}' holds both model.safetensors and model.safetensors.index.json: which is meant? Name one",
                    path);
  if (fs.exists(single)) return single;
  if (fs.exists(index)) return index;
  fail<FileError>("safetensors", "'{}' holds neither model.safetensors nor model.safetensors.index.json", path);
}

/// tensor name -> shard, as the index says.
std::map<std::string, std::string> read_weight_map(FileSystem& fs, const std::string& path) {
  const json index = parse_strict_json("safetensors", path, read_text(fs, path), 8);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object() || index["weight_map"].empty())
    fail<DataError>("safetensors", "'{}' has no 'weight_map' with tensors: not an index of shards", path);
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!shard.is_string() || shard.get_ref<const std::string&>().find('/') != std::string::npos ||
        !shard.get_ref<const std::string&>().ends_with(".safetensors"))
      fail<DataError>("safetensors", "'{}': tensor '{}' lies in {}; allowed: the name of a .safetensors file of the same folder",
                      path, name, shortened(shard));
    shard_of[name] = shard.get<std::string>();
  }
  return shard_of;
}

}  // namespace

Safetensors::Safetensors(FileSystem& fs, const std::string& path) : path_(path) {
  const std::string weights = find_weights(fs, path);
  if (!weights.ends_with(".json")) {
    files_.emplace_back(fs, weights);
    for (const SafetensorsEntry& entry : files_[0].entries()) tensors_[entry.name] = {0, &entry};
    return;
  }
  const std::map<std::string, std::string> shard_of = read_weight_map(fs, weights);
  std::set<std::string> shards;
  for (const auto& [name, shard] : shard_of) shards.insert(shard);
  files_.reserve(shards.size());  // entries are pointed at
  for (const std::string& shard : shards) {
    if (!fs.exists(folder_of(weights) + shard))
      fail<DataError>("safetensors", "'{}' names the shard '{}', which is missing", weights, shard);
    files_.emplace_back(fs, folder_of(weights) + shard);
    for (const SafetensorsEntry& entry : files_.back().entries()) {
      const auto named = shard_of.find(entry.name);
      if (named == shard_of.end())
        fail<DataError>("safetensors", "'{}' holds tensor '{}', which the index '{}' does not name", files_.back().path(),
                        entry.name, weights);
      if (named->second != shard)
        fail<DataError>("safetensors", "tensor '{}' lies in '{}', but the index '{}' says '{}'", entry.name, files_.back().path(),
                        weights, named->second);
      tensors_[entry.name] = {files_.size() - 1, &entry};
    }
  }
  for (const auto& [name, shard] : shard_of)
    if (!tensors_.contains(name))
      fail<DataError>("safetensors", "'{}' says that tensor '{}' lies in '{}', which lacks it", weights, name, shard);
}

std::vector<std::string> Safetensors::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : tensors_) names.push_back(name);
  return names;
}

const SafetensorsEntry* Safetensors::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second.second;
}

const SafetensorsEntry& Safetensors::at(const std::string& name) const {
  if (const SafetensorsEntry* entry = find(name)) return *entry;
  const std::string near = nearest(name, names());
  fail<DataError>("safetensors", "'{}' holds no tensor '{}'{}", path_, name,
                  near.empty() ? "" : fmt::format("; the nearest is '{}'", near));
}

const std::string& Safetensors::path_of(const std::string& name) const {
  at(name);
  return files_[tensors_.at(name).first].path();
}

void Safetensors::read(const std::string& name, DType wanted, void* into) const {
  const SafetensorsEntry& entry = at(name);
  files_[tensors_.at(name).first].read(entry, wanted, into);
}

void Safetensors::read_bytes(const std::string& name, int64_t begin, std::span<std::byte> into) const {
  const SafetensorsEntry& entry = at(name);
  files_[tensors_.at(name).first].read_bytes(entry, begin, into);
}

}  // namespace quire
