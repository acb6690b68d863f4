#include "streams.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <string>

#include "sanitizers.h"
#include "state.h"

namespace emulation {

namespace {

constexpr int64_t patience = 2000;  ///< milliseconds after which late work runs though nothing waits for it
std::atomic<int> working{0};        ///< streams whose work runs and waits for no other stream

}  // namespace

Stream::Stream(int device, uint64_t number) : device_(device), random_(number * 0x9e3779b97f4a7c15ull + 1) {
  thread_ = std::thread([this] { loop(); });
}

Stream::~Stream() {
  {
    const Quiet quiet;
    const std::lock_guard<Lock> guard(lock_);
    over_ = true;
    demanded_ = pushed_;
    changed_.notify();
  }
  thread_.join();
}

uint64_t Stream::enqueue(std::function<void()> work, bool always) {
  Work item{std::move(work), always, std::make_unique<char>()};
  release(item.order.get());
  const Settings now = settings();
  uint64_t place = 0;
  {
    const Quiet quiet;
    const std::lock_guard<Lock> guard(lock_);
    const bool was_empty = queue_.empty();
    queue_.push_back(std::move(item));
    place = ++pushed_;
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    const bool at_once = now.pace == Pace::early || (now.pace == Pace::random && random_ % 2 == 0);
    if (at_once) demanded_ = pushed_;
    if (at_once || was_empty) changed_.notify();
  }
  return place;
}

void Stream::settle(uint64_t place) {
  if (settings().pace != Pace::early) return;
  demand(place);
  {
    const Quiet quiet;
    const std::lock_guard<Lock> guard(lock_);
    changed_.wait(lock_, [&] { return finished_ >= place || blocked_; });
    if (finished_ < place) return;
  }
  acquire(&done_);
}

static thread_local Stream* stream_of_thread = nullptr;

bool Stream::any_works() { return working > 0; }

Stream::Blocked::Blocked() {
  const Quiet quiet;
  --working;
  const std::lock_guard<Lock> guard(stream_of_thread->lock_);
  stream_of_thread->blocked_ = true;
  stream_of_thread->changed_.notify();
}
Stream::Blocked::~Blocked() {
  const Quiet quiet;
  ++working;
  const std::lock_guard<Lock> guard(stream_of_thread->lock_);
  stream_of_thread->blocked_ = false;
}

void Stream::demand(uint64_t place) {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(lock_);
  if (demanded_ >= place) return;
  demanded_ = place;
  changed_.notify();
}

uint64_t Stream::last() {
  const std::lock_guard<Lock> guard(lock_);
  return pushed_;
}

bool Stream::finished(uint64_t place) {
  {
    const std::lock_guard<Lock> guard(lock_);
    if (finished_ < place) return false;
  }
  acquire(&done_);
  return true;
}

void Stream::wait(uint64_t place) {
  demand(place);
  {
    const Quiet quiet;
    const std::lock_guard<Lock> guard(lock_);
    changed_.wait(lock_, [&] { return finished_ >= place; });
  }
  acquire(&done_);
}

bool Stream::take(Work& work) {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(lock_);
  for (;;) {
    if (!queue_.empty() && demanded_ > finished_) break;
    if (queue_.empty() && over_) return false;
    if (queue_.empty()) {
      changed_.pause(lock_, -1);
      continue;
    }
    const uint64_t before = pushed_;
    const auto start = std::chrono::steady_clock::now();
    changed_.pause(lock_, patience);
    if (std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(patience)) demanded_ = std::max(demanded_, before);
  }
  work = std::move(queue_.front());
  queue_.pop_front();
  return true;
}

void Stream::run(Work& work) {
  acquire(work.order.get());
  if (const int longest = settings().longest_delay; longest > 0) {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    std::this_thread::sleep_for(std::chrono::microseconds(random_ % static_cast<uint64_t>(longest)));
  }
  ++working;
  try {
    if (work.always || !has_failed(device_)) work.run();
  } catch (const std::exception& error) {
    note_failure(device_, error.what());
  }
  --working;
  release(&done_);
}

void Stream::loop() {
  choose_device(device_);
  stream_of_thread = this;
  for (;;) {
    Work work;
    if (!take(work)) return;
    run(work);
    const Quiet quiet;
    work = Work{};  // what it holds may wait for this stream to be idle
    const std::lock_guard<Lock> guard(lock_);
    ++finished_;
    ++counted().works;
    changed_.notify();
  }
}

}  // namespace emulation
