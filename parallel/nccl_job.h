// What the NCCL communicators of one rank share: its device, the messages under way on it, the thread that watches them. For nccl_*.cpp alone.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/watchdog.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/nccl_library.h"

namespace quire {

/// An NCCL communicator with the stream of its messages.
class NcclLink {
 public:
  /// `stream`: null to make one.
  NcclLink(int size, cudaStream_t stream);
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  int size() const { return size_; }
  cudaStream_t stream() const { return stream_; }
  /// What ncclCommInitRankConfig has made so far, or has taken back. Ends it where `abort` came first.
  void take(ncclComm_t made) noexcept;
  /// Calls `use(communicator)`, at the same time as no abort. Throws AbortedError after one.
  template <class Use>
  void with(Use&& use) {
    const std::lock_guard lock(mutex_);
    if (communicator_ == nullptr) fail<AbortedError>("nccl", "the communicator was ended");
    use(communicator_);
  }
  /// ncclSuccess, ncclInProgress, or what NCCL found.
  ncclResult_t asynchronous_error();
  /// Gives the communicator back, unless it was aborted. All of its ranks do so, each its communicators in the same order.
  void close() noexcept;
  /// Ends what is under way. From any thread.
  void abort() noexcept;

 private:
  const int size_;
  const bool owns_stream_;
  cudaStream_t stream_;
  std::mutex mutex_;
  ncclComm_t communicator_ = nullptr, taken_ = nullptr;
  std::atomic<bool> aborted_{false};
};

/// Messages that one group of NCCL's carries, from their posting on.
struct NcclFlight {
  struct Part {
    std::byte* data;
    int64_t bytes;
    int peer;  ///< rank in the link's communicator
    bool sends;
  };
  std::vector<Part> parts;
  MessageLabel label;
  Watch::Waits waits = Watch::Waits::to_receive;
  int other = -1;  ///< in the job; -1 for several
  double watchdog_seconds = 0;
  std::vector<std::shared_ptr<const void>> keep;  ///< the rank's own thread lets go of it
  const void* group = nullptr;

  cudaEvent_t posted = nullptr, begun = nullptr, ended = nullptr;
  std::chrono::steady_clock::time_point launched_at;
  bool launched = false;
  bool awaited = false;  ///< the compute stream waits for it
  bool over = false;     ///< the device has done it; under the job's mutex
};

class NcclJob {
 public:
  explicit NcclJob(WatchSeat* seat) : seat_(seat) {}
  ~NcclJob();
  NcclJob(const NcclJob&) = delete;
  NcclJob& operator=(const NcclJob&) = delete;

  /// Whose memory messages are from now on. Throws StateError for another CUDA device than before.
  void use(std::shared_ptr<Accelerator> accelerator);
  /// Throws StateError before the first `use`.
  CudaDevice& device() const;
  /// The stream of what is posted in `together`.
  cudaStream_t rounds();

  std::shared_ptr<NcclLink> make_link(int size, cudaStream_t stream);
  void remove(const std::shared_ptr<NcclLink>& link);

  /// Submits a flight: after the device's work so far.
  void launch(NcclLink& link, const std::shared_ptr<NcclFlight>& flight);
  /// Makes the device's later work wait for it; its memory may then be given to such work.
  void await(NcclFlight& flight);
  /// Whether the device has done it.
  bool is_over(NcclFlight& flight);
  /// Lets go of what is over, where much is under way.
  void sweep();
  /// Waits for everything under way in a group, or until the job fails.
  void finish(const void* group) noexcept;

  /// Throws what the watching thread has found.
  void check();
  bool failed() const { return failed_; }
  /// Keeps the first error and ends everything under way.
  void fail_with(std::exception_ptr error) noexcept;

 private:
  struct Waiting;
  cudaEvent_t take_event();
  bool reached(cudaEvent_t event) const;
  /// Under the mutex: takes flights that are over off the list, and their events back. The rank's own thread does that.
  void take_back();
  void watch(int device);
  void look_at_errors();
  void look_at_flights(std::vector<Waiting>& waiting);

  WatchSeat* const seat_;
  std::shared_ptr<Accelerator> accelerator_;
  int index_ = -1;
  cudaStream_t rounds_ = nullptr;

  std::mutex mutex_;  ///< over what follows
  std::condition_variable wake_;
  std::deque<std::shared_ptr<NcclFlight>> flights_;
  std::vector<std::shared_ptr<NcclLink>> links_;
  std::vector<cudaEvent_t> free_events_;
  size_t many_flights_ = 64;  ///< under way, before those that are over are looked for
  std::exception_ptr error_;
  bool ending_ = false;

  std::atomic<bool> failed_{false};
  std::thread thread_;
};

}  // namespace quire
