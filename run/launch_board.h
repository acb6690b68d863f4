// What a launcher and the ranks that it started show each other: who is where, in a small file that all of them map.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

enum class RankState : int32_t {
  absent,   ///< its process has not reported yet
  joining,  ///< waits for the other ranks' processes
  running,
  ended,    ///< its work is done; it may still wait for the others
  failed,   ///< and has said why
};
std::string_view name_of(RankState state);

/// One entry per rank; each is written by its rank alone and read by the launcher at any time. The entries outlive their process.
class LaunchBoard {
 public:
  /// The launcher's: makes the file with `ranks` empty entries. Throws FileError.
  static LaunchBoard create(const std::string& path, int ranks);
  /// A rank's: opens what the launcher made. Throws FileError, and DataError where the file is no board or has no such rank.
  static LaunchBoard open(const std::string& path, int rank);
  ~LaunchBoard();
  LaunchBoard(LaunchBoard&& other) noexcept;
  LaunchBoard& operator=(LaunchBoard&&) = delete;

  int ranks() const { return ranks_; }
  pid_t pid(int rank) const { return entry(rank).pid.load(); }
  /// The step that the rank is working on; -1 before its first.
  int64_t step(int rank) const { return entry(rank).step.load(); }
  RankState state(int rank) const { return entry(rank).state.load(); }

  /// Of this rank. StateError on the launcher's own board, which has none.
  void set_pid(pid_t pid) { own().pid = pid; }
  void set_step(int64_t step) { own().step = step; }
  void set_state(RankState state) { own().state = state; }

 private:
  struct alignas(64) Entry {
    std::atomic<pid_t> pid;
    std::atomic<RankState> state;
    std::atomic<int64_t> step;
  };
  static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<RankState>::is_always_lock_free && sizeof(Entry) == 64);

  LaunchBoard(void* memory, size_t bytes, int ranks, int rank) : memory_(memory), bytes_(bytes), ranks_(ranks), rank_(rank) {}
  Entry& entry(int rank) const;
  Entry& own();

  void* memory_;
  size_t bytes_;
  int ranks_, rank_;
};

}  // namespace quire
