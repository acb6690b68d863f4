// The folder of one run: config.toml, choices.json, metrics.jsonl, log.txt, checkpoints/, schedule.csv and traces/ where there are stages and traces, and a lock while a process uses it.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "run/config.h"
#include "run/metrics.h"
#include "runtime/file.h"

namespace quire {

/// Holds a file's lock (flock) for its lifetime; the system lets go of it when the process ends, however it ends. The file keeps the
/// process id and host of its last holder. Throws StateError naming them while another holds it, FileError where locking fails.
class FolderLock {
 public:
  explicit FolderLock(const std::string& path);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// Used by the one process that trains; readers (generate, selfcheck) need no lock and use `stored_config` and `read_metrics`.
class RunFolder {
 public:
  /// Makes the folder where it is missing and locks it. The lock is the machine's even where `fs` is another file system.
  explicit RunFolder(std::string path, FileSystem& fs = disk());
  ~RunFolder();
  /// A folder that was made here and has no config in the end will be removed, with parents that were made for it: a start that is refused leaves none behind.
  void remove_without_config() { removed_without_config_ = true; }

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string checkpoints() const { return file("checkpoints"); }

  /// Keeps the resolved config. Where the folder holds one already, throws ConfigError unless the run may go on with the new one
  /// (`check_resumable`), which then takes its place. Returns whether there was one.
  bool store_config(const Config& config);

  /// What was chosen by measuring or by the machine, by name; empty for a new run.
  std::map<std::string, std::string> choices() const;
  void store_choices(const std::map<std::string, std::string>& choices);

  /// Appends one line in one write. Throws FileError.
  void append_metrics(const StepMetrics& metrics);
  /// Makes the lines written so far durable. Call before a checkpoint is published: a record must not lack steps that a checkpoint holds.
  void sync_metrics();
  /// Drops the lines of later steps, and a torn last line, in one atomic step. Call before the first `append_metrics` of every start
  /// (step 0 for a run that starts anew). Returns the number of whole lines kept.
  int64_t truncate_metrics_after(int64_t step);

 private:
  std::string path_;
  FileSystem& fs_;
  std::vector<std::string> made_;  ///< here, the innermost first; none where it was there
  bool removed_without_config_ = false;
  std::unique_ptr<FolderLock> lock_;
  std::unique_ptr<File> metrics_;
};

/// The choices that a run folder holds; empty where it holds none. Throws DataError.
std::map<std::string, std::string> stored_choices(const std::string& path, FileSystem& fs = disk());

/// The config that a run folder holds, absolute paths included; nothing where it holds none.
std::optional<Config> stored_config(const std::string& folder, FileSystem& fs = disk());

}  // namespace quire
