// The temporary folder of one launch: board, socket, and what mpirun and MPI keep while they run.
#pragma once
#include <string>

namespace quire {

/// Made in memory (/dev/shm) where possible, private to the user, removed at the end. Also removes what launchers left that were killed.
class LaunchFolder {
 public:
  /// Throws FileError where no temporary folder can be made.
  LaunchFolder();
  ~LaunchFolder();
  LaunchFolder(const LaunchFolder&) = delete;
  LaunchFolder& operator=(const LaunchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int lock_ = -1;  ///< held as long as the launcher lives
};

}  // namespace quire
