// The run's log file: every line with its time, kept across resumes.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "runtime/file.h"

namespace quire {

/// Appends to a file; thread-safe. A line that can not be written (full disk) is lost and the run goes on: the log is not the record.
class Log {
 public:
  /// Throws FileError where the file can not be opened.
  Log(FileSystem& fs, const std::string& path);
  /// One or more lines, each as `2026-01-31T12:00:00Z text`.
  void write(std::string_view text);

 private:
  std::unique_ptr<File> file_;
  std::mutex mutex_;
};

}  // namespace quire
