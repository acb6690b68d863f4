#include "run/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <iterator>

#include "runtime/error.h"

namespace quire {
namespace {

// What a signal handler can reach is static by nature; it is only in use while the one StopSignals lives.
std::atomic<int> received{0};
std::atomic<bool> in_use{false};
std::atomic<bool> tells_terminal{false};
constexpr int stop_signals[] = {SIGTERM, SIGINT, SIGHUP};
struct sigaction previous[std::size(stop_signals)];
sigset_t previous_mask;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

/// Calls only what signal-safety(7) allows.
void handle(int signal) {
  const int saved = errno;
  int none = 0;
  if (received.compare_exchange_strong(none, signal)) {
    constexpr char text[] = "\nstopping after this step (once more: at once)\n";
    if (signal == SIGINT && tells_terminal.load() && ::write(STDERR_FILENO, text, sizeof text - 1) < 0) {
    }  // a terminal that is gone changes nothing
  } else if (signal == SIGINT) {
    ::_exit(130);
  }
  errno = saved;
}

}  // namespace

StopSignals::StopSignals() {
  if (in_use.exchange(true)) fail<StateError>("signals", "a StopSignals exists already; allowed: one at a time");
  received = 0;
  tells_terminal = ::isatty(STDERR_FILENO) == 1;
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  sigset_t stops;
  ::sigemptyset(&stops);
  for (size_t i = 0; i < std::size(stop_signals); ++i) {
    ::sigaddset(&stops, stop_signals[i]);
    ::sigaction(stop_signals[i], nullptr, &previous[i]);
    const bool ignored = stop_signals[i] == SIGHUP && previous[i].sa_handler == SIG_IGN;  // nohup
    if (!ignored) ::sigaction(stop_signals[i], &action, nullptr);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &stops, &previous_mask);
}

StopSignals::~StopSignals() {
  ::pthread_sigmask(SIG_SETMASK, &previous_mask, nullptr);
  for (size_t i = 0; i < std::size(stop_signals); ++i) ::sigaction(stop_signals[i], &previous[i], nullptr);
  in_use = false;
}

int StopSignals::signal() const { return received.load(); }

}  // namespace quire
