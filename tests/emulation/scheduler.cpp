#include "scheduler.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "lock.h"
#include "sanitizers.h"
#include "state.h"

namespace emulation {

namespace {

constexpr size_t guard_bytes = 4096;  ///< behind a block's shared memory; must stay as it is
constexpr unsigned char poison = 0xff;  ///< NaN in every floating-point format

Thread* lane_of_warp(Block& b, int warp) {
  uint32_t lanes = b.runnable[warp];
  int lane = std::countr_zero(lanes);
  if (b.order == Order::descending) {
    lane = 31 - std::countl_zero(lanes);
  } else if (b.order == Order::random_lanes) {
    for (auto skip = next_random(b) % static_cast<uint64_t>(std::popcount(lanes)); skip > 0; --skip) lanes &= lanes - 1;
    lane = std::countr_zero(lanes);
  }
  return b.thread[warp * warp_size + lane].get();
}

/// The next thread to run, of `preferred` warp where that can; null where none can.
Thread* pick(Block& b, int preferred) {
  const bool random = b.order == Order::random || b.order == Order::random_lanes;
  if (preferred >= 0 && b.runnable[preferred] != 0 && !(random && next_random(b) % 64 == 0)) return lane_of_warp(b, preferred);
  const int start = random ? static_cast<int>(next_random(b) % static_cast<uint64_t>(b.warps)) : 0;
  for (int i = 0; i < b.warps; ++i) {
    const int warp = b.order == Order::descending ? b.warps - 1 - i : (start + i) % b.warps;
    if (b.runnable[warp] != 0) return lane_of_warp(b, warp);
  }
  return nullptr;
}

void set_current(Block& b, Thread& thread) {
  b.current = &thread;
  position.thread = thread.index;
  ++b.switches;
}

void thread_main();

/// Goes on in `next`, which starts if it has not yet.
void switch_to(Block& b, Fiber& from, Thread& next, bool dying = false) {
  set_current(b, next);
  if (!std::exchange(next.started, true)) prepare(next.fiber, thread_main);
  switch_fiber(from, next.fiber, dying);
}

/// The kernel, for the current thread, and what its end means for the others. Returns the thread that runs next, null for none.
Thread* run_thread(Block& b) {
  try {
    (*b.kernel)();
    const Thread& me = *b.current;
    if (!me.open_copies.empty() || !me.copy_groups.empty()) fail_kernel("a thread ends with asynchronous copies that it has not waited for");
    if (b.end_of_thread != nullptr) b.end_of_thread();
  } catch (const std::exception& error) {
    const Quiet quiet;
    if (b.error.empty()) b.error = error.what();
  }
  Thread& me = *b.current;
  me.done = true;
  --b.alive;
  b.runnable[me.warp] &= ~(1u << me.lane);
  if (b.error.empty() && b.alive > 0 && b.at_barrier == b.alive) {
    const Quiet quiet;
    b.error = "__syncthreads: some threads have ended while the others wait at line " + std::to_string(b.barrier_line);
  }
  return b.error.empty() ? pick(b, me.warp) : nullptr;
}

/// Where an emulated thread begins and ends. Its stack goes to a thread that has not started, where such a one is next.
void thread_main() {
  Block& b = block();
#ifdef EMULATION_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  for (;;) {
    Thread* const next = run_thread(b);
    Thread& me = *b.current;
    if (next != nullptr && !next->started) {
      std::swap(me.fiber, next->fiber);
      next->started = true;
      set_current(b, *next);
      continue;
    }
    if (next == nullptr) switch_fiber(me.fiber, b.main, true);
    else switch_to(b, me.fiber, *next, true);
    std::abort();  // nothing switches to a thread that has ended
  }
}

/// ThreadSanitizer's edges around a block: it starts after all that stands before it, and what follows sees what it did.
void order_block([[maybe_unused]] Block& b, [[maybe_unused]] bool begin) {
#ifdef EMULATION_THREAD_SANITIZER
  for (int i = 0; i < b.threads; ++i) {
    Thread& thread = *b.thread[i];
    if (begin) release(&thread);
    as_fiber(b.main, thread.fiber, begin ? [](void* address) { acquire(address); } : [](void* address) { release(address); }, &thread);
    if (!begin) acquire(&thread);
  }
#endif
}

void start_block(Block& b) {
  std::fill(b.runnable.begin(), b.runnable.end(), 0u);
  for (auto& warp : b.meetings) warp.clear();
  for (NamedBarrier& barrier : b.named) {
    barrier.expected = barrier.arrived = 0;
    barrier.waiting.clear();
  }
  b.alive = b.threads;
  b.at_barrier = b.votes = b.vote_result = 0;
  b.error.clear();
  b.hopper.reset();
  b.idle = nullptr;
  b.end_of_thread = nullptr;
  for (int i = 0; i < b.threads; ++i) {
    Thread& thread = *b.thread[i];
    thread.linear = i;
    thread.warp = i / warp_size;
    thread.lane = i % warp_size;
    thread.started = thread.done = false;
    thread.waiting = Operation::none;
    thread.line = 0;
    const auto n = static_cast<unsigned>(i);
    thread.index = uint3{n % b.size.x, n / b.size.x % b.size.y, n / (b.size.x * b.size.y)};
    thread.open_copies.clear();
    thread.copy_groups.clear();
#ifdef EMULATION_THREAD_SANITIZER
    thread.started = true;  // each has an order of its own
    prepare(thread.fiber, thread_main);
#endif
    b.runnable[thread.warp] |= 1u << thread.lane;
  }
  if (b.shared != nullptr) {
    std::memset(b.shared, poison, b.shared_bytes);
    if (!closes_memory) std::memset(b.shared + b.shared_bytes, poison, guard_bytes);
  }
}

void check_end_of_block(Block& b) {
  if (b.error.empty() && b.alive > 0) {
    b.error = "deadlock:";
    int shown = 0;
    for (int i = 0; i < b.threads && shown < 4; ++i)
      if (const Thread& thread = *b.thread[i]; !thread.done && thread.waiting != Operation::none) {
        b.error += (shown++ > 0 ? ", thread " : " thread ") + std::to_string(i) + " waits in " + name_of(thread.waiting) + " of line " +
                   std::to_string(thread.line);
      }
  }
  if (!closes_memory && b.shared != nullptr)
    for (size_t i = 0; i < guard_bytes; ++i)
      if (b.shared[b.shared_bytes + i] != poison && b.error.empty())
        b.error = "a thread wrote behind the block's " + std::to_string(b.shared_bytes) + " bytes of shared memory, at byte " +
                  std::to_string(b.shared_bytes + i);
}

void run_block(Block& b) {
  {
    const Quiet quiet;
    start_block(b);
  }
  order_block(b, true);
  while (b.alive > 0) {
    Thread* const next = b.error.empty() ? pick(b, -1) : nullptr;
    if (next == nullptr && b.error.empty() && b.idle != nullptr && b.idle(b)) continue;
    if (next == nullptr) break;
    switch_to(b, b.main, *next);
  }
  order_block(b, false);  // after an error, too: other threads get the stacks
  const Quiet quiet;
  check_end_of_block(b);
  if (b.error.empty()) return;
  for (auto& thread : b.thread) forget(thread->fiber);
  throw KernelError(b.error);
}

/// Blocks with their threads' stacks, kept for the next grid.
struct Pool {
  Lock lock;
  std::vector<std::unique_ptr<Block>> free;
  ~Pool() {
    for (auto& b : free)
      for (auto& thread : b->thread) free_stack(thread->fiber);
  }
};
Pool& pool() {
  static Pool blocks;
  return blocks;
}

std::unique_ptr<Block> take_block() {
  const std::lock_guard<Lock> guard(pool().lock);
  if (pool().free.empty()) return std::make_unique<Block>();
  std::unique_ptr<Block> taken = std::move(pool().free.back());
  pool().free.pop_back();
  return taken;
}

/// A block for a grid, with its shared memory, on the calling thread; gives it back at its end.
class Grid {
 public:
  Grid(dim3 grid, dim3 size, size_t shared_bytes) : block_(take_block()) {
    Block& b = *block_;
    b.grid = grid;
    b.size = size;
    b.threads = static_cast<int>(size.x * size.y * size.z);
    b.warps = (b.threads + warp_size - 1) / warp_size;
    while (static_cast<int>(b.thread.size()) < b.threads) b.thread.push_back(std::make_unique<Thread>());
    b.runnable.assign(static_cast<size_t>(b.warps), 0);
    b.meetings.resize(static_cast<size_t>(b.warps));
    b.warp_order.resize(std::max(b.warp_order.size(), static_cast<size_t>(b.warps)));
    b.shared_bytes = shared_bytes;
    b.shared = nullptr;
    b.switches = 0;
    if (shared_bytes > 0) {
      const size_t bytes = shared_base % 1024 + shared_bytes + (closes_memory ? 0 : guard_bytes);
      if (posix_memalign(&memory_, 1024, bytes) != 0) throw std::bad_alloc();
      b.shared = static_cast<unsigned char*>(memory_) + shared_base % 1024;  // a pointer and its shared address have the same alignment
    }
    adopt_thread(b.main);
    before_ = std::exchange(current_block, block_.get());
    position.block_size = size;
    position.grid_size = grid;
  }
  ~Grid() {
    current_block = before_;
    std::free(memory_);
    note_switches(block_->switches);
    const std::lock_guard<Lock> guard(pool().lock);
    pool().free.push_back(std::move(block_));
  }
  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;
  Block& block() { return *block_; }

