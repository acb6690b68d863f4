#include "parallel/watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "runtime/digest.h"
#include "runtime/error.h"

namespace quire {
namespace {

constexpr double longest_step = 1;   // seconds between two checks that count: more means that the process itself was stopped
constexpr double longest_grace = 2;  // seconds for the others to speak
constexpr double last_word = 3;      // seconds for the first to say its error and to end the job

std::string host_name() {
  char name[256] = "?";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

bool WatchBoard::first_to_say(std::string_view text) {
  const uint64_t digest = std::max<uint64_t>(digest_of(std::as_bytes(std::span(text))), 1);
  for (size_t probe = 0; probe < said.size(); ++probe) {
    uint64_t found = 0;
    if (said[(digest + probe) % said.size()].compare_exchange_strong(found, digest)) return true;
    if (found == digest) return false;
  }
  return true;
}

void WatchSeat::speak(const std::string& sentence) {
  if (report_) report_(sentence);
  else std::fprintf(stderr, "%s\n", sentence.c_str());
  leave();
}

void WatchSeat::leave() {
  if (!counted_.exchange(true)) board_.heard.fetch_add(1);
}

void Watch::check() {
  const Clock::time_point now = Clock::now();
  waited_ += std::min(std::chrono::duration<double>(now - last_).count(), longest_step);
  last_ = now;
  if (seat_.board().expired.load(std::memory_order_relaxed) != 0) give_up(false);
  if (limit_ > 0 && waited_ > limit_) give_up(seat_.board().expired.exchange(1) == 0);
}

std::chrono::microseconds Watch::nap() const {
  return std::chrono::microseconds(limit_ > 0 ? std::clamp<int64_t>(static_cast<int64_t>(limit_ * 1e5), 1000, 50'000) : 50'000);
}

std::string Watch::what() const {
  if (other_ < 0) return fmt::format("for {} from the other ranks", to_string(label_));
  return waits_ == Waits::to_receive ? fmt::format("for {} from rank {}", to_string(label_), other_)
                                     : fmt::format("to send {} to rank {}", to_string(label_), other_);
}

void Watch::give_up(bool first) {
  WatchBoard& board = seat_.board();
  // A rank that comes when the others have left (it was stopped, say) has nothing to add.
  if (board.closed.load() == 0)
    seat_.speak(fmt::format("rank {} waits {} since {:.{}f} s: giving up (host {})", seat_.world_rank(), what(), waited_,
                            waited_ < 10 ? 1 : 0, host_name()));
  const auto wait_until = [](double seconds, const auto& over) {
    const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    while (!over() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  if (!first) {  // the error is the first one's to tell
    wait_until(longest_grace, [&] { return board.closed.load() != 0; });
    wait_until(last_word, [&] { return seat_.ended(); });
    fail<AbortedError>("communicator", "another rank waited too long; rank {} waited {}", seat_.world_rank(), what());
  }
  wait_until(limit_ > 0 ? std::min(limit_, longest_grace) : longest_grace, [&] { return seat_.all_heard(); });
  board.closed.store(1);
  fail<CommunicationError>("communicator",
                           "rank {} waited {} longer than the watchdog's {:.3g} s: that rank is stuck, stopped, dead or needs more time",
                           seat_.world_rank(), what(), limit_);
}

}  // namespace quire
