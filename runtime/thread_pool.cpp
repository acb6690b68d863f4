#include "runtime/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include "runtime/error.h"

namespace quire {

namespace {

void pin_to_processor(int index) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  const int count = CPU_COUNT(&allowed);
  int wanted = index % std::max(count, 1);
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &allowed) || wanted-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    return;
  }
}

/// Spins a little before it sleeps: parallel sections follow each other within microseconds in a step.
constexpr int spins = 2000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads, bool pin) {
  if (threads < 1) fail<ConfigError>("threads", "{} threads; allowed: 1 or more", threads);
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i)
    workers_.emplace_back([this, i, pin] {
      if (pin) pin_to_processor(i);
      work(i);
    });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    ++generation_;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::take_chunks(int thread) {
  for (int64_t chunk; (chunk = next_.fetch_add(1, std::memory_order_relaxed)) < chunks_;) {
    try {
      (*task_)(chunk, thread);
    } catch (...) {
      std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
      next_ = chunks_;
    }
    if (thread == 0 && poll_) poll_();
  }
}

void ThreadPool::work(int thread) {
  uint64_t seen = 0;
  while (true) {
    for (int i = 0; i < spins && generation_.load(std::memory_order_acquire) == seen; ++i) relax();
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    take_chunks(thread);
    running_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

void ThreadPool::parallel_for(int64_t chunks, const std::function<void(int64_t, int)>& task) {
  if (chunks <= 0) return;
  if (busy_.exchange(true)) fail<StateError>("threads", "parallel_for inside parallel_for of the same pool");
  struct Release { std::atomic<bool>& busy; ~Release() { busy = false; } } release{busy_};
  if (chunks == 1 || workers_.empty()) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      task(chunk, 0);
      if (poll_) poll_();
    }
    return;
  }
  task_ = &task;
  chunks_ = chunks;
  error_ = nullptr;
  next_.store(0, std::memory_order_relaxed);
  running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  take_chunks(0);
  for (int i = 0; running_.load(std::memory_order_acquire) > 0; ++i) {
    if (poll_) poll_();
    if (i < spins) relax();
    else std::this_thread::yield();
  }
  if (error_) std::rethrow_exception(error_);
}

}  // namespace quire