 private:
  std::unique_ptr<Block> block_;
  Block* before_ = nullptr;
  void* memory_ = nullptr;
};

}  // namespace

uint64_t next_random(Block& b) {
  b.random ^= b.random << 13;
  b.random ^= b.random >> 7;
  b.random ^= b.random << 17;
  return b.random;
}

void make_runnable(Block& b, const Thread& thread) { b.runnable[thread.warp] |= 1u << thread.lane; }

void let_others_run(Block& b) {
  Thread& me = *b.current;
  Thread* const next = b.error.empty() ? pick(b, me.warp) : nullptr;
  if (next == &me) return;
  if (next == nullptr) {
    switch_fiber(me.fiber, b.main);
    return;
  }
  switch_to(b, me.fiber, *next);
}

void wait_in(Operation operation, uint32_t line) {
  Block& b = block();
  Thread& me = *b.current;
  me.waiting = operation;
  me.line = line;
  b.runnable[me.warp] &= ~(1u << me.lane);
  let_others_run(b);
  me.waiting = Operation::none;
}

void run_grid(dim3 grid, dim3 size, size_t shared_bytes, const std::function<void()>& kernel, Order order, uint64_t seed) {
  std::unique_ptr<Grid> on;
  {
    const Quiet quiet;
    on = std::make_unique<Grid>(grid, size, shared_bytes);
  }
  Block& b = on->block();
  b.kernel = &kernel;
  b.order = order;
  b.random = seed * 0x9e3779b97f4a7c15ull + 1;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  // Blocks have no order either: a stride without a common divisor visits each of them once.
  uint64_t first = 0, stride = 1;
  if (order == Order::descending) {
    first = blocks - 1;
    stride = blocks - 1;
  } else if (order != Order::ascending) {
    first = next_random(b) % blocks;
    const auto divisor = [&](uint64_t n, uint64_t m) {
      while (m != 0) n = std::exchange(m, n % m);
      return n;
    };
    do stride = next_random(b) % blocks + 1;
    while (divisor(stride, blocks) != 1);
  }
  for (uint64_t i = 0, at = first; i < blocks; ++i, at = (at + stride) % blocks) {
    b.index = uint3{static_cast<unsigned>(at % grid.x), static_cast<unsigned>(at / grid.x % grid.y), static_cast<unsigned>(at / (uint64_t{grid.x} * grid.y))};
    position.block = b.index;
    try {
      run_block(b);
    } catch (...) {
      const Quiet quiet;
      on.reset();
      throw;
    }
  }
  const Quiet quiet;
  on.reset();
}

}  // namespace emulation
