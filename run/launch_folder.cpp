#include "run/launch_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "runtime/error.h"

namespace quire {
namespace {

const char* const prefix = "quire-launch-";

/// Removes folders of this user whose launcher lives no more: nobody holds their lock.
void remove_abandoned(const std::string& parent) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    struct stat status {};
    if (!entry.path().filename().string().starts_with(prefix) || ::lstat(entry.path().c_str(), &status) != 0 || !S_ISDIR(status.st_mode) ||
        status.st_uid != ::geteuid())
      continue;
    const int lock = ::open((entry.path() / "lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (lock < 0) continue;  // one that is being made
    if (::flock(lock, LOCK_EX | LOCK_NB) == 0) std::filesystem::remove_all(entry.path(), ignored);
    ::close(lock);
  }
}

}  // namespace

LaunchFolder::LaunchFolder() {
  std::vector<std::string> parents = {"/dev/shm"};
  if (const char* temporary = std::getenv("TMPDIR"); temporary != nullptr && std::strlen(temporary) < 60) parents.emplace_back(temporary);  // a socket's name is short
  parents.emplace_back("/tmp");
  for (const std::string& parent : parents) {
    remove_abandoned(parent);
    std::string path = parent + "/" + prefix + "XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) continue;
    path_ = path;
    // Locked before it has its name: another launcher never sees a living one's without the lock held.
    const std::string made = path_ + "/lock.new";
    lock_ = ::open(made.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (lock_ >= 0 && ::flock(lock_, LOCK_EX | LOCK_NB) == 0 && ::rename(made.c_str(), (path_ + "/lock").c_str()) == 0) return;
    const int reason = errno;
    if (lock_ >= 0) ::close(lock_);
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
    fail<FileError>(path_, "the launch folder can not be locked: {}", std::strerror(reason));
  }
  const int reason = errno;
  fail<FileError>("launch", "no temporary folder can be made in {}: {}", parents.back(), std::strerror(reason));
}

LaunchFolder::~LaunchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  ::close(lock_);
}

}  // namespace quire
