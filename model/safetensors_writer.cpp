#include <nlohmann/json.hpp>
#include <set>

#include "model/safetensors.h"
#include "runtime/error.h"

namespace quire {

std::string safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "F64";
    case DType::f32: return "F32";
    case DType::bf16: return "BF16";
    case DType::i32: return "I32";
    case DType::i64: return "I64";
  }
  return "?";
}

SafetensorsWriter::SafetensorsWriter(FileSystem& fs, std::string path, const std::vector<SafetensorsItem>& items,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string> names;
  int64_t end = 0;
  for (const SafetensorsItem& item : items) {
    if (item.name.empty() || item.name == "__metadata__" || !names.insert(item.name).second)
      fail<DataError>("safetensors", "'{}': can not write a tensor named '{}': {}", path_, item.name,
                      item.name.empty() || item.name == "__metadata__" ? "not a name" : "it is given twice");
    int64_t bytes = size_of(item.dtype);
    for (const int64_t size : item.shape)
      if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes))
        fail<DataError>("safetensors", "'{}': tensor '{}' has an impossible size {}", path_, item.name, size);
    offsets_.push_back(end);
    header[item.name] = {{"dtype", safetensors_name(item.dtype)}, {"shape", item.shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& error) {
    fail<DataError>("safetensors", "'{}': a name or metadata is not UTF-8: {}", path_, error.what());
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t header_bytes = text.size();
  total_ = static_cast<int64_t>(8 + header_bytes) + end;
  for (int64_t& offset : offsets_) offset += static_cast<int64_t>(8 + header_bytes);
  file_ = fs.create(path_);
  write(std::as_bytes(std::span(&header_bytes, 1)));
  write(std::as_bytes(std::span(text)));
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) > total_ - written_)
    fail<StateError>("safetensors", "'{}': more bytes are written than the tensors hold", path_);
  file_->write(bytes);
  digest_.update(bytes);
  written_ += static_cast<int64_t>(bytes.size());
}

void SafetensorsWriter::finish() {
  if (written_ != total_) fail<StateError>("safetensors", "'{}': {} of {} bytes are written", path_, written_, total_);
  file_->sync();
}

void write_safetensors(FileSystem& fs, const std::string& path, const std::vector<SafetensorsItem>& items,
                       const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter writer(fs, path, items, metadata);
  for (size_t i = 0; i < items.size(); ++i) {
    int64_t bytes = size_of(items[i].dtype);
    for (const int64_t size : items[i].shape) bytes *= size;
    writer.write({static_cast<const std::byte*>(items[i].data), static_cast<size_t>(bytes)});
  }
  writer.finish();
}

}  // namespace quire
