#include "run/log.h"

#include <ctime>
#include <span>

#include "runtime/error.h"

namespace quire {

Log::Log(FileSystem& fs, const std::string& path) : file_(fs.append(path)) {}

void Log::write(std::string_view text) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char stamp[32];
  const size_t length = std::strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ ", &parts);
  std::string lines;
  while (true) {
    const size_t end = text.find('\n');
    lines.append(stamp, length).append(text.substr(0, end)) += '\n';
    if (end == std::string_view::npos || end + 1 == text.size()) break;
    text.remove_prefix(end + 1);
  }
  const std::lock_guard lock(mutex_);
  try {
    file_->write(std::as_bytes(std::span(lines)));
  } catch (const FileError&) {
  }
}

}  // namespace quire
