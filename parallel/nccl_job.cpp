#include "parallel/nccl_job.h"

#include <planted.h>

#include <algorithm>
#include <optional>

#include "runtime/error.h"

namespace quire {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds shortest_look{5}, longest_look{500};
constexpr std::chrono::seconds patience_with_a_call{2};  ///< that NCCL does not return from, before what it works with is aborted all the same

}  // namespace

NcclLink::NcclLink(int size, cudaStream_t stream) : size_(size), owns_stream_(stream == nullptr), stream_(stream) {
  if (owns_stream_) check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

NcclLink::~NcclLink() {
  if (owns_stream_) cudaStreamDestroy(stream_);
}

void NcclLink::take(ncclComm_t made) noexcept {
  const std::lock_guard lock(mutex_);
  const bool known = made == std::exchange(taken_, made);
  if (!aborted_) communicator_ = made;
  else if (!known && made != nullptr) nccl().ncclCommAbort(made);
}

void NcclLink::close() noexcept {
  const std::lock_guard lock(mutex_);
  if (communicator_ != nullptr) nccl().ncclCommDestroy(std::exchange(communicator_, nullptr));
}

ncclResult_t NcclLink::asynchronous_error() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  ncclResult_t found = ncclSuccess;
  if (!lock || communicator_ == nullptr) return found;
  const ncclResult_t asked = nccl().ncclCommGetAsyncError(communicator_, &found);
  return asked == ncclSuccess ? found : asked;
}

void NcclLink::abort() noexcept {
  aborted_ = true;
  std::unique_lock lock(mutex_, std::defer_lock);
  for (const Clock::time_point end = Clock::now() + patience_with_a_call; !lock.try_lock() && Clock::now() < end;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (communicator_ != nullptr) nccl().ncclCommAbort(std::exchange(communicator_, nullptr));
}

NcclJob::~NcclJob() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  if (index_ < 0) return;
  cudaSetDevice(index_);
  for (const auto& flight : flights_)
    for (const cudaEvent_t event : {flight->posted, flight->begun, flight->ended}) cudaEventDestroy(event);
  for (const cudaEvent_t event : free_events_) cudaEventDestroy(event);
  if (rounds_ != nullptr) cudaStreamDestroy(rounds_);
}

void NcclJob::use(std::shared_ptr<Accelerator> accelerator) {
  const int index = accelerator->device().index;
  if (index_ >= 0 && index_ != index) fail<StateError>("nccl", "messages of cuda:{} and of cuda:{}; allowed: one device for each rank of a job", index_, index);
  accelerator_ = std::move(accelerator);
  index_ = index;
}

CudaDevice& NcclJob::device() const {
  if (accelerator_ == nullptr) fail<StateError>("nccl", "a message of device memory before `connect`");
  return static_cast<CudaDevice&>(*accelerator_);
}

cudaStream_t NcclJob::rounds() {
  device().stream();  // makes the device current
  if (rounds_ == nullptr) check_cuda(cudaStreamCreateWithFlags(&rounds_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return rounds_;
}

std::shared_ptr<NcclLink> NcclJob::make_link(int size, cudaStream_t stream) {
  device().stream();
  auto link = std::make_shared<NcclLink>(size, stream);
  const std::lock_guard lock(mutex_);
  links_.push_back(link);
  if (!thread_.joinable()) thread_ = std::thread([this, index = index_] { watch(index); });
  return link;
}

void NcclJob::remove(const std::shared_ptr<NcclLink>& link) {
  link->close();
  const std::lock_guard lock(mutex_);
  std::erase(links_, link);
}

cudaEvent_t NcclJob::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_events_.empty()) {
      const cudaEvent_t event = free_events_.back();
      free_events_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return event;
}

bool NcclJob::reached(cudaEvent_t event) const {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // it is no error
    return false;
  }
  check_cuda(status, "cudaEventQuery");
  return true;
}

void NcclJob::launch(NcclLink& link, const std::shared_ptr<NcclFlight>& flight) {
  check();
  sweep();
  const cudaStream_t compute = device().stream();
  flight->posted = take_event();
  flight->begun = take_event();
  flight->ended = take_event();
  if (gpu::planted("nccl.released_early")) flight->keep.clear();
  if (!gpu::planted("nccl.missing_event")) {
    check_cuda(cudaEventRecord(flight->posted, compute), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(link.stream(), flight->posted, 0), "cudaStreamWaitEvent");
  }
  check_cuda(cudaEventRecord(flight->begun, link.stream()), "cudaEventRecord");
  link.with([&](ncclComm_t communicator) {
    std::optional<NcclGroup> group;
    if (flight->parts.size() > 1 && !gpu::planted("nccl.ungrouped")) group.emplace();
    for (const NcclFlight::Part& part : flight->parts) {
      const auto bytes = static_cast<size_t>(part.bytes);
      if (part.sends) check_nccl(nccl().ncclSend(part.data, bytes, ncclUint8, part.peer, communicator, link.stream()), "ncclSend");
      else check_nccl(nccl().ncclRecv(part.data, bytes, ncclUint8, part.peer, communicator, link.stream()), "ncclRecv");
    }
    if (group) group->end();
  });
  check_cuda(cudaEventRecord(flight->ended, link.stream()), "cudaEventRecord");
  flight->launched = true;
  flight->launched_at = Clock::now();
  const std::lock_guard lock(mutex_);
  flights_.push_back(flight);
}

