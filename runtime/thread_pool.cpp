#include "runtime/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <limits>
#include <utility>

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

ThreadPool::ThreadPool(int threads, int first_processor) {
  if (threads < 1) fail<ConfigError>("threads", "{} threads; allowed: 1 or more", threads);
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i)
    workers_.emplace_back([this, i, first_processor] {
      if (first_processor >= 0) pin_to_processor(first_processor + i);
      work(i);
    });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::take_chunks(uint32_t generation, int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(ticket >> 32) == generation) {
    const auto chunk = static_cast<uint32_t>(ticket);
    // These belong to this section if the claim below succeeds: before they change, the ticket is closed, so that a claim fails.
    const std::function<void(int64_t, int)>* task = task_.load(std::memory_order_acquire);
    if (chunk >= chunks_.load(std::memory_order_acquire)) return;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    try {
      if (!failed_.load(std::memory_order_relaxed)) {
        (*task)(chunk, thread);
        if (thread == 0) poll();
      }
    } catch (...) {
      std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
      failed_ = true;
    }
    done_.fetch_add(1, std::memory_order_release);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  const auto news = [&] { return static_cast<uint32_t>(ticket_.load() >> 32) != seen || stop_; };
  while (true) {
    for (int i = 0; i < spins && !news(); ++i) relax();
    if (!news()) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, news);
      sleepers_.fetch_sub(1);
    }
    if (stop_) return;
    seen = static_cast<uint32_t>(ticket_.load(std::memory_order_acquire) >> 32);
    take_chunks(seen, thread);
  }
}

void ThreadPool::parallel_for(int64_t chunks, const std::function<void(int64_t, int)>& task) {
  if (chunks <= 0) return;
  if (chunks > std::numeric_limits<uint32_t>::max() / 2) fail<ShapeError>("threads", "{} chunks; allowed: below 2^31", chunks);
  if (busy_.exchange(true)) fail<StateError>("threads", "parallel_for inside parallel_for of the same pool");
  struct Release { std::atomic<bool>& busy; ~Release() { busy = false; } } release{busy_};
  if (chunks == 1 || workers_.empty()) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      task(chunk, 0);
      if (poll_) poll_();
    }
    return;
  }
  // A late thread may still hold a ticket of the last section. It must not claim one more chunk there while task and count are already the new ones:
  // a section number of its own, without chunks, stands between the two.
  const uint32_t closed = static_cast<uint32_t>(ticket_.load(std::memory_order_relaxed) >> 32) + 1, generation = closed + 1;
  ticket_.store(static_cast<uint64_t>(closed) << 32 | std::numeric_limits<uint32_t>::max());
  task_.store(&task, std::memory_order_release);
  chunks_.store(static_cast<uint32_t>(chunks), std::memory_order_release);
  done_.store(0, std::memory_order_relaxed);
  error_ = nullptr;
  failed_ = false;
  ticket_.store(static_cast<uint64_t>(generation) << 32);  // sequentially consistent with sleepers_: a worker sees this or is seen asleep
  if (sleepers_.load() > 0) {
    { std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  take_chunks(generation, 0);
  std::exception_ptr poll_error;
  for (int i = 0; i == 0 || done_.load(std::memory_order_acquire) < static_cast<uint32_t>(chunks); ++i) {  // polls at least once
    try {
      if (!poll_error) poll();
    } catch (...) {
      poll_error = std::current_exception();  // the workers still run this section's task: leave only when they are done
    }
    if (i < spins) relax();
    else std::this_thread::yield();
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  if (poll_error) std::rethrow_exception(poll_error);
}

}  // namespace quire
