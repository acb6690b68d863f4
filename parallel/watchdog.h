// Waiting with an end: what ranks of one machine tell each other when a message does not come. Used by the communicators.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "parallel/communicator.h"

namespace quire {

/// Shared by the ranks of one machine. Plain atomics, valid when zeroed, so that it may lie in memory that processes share.
struct WatchBoard {
  std::atomic<uint32_t> expired{0};  ///< a rank has waited too long: everybody who waits says for what
  std::atomic<uint32_t> closed{0};   ///< ... and the time for that is over: that rank fails now
  std::atomic<uint32_t> heard{0};    ///< ranks that have spoken, or have left and will not
  std::array<std::atomic<uint64_t>, 1000> said{};  ///< digests of texts, 0: free

  /// Whether nobody has said this text before.
  bool first_to_say(std::string_view text);
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);  // others do not work between processes

/// A rank's place at the board.
class WatchSeat {
 public:
  /// `ranks`: how many sit at the board. An empty report writes to stderr. `ended`: whether the job was ended meanwhile, where a rank lives to ask.
  WatchSeat(WatchBoard& board, uint32_t ranks, int world_rank, std::function<void(const std::string&)> report, std::function<bool()> ended)
      : board_(board), ranks_(ranks), world_rank_(world_rank), report_(std::move(report)), ended_(std::move(ended)) {}
  ~WatchSeat() { leave(); }
  WatchSeat(const WatchSeat&) = delete;
  WatchSeat& operator=(const WatchSeat&) = delete;

  WatchBoard& board() { return board_; }
  int world_rank() const { return world_rank_; }
  bool all_heard() const { return board_.heard.load() >= ranks_; }
  bool ended() const { return ended_(); }
  void speak(const std::string& sentence);
  void leave();

 private:
  WatchBoard& board_;
  const uint32_t ranks_;
  const int world_rank_;
  const std::function<void(const std::string&)> report_;
  const std::function<bool()> ended_;
  std::atomic<bool> counted_{false};  ///< a thread that watches devices may speak, too
};

/// One wait for one message.
class Watch {
 public:
  enum class Waits : uint8_t { to_send, to_receive };
  /// `other`: the other end's number in the job, -1 for all of them. limit: seconds, 0: no end.
  Watch(WatchSeat& seat, Waits waits, int other, const MessageLabel& label, double limit)
      : seat_(seat), waits_(waits), other_(other), label_(label), limit_(limit) {}
  /// To be called while waiting, at least every `nap()`. When the time is over here or for another rank: speaks, lets the others speak, throws
  /// CommunicationError here or AbortedError.
  void check();
  /// How long the waiting rank may look away.
  std::chrono::microseconds nap() const;
  double waited() const { return waited_; }  ///< seconds, as seen by the last check

 private:
  std::string what() const;  ///< `for activations ... from rank 0`
  [[noreturn]] void give_up(bool first);

  using Clock = std::chrono::steady_clock;
  WatchSeat& seat_;
  const Waits waits_;
  const int other_;
  const MessageLabel& label_;
  const double limit_;
  Clock::time_point last_ = Clock::now();
  double waited_ = 0;
};

}  // namespace quire