void NcclJob::await(NcclFlight& flight) {
  if (flight.awaited) return;
  if (!flight.launched) fail<StateError>("nccl", "waiting for {} within `together`: nothing begins there before its end", to_string(flight.label));
  bool over = false;
  {
    const std::lock_guard lock(mutex_);
    over = flight.over;
  }
  if (!over && !gpu::planted("nccl.missing_wait")) check_cuda(cudaStreamWaitEvent(device().stream(), flight.ended, 0), "cudaStreamWaitEvent");
  flight.awaited = true;
  flight.keep.clear();
}

bool NcclJob::is_over(NcclFlight& flight) {
  if (flight.awaited) return true;
  if (!flight.launched) return false;
  {
    const std::lock_guard lock(mutex_);
    if (!flight.over) flight.over = reached(flight.ended);
    if (!flight.over) return false;
  }
  flight.keep.clear();
  return true;
}

void NcclJob::take_back() {
  for (const auto& flight : flights_) {
    if (!flight->over) continue;
    flight->keep.clear();
    for (cudaEvent_t* event : {&flight->posted, &flight->begun, &flight->ended}) free_events_.push_back(std::exchange(*event, nullptr));
  }
  std::erase_if(flights_, [](const auto& flight) { return flight->over; });
}

void NcclJob::sweep() {
  const std::lock_guard lock(mutex_);
  if (flights_.size() < many_flights_) return;
  for (const auto& flight : flights_)
    if (!flight->over) flight->over = reached(flight->ended);
  take_back();
  many_flights_ = std::max<size_t>(64, 2 * flights_.size());
}

void NcclJob::finish(const void* group) noexcept {
  try {
    std::vector<std::shared_ptr<NcclFlight>> ours;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& flight : flights_)
        if (flight->group == group) ours.push_back(flight);
    }
    for (const auto& flight : ours) {
      while (!failed_) {
        {
          const std::lock_guard lock(mutex_);
          if (flight->over) break;
          if (flight->over = reached(flight->ended); flight->over) break;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      await(*flight);
    }
    const std::lock_guard lock(mutex_);
    take_back();
  } catch (...) {
    fail_with(std::current_exception());
  }
}

void NcclJob::check() {
  if (!failed_) return;
  const std::lock_guard lock(mutex_);
  std::rethrow_exception(error_);
}

void NcclJob::fail_with(std::exception_ptr error) noexcept {
  std::vector<std::shared_ptr<NcclLink>> links;
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    links = links_;
    failed_ = true;
  }
  for (const auto& link : links) link->abort();
}

/// A flight whose turn has come on its stream, while it waits for its other side.
struct NcclJob::Waiting {
  std::shared_ptr<NcclFlight> flight;
  std::unique_ptr<Watch> watch;
};

void NcclJob::watch(int device) {
  try {
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
    std::vector<Waiting> waiting;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        std::chrono::milliseconds look = longest_look;
        for (const auto& flight : flights_)
          if (flight->watchdog_seconds > 0)
            look = std::clamp(std::chrono::milliseconds(static_cast<int64_t>(std::min(flight->watchdog_seconds, 1e3) * 100)), shortest_look, look);
        if (wake_.wait_for(lock, look, [&] { return ending_; })) return;
      }
      if (failed_) return;
      if (seat_ != nullptr && seat_->ended()) fail<AbortedError>("nccl", "the ranks were ended");
      look_at_errors();
      look_at_flights(waiting);
    }
  } catch (...) {
    fail_with(std::current_exception());
  }
}

void NcclJob::look_at_errors() {
  std::vector<std::shared_ptr<NcclLink>> links;
  {
    const std::lock_guard lock(mutex_);
    links = links_;
  }
  for (const auto& link : links)
    if (const ncclResult_t found = link->asynchronous_error(); found != ncclSuccess && found != ncclInProgress) check_nccl(found, "messages between devices");
}

void NcclJob::look_at_flights(std::vector<Waiting>& waiting) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting, [&](const Waiting& each) {
      if (!each.flight->over) each.flight->over = reached(each.flight->ended);
      return each.flight->over;
    });
    // Young ones are left alone: nearly all of them end by themselves, and asking is work.
    for (const auto& flight : flights_) {
      const std::chrono::duration<double> age = Clock::now() - flight->launched_at;
      if (seat_ == nullptr || flight->over || flight->watchdog_seconds <= 0 || age.count() < std::min(1.0, flight->watchdog_seconds / 4)) continue;
      if (std::any_of(waiting.begin(), waiting.end(), [&](const Waiting& each) { return each.flight == flight; }) || !reached(flight->begun)) continue;
      if (flight->over = reached(flight->ended); !flight->over) waiting.push_back({flight, std::make_unique<Watch>(*seat_, flight->waits, flight->other, flight->label, flight->watchdog_seconds)});
    }
  }
  for (const Waiting& each : waiting) each.watch->check();
}

}  // namespace quire
