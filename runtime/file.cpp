// The machine's file system (POSIX): interrupted and partial calls are finished, every error names the path and the system's reason.
#include "runtime/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "runtime/error.h"

namespace quire {
namespace {

[[noreturn]] void refuse(std::string_view what, const std::string& path, int error = errno) {
  fail<FileError>("file", "{} '{}': {}", what, path, std::generic_category().message(error));
}

/// Repeats a system call that a signal interrupted.
template <class F>
auto retry(F&& call) {
  decltype(call()) result;
  do result = call();
  while (result == -1 && errno == EINTR);
  return result;
}

class DiskFile final : public File {
 public:
  DiskFile(std::string path, int flags) : path_(std::move(path)), appends_((flags & O_APPEND) != 0) {
    descriptor_ = retry([&] { return ::open(path_.c_str(), flags | O_CLOEXEC, 0666); });
    if (descriptor_ < 0) refuse(flags == O_RDONLY ? "can not open" : "can not create", path_);
    struct stat status;
    if (::fstat(descriptor_, &status) == 0 && S_ISDIR(status.st_mode)) {
      ::close(descriptor_);
      refuse("can not open", path_, EISDIR);
    }
  }
  ~DiskFile() override { ::close(descriptor_); }
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = retry([&] { return ::write(descriptor_, bytes.data(), std::min(bytes.size(), largest_call)); });
      if (written <= 0) refuse("can not write", path_, written < 0 ? errno : ENOSPC);
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
  }

  void write_at(int64_t offset, std::span<const std::byte> bytes) override {
    if (appends_) fail<StateError>("file", "'{}' is open for appending and can not be written at an offset", path_);
    while (!bytes.empty()) {
      const ssize_t written =
          retry([&] { return ::pwrite(descriptor_, bytes.data(), std::min(bytes.size(), largest_call), offset); });
      if (written <= 0) refuse("can not write", path_, written < 0 ? errno : ENOSPC);
      bytes = bytes.subspan(static_cast<size_t>(written));
      offset += written;
    }
  }

  void read_at(int64_t offset, std::span<std::byte> bytes) const override {
    const int64_t wanted = static_cast<int64_t>(bytes.size()), begin = offset;
    while (!bytes.empty()) {
      const ssize_t got = retry([&] { return ::pread(descriptor_, bytes.data(), std::min(bytes.size(), largest_call), offset); });
      if (got < 0) refuse("can not read", path_);
      if (got == 0)
        fail<DataError>("file", "'{}' ends at byte {}, where bytes {} to {} are needed: it is truncated", path_, offset, begin,
                        begin + wanted);
      bytes = bytes.subspan(static_cast<size_t>(got));
      offset += got;
    }
  }

  int64_t size() const override {
    struct stat status;
    if (::fstat(descriptor_, &status) != 0) refuse("can not examine", path_);
    return status.st_size;
  }

  void sync() override {
    if (retry([&] { return ::fsync(descriptor_); }) != 0) refuse("can not make durable", path_);
  }

 private:
  static constexpr size_t largest_call = size_t{1} << 30;  // Linux moves at most 2 GiB a call
  std::string path_;
  bool appends_;  // the system would ignore the offset of a write
  int descriptor_ = -1;
};

class Disk final : public FileSystem {
 public:
  std::unique_ptr<File> open(const std::string& path) override { return std::make_unique<DiskFile>(path, O_RDONLY); }
  std::unique_ptr<File> create(const std::string& path) override {
    return std::make_unique<DiskFile>(path, O_RDWR | O_CREAT | O_TRUNC);
  }
  std::unique_ptr<File> append(const std::string& path) override {
    return std::make_unique<DiskFile>(path, O_RDWR | O_CREAT | O_APPEND);
  }

  bool exists(const std::string& path) override {
    struct stat status;
    if (::stat(path.c_str(), &status) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    refuse("can not examine", path);
  }

  std::vector<std::string> list(const std::string& directory) override {
    DIR* stream = ::opendir(directory.c_str());
    if (!stream) {
      if (errno == ENOENT) return {};
      refuse("can not list", directory);
    }
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(stream)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(stream);
    if (error != 0) refuse("can not list", directory, error);
    std::sort(names.begin(), names.end());
    return names;
  }

  void make_directories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) refuse("can not make the directory", path, error.value());
  }

  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) refuse("can not rename to '" + to + "':", from);
  }

  void remove_all(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) refuse("can not remove", path, error.value());
  }

  void sync_directory(const std::string& path) override {
    const int descriptor = retry([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (descriptor < 0) refuse("can not open the directory", path);
    const int result = retry([&] { return ::fsync(descriptor); });
    const int error = errno;
    ::close(descriptor);
    // Some network file systems refuse to sync a directory because their names are durable at once.
    if (result != 0 && error != EINVAL) refuse("can not make the names durable in", path, error);
  }
};

}  // namespace

FileSystem& disk() {
  static Disk machine;  // stateless
  return machine;
}

std::vector<std::byte> read_bytes(FileSystem& fs, const std::string& path) {
  const std::unique_ptr<File> file = fs.open(path);
  std::vector<std::byte> bytes(static_cast<size_t>(file->size()));
  file->read_at(0, bytes);
  return bytes;
}

std::string read_text(FileSystem& fs, const std::string& path) {
  const std::unique_ptr<File> file = fs.open(path);
  std::string text(static_cast<size_t>(file->size()), '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_atomically(FileSystem& fs, const std::string& path, std::string_view content) {
  const std::string beside = path + ".writing";
  const size_t slash = path.find_last_of('/');
  const std::string directory = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  try {
    const std::unique_ptr<File> file = fs.create(beside);
    file->write(std::as_bytes(std::span(content)));
    file->sync();
  } catch (const FileError&) {
    try {
      fs.remove_all(beside);  // a full disk gets its room back
    } catch (const FileError&) {
    }
    throw;
  }
  fs.rename(beside, path);
  fs.sync_directory(directory);
}

}  // namespace quire
