// A device with memory of its own, as the runtime sees it: segments of memory, work in the order of calls, and values that come back.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/memory.h"
#include "runtime/rank.h"

namespace quire {

/// Values on their way from the device to the host.
class Download {
 public:
  virtual ~Download() = default;
  virtual bool done() const = 0;
  /// Waits where they are not here yet. Valid as long as this object. Throws what the device's work threw.
  virtual std::span<const std::byte> wait() = 0;
};

/// One rank's device. Everything but `download`, `synchronize` and `Download::wait` returns at once; the device does it in the order of calls, kernels
/// included. Not thread-safe: the rank's main thread uses it. Pointers named `from` and `to` are the device's unless said.
class Accelerator : public MemorySource {
 public:
  virtual Device device() const = 0;
  /// For people: name, compute capability, memory, versions.
  virtual std::string description() const = 0;
  virtual int64_t memory_bytes() const = 0;  ///< in all
  virtual int64_t free_bytes() const = 0;    ///< not taken by any process

  /// Host values to the device: they are taken before this returns.
  virtual void upload(const void* host, void* to, int64_t bytes) = 0;
  virtual void copy(const void* from, void* to, int64_t bytes) = 0;
  /// `rows` runs of `row_bytes`, whose beginnings lie `from_stride` and `to_stride` bytes apart.
  virtual void copy_rows(const void* from, int64_t from_stride, void* to, int64_t to_stride, int64_t row_bytes, int64_t rows) = 0;

  /// Waits for all work before, and copies to the host: a host read, which no step makes.
  virtual void download(const void* from, void* host, int64_t bytes) = 0;
  /// Starts copying what the work before leaves at `from`; later work may overwrite it.
  virtual std::unique_ptr<Download> start_download(const void* from, int64_t bytes) = 0;
  /// Waits for all work; a host read as well. Throws what that work threw.
  virtual void synchronize() = 0;
  /// Calls of `download` and `synchronize` so far.
  int64_t host_reads() const { return host_reads_; }

  /// What was chosen among ways to compute that differ in bits, such as a library's algorithms: by key, as texts that say all there is to choose. A run records them.
  using Choices = std::map<std::string, std::string>;
  const Choices& choices() const { return choices_; }
  /// Choices of an earlier run: they are made again when they come up. To be called before the first work.
  void replay(Choices recorded) { recorded_ = std::move(recorded); }
  /// What people should know of choices and has not been taken yet: recorded ones that this device or library can not make, for example.
  std::vector<std::string> take_notes() { return std::exchange(notes_, {}); }

  /// For those who choose: what an earlier run chose, or null; and what they choose now.
  const std::string* recorded_choice(const std::string& key) const {
    const auto found = recorded_.find(key);
    return found == recorded_.end() ? nullptr : &found->second;
  }
  void choose(const std::string& key, std::string text) { choices_[key] = std::move(text); }
  void note(std::string text) { notes_.push_back(std::move(text)); }

 protected:
  int64_t host_reads_ = 0;

 private:
  Choices choices_, recorded_;
  std::vector<std::string> notes_;
};

/// What this build and machine have of CUDA.
struct CudaAvailability {
  int devices = 0;
  bool emulated = false;  ///< the emulated devices of the tests: `auto` never takes them
  std::string reason;     ///< where there is none: why, and what would help
};
CudaAvailability cuda_availability();

/// The device of a rank: null for those that work in host memory or not at all. Throws UnsupportedError for CUDA where this build, its libraries or the
/// machine lack it (found, needed).
std::shared_ptr<Accelerator> make_accelerator(const RankOptions& options);

}  // namespace quire
