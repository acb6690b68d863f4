// Our own threads: work is cut into chunks by its shape alone, so results do not depend on the number of threads.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace quire {

/// A fixed set of threads owned by one rank. The calling thread takes part as thread 0. Not reentrant: a task must not call
/// `parallel_for` on the same pool (StateError).
class ThreadPool {
 public:
  /// `threads` >= 1 in total, the caller included. `first_processor` >= 0 binds worker i (from 1) to the (first_processor + i)-th processor this
  /// process may use, counted from 0 and round again past the last; the caller stays where it is. -1 binds none.
  explicit ThreadPool(int threads, int first_processor = -1);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Runs `task(chunk, thread)` for every chunk in [0, chunks), each exactly once, on any thread; returns when all are done.
  /// The first exception thrown by a task is rethrown here, after the other running chunks have ended.
  void parallel_for(int64_t chunks, const std::function<void(int64_t chunk, int thread)>& task);

  /// `poll` is called by the calling thread between its chunks and while it waits for the others (communication makes progress there).
  /// What it throws leaves `parallel_for` as an exception of a task does.
  void set_poll(std::function<void()> poll) { poll_ = std::move(poll); }
  void poll() { if (poll_) poll_(); }

 private:
  void work(int thread);
  /// Claims and runs chunks of the section `generation` until none is left.
  void take_chunks(uint32_t generation, int thread);

  std::vector<std::thread> workers_;
  std::function<void()> poll_;
  /// Section in the upper half, its next chunk in the lower: one compare-and-swap claims a chunk of a section that is still open, so nobody waits
  /// for a thread that has not woken up yet.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<uint32_t> chunks_{0}, done_{0};
  std::atomic<const std::function<void(int64_t, int)>*> task_{nullptr};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false}, busy_{false}, failed_{false};
  std::exception_ptr error_;
  std::mutex error_mutex_;
};

/// Number of chunks of `size` that cover `total`.
constexpr int64_t chunks_of(int64_t total, int64_t size) { return (total + size - 1) / size; }

}  // namespace quire
