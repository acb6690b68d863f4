// A file system in memory that loses, fills and dies on request: a test aid for everything that must survive a crash.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/file.h"

namespace quire {

/// Thrown by the operation at which the machine dies, and by every one after it. Not an Error, so that no clean-up code takes it for one.
struct PowerLoss {
  int64_t operation = 0;
};

/// What goes wrong. Operations that change or sync something are counted from 0 after `set_faults`: create, append, write, write_at,
/// sync, make_directories (one for each new directory), rename, remove_all (one for each name), sync_directory.
struct Faults {
  int64_t die_at = -1;                  ///< this operation and all later ones throw PowerLoss; a write leaves its first half
  int64_t fail_at = -1;                 ///< this operation alone throws FileError (input/output error) and does nothing
  int64_t capacity = -1;                ///< bytes of contents, plus `name_bytes` a name, before "No space left on device"
  bool swallow_sync = false;            ///< File::sync does nothing: the control of every crash test
  bool swallow_sync_directory = false;  ///< sync_directory does nothing
};

/// What is left after the machine died.
enum class CrashKind {
  everything,     ///< the process died, the machine lives: all is kept
  synced_only,    ///< contents and names that were not synced are lost
  names_first,    ///< all names are kept, contents that were not synced are lost (a rename overtakes its data)
  contents_first, ///< all contents are kept, names that were not synced are lost
  random,         ///< each file keeps old, new or half-written contents; each directory some first part of its changes
};

/// Contents become durable at File::sync, names at sync_directory of the directory that holds them: what POSIX promises and no more.
class FaultyFileSystem final : public FileSystem {
 public:
  static constexpr int64_t name_bytes = 64;

  FaultyFileSystem();
  ~FaultyFileSystem() override;

  void set_faults(const Faults& faults);   ///< and counts operations from 0
  int64_t operations() const;              ///< since set_faults
  int64_t used() const;                    ///< bytes that count against the capacity
  std::unique_ptr<FaultyFileSystem> copy() const;  ///< without faults; open files stay with the original
  /// The state after the crash, all of it durable, without faults. `seed` matters to CrashKind::random.
  std::unique_ptr<FaultyFileSystem> crash(CrashKind kind, uint64_t seed = 0) const;

  std::unique_ptr<File> open(const std::string& path) override;
  std::unique_ptr<File> create(const std::string& path) override;
  std::unique_ptr<File> append(const std::string& path) override;
  bool exists(const std::string& path) override;
  std::vector<std::string> list(const std::string& directory) override;
  void make_directories(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void remove_all(const std::string& path) override;
  void sync_directory(const std::string& path) override;

 private:
  struct Node;
  struct Place;
  class OpenFile;
  struct State;
  std::unique_ptr<File> open_for_writing(const std::string& path, bool truncate);
  std::shared_ptr<State> state_;  // shared with open files
};

}  // namespace quire
