// Files behind a small interface, so that tests can lose unsynced writes, fill the disk, or die at any point.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// An open file. Reads and writes move whole buffers or throw FileError with the path and the system's reason.
class File {
 public:
  virtual ~File() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;                     ///< appends
  virtual void write_at(int64_t offset, std::span<const std::byte> bytes) = 0;
  virtual void read_at(int64_t offset, std::span<std::byte> bytes) const = 0;   ///< DataError where the file ends first
  virtual int64_t size() const = 0;
  virtual void sync() = 0;                                                      ///< contents durable (fsync)
};

/// What the rest of the library needs from a file system. Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<File> open(const std::string& path) = 0;              ///< for reading; FileError when missing
  virtual std::unique_ptr<File> create(const std::string& path) = 0;            ///< for writing; truncates
  virtual std::unique_ptr<File> append(const std::string& path) = 0;            ///< for writing at the end; creates
  virtual bool exists(const std::string& path) = 0;
  virtual std::vector<std::string> list(const std::string& directory) = 0;      ///< names, sorted; empty when missing
  virtual void make_directories(const std::string& path) = 0;
  virtual void rename(const std::string& from, const std::string& to) = 0;      ///< atomic; replaces
  virtual void remove_all(const std::string& path) = 0;
  virtual void sync_directory(const std::string& path) = 0;                     ///< names in it durable
};

/// The machine's file system.
FileSystem& disk();

/// Whole file as bytes / text. FileError when it can not be read.
std::vector<std::byte> read_bytes(FileSystem& fs, const std::string& path);
std::string read_text(FileSystem& fs, const std::string& path);
/// Writes beside `path`, syncs, renames over it, syncs the directory: after a crash either the old or the new content is there.
void write_atomically(FileSystem& fs, const std::string& path, std::string_view content);

}  // namespace quire
