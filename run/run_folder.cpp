#include "run/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <vector>

#include "run/config_schema.h"
#include "runtime/error.h"

namespace quire {
namespace {

std::string reason() { return std::generic_category().message(errno); }

/// The holder's own words, as one printable line.
std::string read_holder(int descriptor) {
  char buffer[200];
  const ssize_t count = ::pread(descriptor, buffer, sizeof buffer, 0);
  std::string text;
  for (ssize_t i = 0; i < count && buffer[i] != '\n'; ++i)
    if (buffer[i] >= 0x20 && buffer[i] < 0x7f) text += buffer[i];
  return text.empty() ? "another process" : text;
}

/// Makes missing folders and syncs the names of those it made: what is saved in them later must not vanish with them. Returns these, the innermost first.
std::vector<std::string> make_durable_directories(FileSystem& fs, const std::string& path) {
  std::vector<std::string> made;
  for (std::filesystem::path at = path; at.has_relative_path() && !fs.exists(at.string()); at = at.parent_path()) made.push_back(at.string());
  fs.make_directories(path);
  for (const std::filesystem::path at : made) fs.sync_directory(at.has_parent_path() ? at.parent_path().string() : ".");
  return made;
}

}  // namespace

FolderLock::FolderLock(const std::string& path) {
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail<FileError>("run folder", "can not open '{}': {}", path, reason());
  int result;
  do result = ::flock(descriptor_, LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  if (result == 0) {
    char host[256] = "";
    ::gethostname(host, sizeof host - 1);
    const std::string text = fmt::format("process {} on {}\n", ::getpid(), host);
    if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, text.data(), text.size(), 0) < 0) {
    }  // only a message suffers, as on a full disk
    return;
  }
  const int error = errno;
  const std::string holder = read_holder(descriptor_);
  ::close(descriptor_);
  if (error == EWOULDBLOCK)
    fail<StateError>("run folder", "'{}' is in use by {}; allowed: one process at a time; end that one, or give another run.dir",
                     path.substr(0, path.rfind('/')), holder);
  errno = error;
  fail<FileError>("run folder", "can not lock '{}': {}", path, reason());
}

FolderLock::~FolderLock() { ::close(descriptor_); }

RunFolder::RunFolder(std::string path, FileSystem& fs) : path_(std::move(path)), fs_(fs) {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  made_ = make_durable_directories(disk(), path_);
  lock_ = std::make_unique<FolderLock>(file("lock"));
  make_durable_directories(fs_, checkpoints());
}

RunFolder::~RunFolder() {
  if (!removed_without_config_ || made_.empty()) return;
  std::error_code ignored;  // what refused the start matters more
  std::filesystem::remove_all(made_.front(), ignored);  // while it is locked
  for (const std::string& parent : std::span(made_).subspan(1)) std::filesystem::remove(parent, ignored);  // where it is empty
}

bool RunFolder::store_config(const Config& config) {
  const std::optional<Config> before = stored_config(path_, fs_);
  if (before) check_resumable(*before, config);
  if (!before || !(*before == config)) write_atomically(fs_, file("config.toml"), to_toml(config));
  removed_without_config_ = false;
  return before.has_value();
}

std::map<std::string, std::string> RunFolder::choices() const { return stored_choices(path_, fs_); }

std::map<std::string, std::string> stored_choices(const std::string& path, FileSystem& fs) {
  std::map<std::string, std::string> all;
  const std::string name = path + "/choices.json";
  if (!fs.exists(name)) return all;
  const nlohmann::json object = nlohmann::json::parse(read_text(fs, name), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) fail<DataError>(name, "not a JSON object; allowed: the file that a run wrote, or none");
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) fail<DataError>(name, "key \"{}\" is not a text; allowed: the file that a run wrote, or none", key);
    all[key] = value.get<std::string>();
  }
  return all;
}

void RunFolder::store_choices(const std::map<std::string, std::string>& choices) {
  write_atomically(fs_, file("choices.json"), nlohmann::json(choices).dump(2) + "\n");
}

void RunFolder::append_metrics(const StepMetrics& metrics) {
  if (!metrics_) metrics_ = fs_.append(file("metrics.jsonl"));
  const std::string line = to_json(metrics) + "\n";
  metrics_->write(std::as_bytes(std::span(line)));
}

void RunFolder::sync_metrics() {
  if (!metrics_) return;
  metrics_->sync();
  fs_.sync_directory(path_);  // the file's name, where it is new
}

int64_t RunFolder::truncate_metrics_after(int64_t step) {
  metrics_.reset();  // it would go on writing to the replaced file
  const std::string name = file("metrics.jsonl");
  if (!fs_.exists(name)) return 0;
  const std::string text = read_text(fs_, name);
  std::string kept;
  int64_t lines = 0, read = 0;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string_view line = std::string_view(text).substr(at, end + 1 - at);
    ++read;
    if (metrics_from_json(line, fmt::format("{}:{}", name, read)).step > step) continue;
    kept += line;
    ++lines;
  }
  if (kept != text) write_atomically(fs_, name, kept);
  return lines;
}

std::optional<Config> stored_config(const std::string& folder, FileSystem& fs) {
  const std::string name = folder + "/config.toml";
  if (!fs.exists(name)) return std::nullopt;
  return parse_stored_config(read_text(fs, name), name, folder);
}

}  // namespace quire
