// Streams: a thread each, ordered by nothing but events.
#pragma once
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "emulation.h"
#include "lock.h"

namespace emulation {

/// A queue of work of one device. Work runs when it is demanded (something waits for it), at once, or by chance: Settings::pace.
class Stream {
 public:
  Stream(int device, uint64_t number);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int device() const { return device_; }
  /// Whether any stream is in the middle of work that waits for no other stream.
  static bool any_works();
  /// Queues work; `always`: also where the device has failed, so that nobody waits for ever. Returns its place in the queue, from 1.
  uint64_t enqueue(std::function<void()> work, bool always = false);
  /// Where work is to be done at once, returns when this is, or when the stream waits for something else than its own work.
  void settle(uint64_t place);
  void push(std::function<void()> work, bool always = false) { settle(enqueue(std::move(work), always)); }
  /// While one lives, the stream whose thread this is waits for another one.
  class Blocked {
   public:
    Blocked();
    ~Blocked();
    Blocked(const Blocked&) = delete;
    Blocked& operator=(const Blocked&) = delete;
  };
  /// Lets the work up to this place run.
  void demand(uint64_t place);
  /// The last place so far.
  uint64_t last();
  bool finished(uint64_t place);
  void wait(uint64_t place);
  void wait() { wait(last()); }

 private:
  struct Work {
    std::function<void()> run;
    bool always;
    std::unique_ptr<char> order;  ///< its address carries ThreadSanitizer's edge from the caller
  };
  void loop();
  void run(Work& work);
  bool take(Work& work);

  const int device_;
  uint64_t random_;
  Lock lock_;
  Signal changed_;
  std::deque<Work> queue_;
  uint64_t pushed_ = 0, finished_ = 0, demanded_ = 0;
  bool over_ = false, blocked_ = false;
  char done_ = 0;  ///< its address carries the edge to who waits
  std::thread thread_;
};

/// The stream behind a handle; null for a handle that is none. The null handle is a stream of its own, which orders nothing.
std::shared_ptr<Stream> stream_of(cudaStream_t handle);

struct Event {
  Lock lock;
  Signal changed;
  std::shared_ptr<Stream> recorded_on;
  uint64_t records = 0, done = 0, place = 0;
  bool timed = true;
  std::chrono::steady_clock::time_point when;
  char order = 0;
};

}  // namespace emulation
