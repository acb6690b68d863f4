// A rank: one worker with its own threads, memory, device and counters. Nothing is process-global: many ranks live in one process.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace quire {

/// Where tensors live. `null` plans: shapes, dtypes, memory and dispatch are real, nothing is computed or touched.
enum class DeviceKind : uint8_t { cpu, cuda, null };
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};
std::string to_string(Device device);

struct RankOptions {
  int threads = 1;             ///< in all, 1 or more
  int first_processor = -1;    ///< workers are bound to the processors after this one (ThreadPool); -1 binds none
  Device device;
  int64_t memory_limit = 0;    ///< bytes, 0 for no limit
  bool poison = false;         ///< fill new memory and workspaces with NaN (tests)
  std::map<std::string, std::string, std::less<>> kernels;  ///< op name -> kernel name to use instead of the best
  std::string instruction_set; ///< "" for the best of this machine, else a name from `instruction_sets()`
};

/// Work counted by kernels, for tests and metrics.
struct WorkCounters {
  std::atomic<int64_t> computed_pairs{0};  ///< query-key pairs whose score was computed, per head
  std::atomic<int64_t> attended_pairs{0};  ///< of them, those that documents and windows let meet, per head
  std::atomic<int64_t> flops{0};           ///< of matrix products
};

class Profile;
class Accelerator;

class Rank {
 public:
  explicit Rank(RankOptions options = {});

  ThreadPool& pool() { return *pool_; }
  Allocator& allocator() { return *allocator_; }
  std::shared_ptr<Allocator> shared_allocator() { return allocator_; }
  StepStack& stack() { return *stack_; }
  WorkCounters& work() { return *work_; }
  const RankOptions& options() const { return options_; }
  Device device() const { return options_.device; }
  /// Where memory and work are a device's; null where they are the host's, or nobody's.
  Accelerator* accelerator() const { return accelerator_.get(); }
  std::shared_ptr<Accelerator> shared_accelerator() const { return accelerator_; }
  bool computes() const { return options_.device.kind != DeviceKind::null; }

  /// Which kernel ran last for an op, for logs and tests: op -> kernel name.
  std::map<std::string, std::string, std::less<>> chosen_kernels() const;
  void note_kernel(std::string_view op, std::string_view kernel);

  /// Collects the time of every operation from now on, in the caller's object; nullptr (the beginning) collects nothing and costs nothing.
  void set_profile(Profile* profile) { profile_ = profile; }
  Profile* profile() const { return profile_; }

 private:
  RankOptions options_;
  std::shared_ptr<Accelerator> accelerator_;
  std::shared_ptr<Allocator> allocator_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<StepStack> stack_;
  std::unique_ptr<WorkCounters> work_;
  mutable std::mutex chosen_mutex_;
  std::map<std::string, std::string, std::less<>> chosen_;
  Profile* profile_ = nullptr;
};

}  // namespace quire
