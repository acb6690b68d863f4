// The safetensors format (public specification of Hugging Face): reading strictly, one file or shards with an index, and writing.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/digest.h"
#include "runtime/dtype.h"
#include "runtime/file.h"

namespace quire {

/// One tensor as it lies in a file.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;            ///< as written there: F64, F32, F16, BF16, I64, I32, or one that can not be read
  std::vector<int64_t> shape;
  int64_t offset = 0;           ///< of the first byte, from the start of the file
  int64_t bytes = 0;
  int64_t elements() const;
};

/// One open file, its header checked when opened: its length lies inside the file, it is valid JSON without repeated names, and
/// the tensors fill the rest of the file without holes or overlaps, each as large as its dtype and shape say. Throws DataError,
/// FileError. Nothing is mapped: memory use is the header's. Reading is thread-safe.
class SafetensorsFile {
 public:
  SafetensorsFile(FileSystem& fs, std::string path);

  const std::string& path() const { return path_; }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  ///< in the order of the bytes
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const SafetensorsEntry* find(const std::string& name) const;               ///< nullptr when absent

  /// Reads every element, converted to `wanted`, into memory for `entry.elements()` of them. Floating types convert into each other
  /// (round to nearest even), integer types too while the values fit (DataError); others throw DTypeError naming the tensor.
  void read(const SafetensorsEntry& entry, DType wanted, void* into) const;
  /// Plain bytes `[begin, begin + into.size())` of the tensor.
  void read_bytes(const SafetensorsEntry& entry, int64_t begin, std::span<std::byte> into) const;

 private:
  std::string path_;
  std::shared_ptr<File> file_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// The tensors of one file or of several shards that an index (`*.safetensors.index.json`) names.
class Safetensors {
 public:
  /// `path`: a `.safetensors` file, an index, or a folder that holds `model.safetensors` or `model.safetensors.index.json`.
  /// DataError: a missing shard, a tensor that its shard lacks, one that lies in another shard, or one that the index does not name.
  Safetensors(FileSystem& fs, const std::string& path);
  Safetensors(Safetensors&&) = default;
  Safetensors& operator=(Safetensors&&) = default;

  std::vector<std::string> names() const;                                    ///< sorted
  const SafetensorsEntry* find(const std::string& name) const;               ///< nullptr when absent
  const SafetensorsEntry& at(const std::string& name) const;                 ///< DataError with the nearest name when absent
  const std::string& path() const { return path_; }                          ///< as given
  const std::string& path_of(const std::string& name) const;                 ///< the file that holds it

  void read(const std::string& name, DType wanted, void* into) const;
  void read_bytes(const std::string& name, int64_t begin, std::span<std::byte> into) const;

 private:
  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::pair<size_t, const SafetensorsEntry*>> tensors_;
};

/// A tensor to be written: contiguous host memory, or none when the bytes are streamed.
struct SafetensorsItem {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
};

/// Writes one file: the header at once (padded so that the data begin at a multiple of 8 bytes), then the tensors' bytes in the
/// order of the items.
class SafetensorsWriter {
 public:
  /// DataError for repeated or invalid names. The items' data are not used.
  SafetensorsWriter(FileSystem& fs, std::string path, const std::vector<SafetensorsItem>& items,
                    const std::map<std::string, std::string>& metadata = {});
  /// File offset of item i's first byte.
  int64_t offset(size_t item) const { return offsets_[item]; }
  void write(std::span<const std::byte> bytes);  ///< the next bytes; any division into calls
  /// Makes the file durable (its name is not). StateError unless every tensor is complete.
  void finish();
  int64_t bytes() const { return written_; }           ///< of the whole file so far
  uint64_t checksum() const { return digest_.value(); }  ///< XXH64 of the whole file so far

 private:
  std::string path_;
  std::unique_ptr<File> file_;
  std::vector<int64_t> offsets_;
  int64_t written_ = 0, total_ = 0;
  Digest digest_;
};

/// Writes a whole durable file. The directory is not synced.
void write_safetensors(FileSystem& fs, const std::string& path, const std::vector<SafetensorsItem>& items,
                       const std::map<std::string, std::string>& metadata = {});

/// The format's name of a dtype, e.g. "BF16".
std::string safetensors_name(DType dtype);

}  // namespace quire
