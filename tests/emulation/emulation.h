// What tests ask of the emulated GPU: orders, paces, planted bugs, failures, counters.
#pragma once
#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace emulation {

/// In which order blocks and threads run where nothing orders them. `random` changes warps, `random_lanes` lanes too.
enum class Order { ascending, descending, random, random_lanes };
/// When a stream does its work where nothing orders it: as late as CUDA allows (when something waits for it), at once, or either by chance.
enum class Pace { late, early, random };

/// The emulated machine as tests set it up. A value; `set` puts it in force for every later call of every thread.
struct Settings {
  Order order = Order::ascending;
  uint64_t seed = 1;
  Pace pace = Pace::late;
  int longest_delay = 0;  ///< microseconds, before each operation of a stream
  int devices = 8;        ///< none: cudaErrorNoDevice
  int major = 9, minor = 0, multiprocessors = 132;
  size_t memory = size_t{16} << 30;  ///< bytes of each device
  bool libraries = true;             ///< whether cuBLASLt, cuDNN and NCCL are there
  std::string missing;               ///< the one that is not, as its file's name begins: `libcudnn`
  int cudnn_version = 0, nccl_version = 0;  ///< that the libraries say they are; 0: their own
  bool cudnn_plans = false;          ///< whether cuDNN compiles its plans, a second each; else engines are looked for alone
  int communication_patience = 20000;  ///< milliseconds after which a message that waits while no stream works fails as deadlocked; 0: waits for ever, as NCCL does
  bool ranks_are_processes = false;    ///< NCCL's ranks are processes of this machine, not threads of this one
  int driver_version = 13000, runtime_version = 13000;
  size_t quarantine = size_t{64} << 20;  ///< bytes of freed memory that are kept to show late accesses
};
Settings settings();
void set(const Settings& settings);
/// What a process begins with: the defaults, and what QUIRE_EMULATION says of them, so that whole programs can be run on another machine: `devices=2,missing=libcudnn`. Names: devices, major,
/// memory_mib, missing, cudnn_plans, cudnn_version, nccl_version, communication_patience, ranks_are_processes (where not named: whether this process was started as one rank of several). Throws
/// std::runtime_error for what means nothing.
Settings settings_of_environment();
/// The settings as they are when a test begins.
void order(Order order, uint64_t seed = 1);

/// The `nth` call from now on (1 is the next) of this function of the runtime or of cuBLASLt returns `error`.
void fail_call(const std::string& function, int nth, int error);
/// How often each function that can be made to fail was called since the last `reset_counters`.
std::map<std::string, int64_t> calls();

/// While one lives, kernels and the device layer have the bug of this name (`gpu::planted`). Waits for all streams at both ends.
class Planted {
 public:
  explicit Planted(const char* name);
  ~Planted();
  Planted(const Planted&) = delete;
  Planted& operator=(const Planted&) = delete;
};

/// Whether this is compiled with AddressSanitizer or ThreadSanitizer, which see bugs where they happen and end the program.
extern const bool address_sanitizer, thread_sanitizer;

/// What was done since the last `reset_counters`, on all devices.
struct Counters {
  int64_t kernels = 0, products = 0;
  int64_t graphs = 0;  ///< executions of cuDNN's plans
  int64_t bytes_to_device = 0, bytes_to_host = 0, bytes_on_device = 0;
  int64_t device_synchronizations = 0;  ///< cudaDeviceSynchronize
  int64_t stream_synchronizations = 0, event_synchronizations = 0;
  int64_t synchronous_copies = 0;  ///< cudaMemcpy, and copies to memory of the host that is not pinned
  int64_t allocations = 0, frees = 0;  ///< of device memory
  int64_t switches = 0;  ///< between emulated threads
  int64_t messages = 0, message_groups = 0;  ///< sends of NCCL's, and what was launched for them and for receives
};
Counters counters();
void reset_counters();

/// Waits until every stream is idle, without counting.
void drain();
/// What failed on a device first, "" for nothing: the text behind a sticky error.
std::string failure(int device = 0);
/// Takes sticky errors away, and calls that were to fail; waits for all streams.
void recover();
/// Bytes of device memory that are allocated now.
size_t allocated(int device = 0);

/// For one test: the default settings at its beginning, and again at its end, with errors taken away.
class Fresh {
 public:
  Fresh();
  ~Fresh();
  Fresh(const Fresh&) = delete;
  Fresh& operator=(const Fresh&) = delete;
};

}  // namespace emulation
