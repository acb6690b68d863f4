// Locks that ThreadSanitizer does not see: what the emulator guards with them gives no order to what kernels and copies do.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace emulation {

class Lock {
 public:
  void lock() {
    int free = 0;
    if (state_.compare_exchange_strong(free, 1, std::memory_order_acquire)) return;
    while (state_.exchange(2, std::memory_order_acquire) != 0) state_.wait(2, std::memory_order_relaxed);
  }
  void unlock() {
    if (state_.exchange(0, std::memory_order_release) == 2) state_.notify_one();
  }

 private:
  std::atomic<int> state_{0};  ///< 0 free, 1 taken, 2 taken and waited for
};

/// Wakes all who wait, each of whom looks again.
class Signal {
 public:
  void notify() {
    count_.fetch_add(1, std::memory_order_release);
    syscall(SYS_futex, &count_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
  }
  /// Waits for `ready()`; gives the lock back while it does.
  template <class Ready>
  void wait(Lock& lock, const Ready& ready) {
    while (!ready()) pause(lock, -1);
  }
  /// Waits until somebody notifies or the time is over: milliseconds, negative for no end.
  void pause(Lock& lock, int64_t milliseconds) {
    const int seen = count_.load(std::memory_order_acquire);
    lock.unlock();
    const timespec limit{milliseconds / 1000, milliseconds % 1000 * 1000000};
    syscall(SYS_futex, &count_, FUTEX_WAIT_PRIVATE, seen, milliseconds < 0 ? nullptr : &limit, nullptr, 0);
    lock.lock();
  }

 private:
  std::atomic<int> count_{0};
};

}  // namespace emulation
