// Where a rank's time goes, by operation: collected at the one door to all kernels (runtime/dispatch.h), where a program asks for it.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace quire {

/// Calls and seconds of wall time per operation. Threads may add at once.
class Profile {
 public:
  struct Entry {
    int64_t calls = 0;
    double seconds = 0;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  void add(std::string_view operation, double seconds) {
    const std::lock_guard lock(mutex_);
    auto found = entries_.find(operation);
    if (found == entries_.end()) found = entries_.emplace(operation, Entry{}).first;
    ++found->second.calls;
    found->second.seconds += seconds;
  }
  /// By name, ascending.
  Entries entries() const {
    const std::lock_guard lock(mutex_);
    return entries_;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    entries_.clear();
  }

 private:
  mutable std::mutex mutex_;
  Entries entries_;
};

/// Adds the time from its birth to its end, unless `profile` is null.
class ProfiledCall {
 public:
  ProfiledCall(Profile* profile, const char* operation) : profile_(profile), operation_(operation) {
    if (profile_) start_ = Clock::now();
  }
  ~ProfiledCall() {
    if (profile_) profile_->add(operation_, std::chrono::duration<double>(Clock::now() - start_).count());
  }
  ProfiledCall(const ProfiledCall&) = delete;
  ProfiledCall& operator=(const ProfiledCall&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  Profile* profile_;
  const char* operation_;
  Clock::time_point start_;
};

}  // namespace quire
