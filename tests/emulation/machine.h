// The SIMT machine: a block of threads, each with a stack of its own, run one after another on one processor. Threads change only where CUDA's
// threads may wait for each other, in an order that the test sets. What kernels call stands in builtins.h, gpu.h and hopper.h.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "emulation.h"
#include "fiber.h"

namespace emulation {

constexpr int warp_size = 32;
constexpr uint32_t all_lanes = 0xffffffffu;
constexpr size_t largest_shared = 232448;  ///< bytes that one block of sm_90 can have
constexpr uint32_t shared_base = 1152;     ///< shared address of a block's dynamic memory: aligned to 128 bytes, as declared, and to no more

/// A kernel did what no GPU allows; the text names it, with block, thread and line.
struct KernelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What threads wait in.
enum class Operation : uint8_t { none, barrier, named_barrier, warp_barrier, shuffle, vote, matrix_product, matrix_load, memory_barrier, warpgroup_product };
const char* name_of(Operation operation);

/// What one lane brings to a warp's meeting.
struct alignas(16) LaneValue {
  uint64_t word[6];
};

/// A meeting of the lanes of one mask of one warp. Double buffered: a lane may be at the next meeting before all have read the last one's values.
struct Meeting {
  uint32_t mask = 0, arrived = 0, line = 0, generation = 0;
  Operation operation = Operation::none;
  LaneValue value[2][warp_size];
  alignas(16) unsigned char result[2][2048];  ///< computed once, by the last lane to arrive
};

struct Copy {
  void* to;
  const void* from;
  int bytes;
};

struct Thread {
  Fiber fiber;
  uint3 index{};
  int linear = 0, warp = 0, lane = 0;
  bool started = false, done = false;
  Operation waiting = Operation::none;
  uint32_t line = 0;
  std::vector<Copy> open_copies;                 ///< of asynchronous copies not yet committed
  std::vector<std::vector<Copy>> copy_groups;    ///< committed, oldest first
  size_t landed = 0;                             ///< of the oldest group's copies
};

struct NamedBarrier {
  int expected = 0, arrived = 0;
  std::vector<Thread*> waiting;
  char order = 0;  ///< its address carries ThreadSanitizer's edges
};

struct Hopper;  ///< barriers in memory and products of warp groups: hopper_state.h

/// The block that the calling thread runs.
struct Block {
  dim3 grid, size;
  uint3 index{};
  int threads = 0, warps = 0, alive = 0;
  std::vector<std::unique_ptr<Thread>> thread;
  std::vector<uint32_t> runnable;                                ///< lanes, per warp
  std::vector<std::vector<std::unique_ptr<Meeting>>> meetings;   ///< per warp
  std::vector<char> warp_order;                                  ///< per warp; addresses carry ThreadSanitizer's edges
  int at_barrier = 0, votes = 0, vote_result = 0;
  uint32_t barrier_line = 0;
  char barrier_order = 0;
  NamedBarrier named[16];
  unsigned char* shared = nullptr;
  size_t shared_bytes = 0;
  const std::function<void()>* kernel = nullptr;
  std::string error;
  Order order = Order::ascending;
  uint64_t random = 1;
  uint64_t switches = 0;
  Thread* current = nullptr;
  Fiber main;
  std::shared_ptr<Hopper> hopper;
  bool (*idle)(Block&) = nullptr;  ///< no thread can run: lets asynchronous copies arrive; true where one did
  void (*end_of_thread)() = nullptr;  ///< checks what the current thread leaves behind
};

/// What the built-in variables of CUDA read; set at every switch.
struct Position {
  uint3 thread, block;
  dim3 block_size, grid_size;
};
#define EMULATION_TLS __attribute__((tls_model("initial-exec")))
extern thread_local constinit Block* current_block EMULATION_TLS;
extern thread_local constinit Position position EMULATION_TLS;

/// The block of the kernel that calls. Ends the program where no kernel does.
inline Block& block() { return *current_block; }
inline int lane() { return block().current->lane; }

/// Ends the kernel with this text; its stream fails.
[[noreturn]] void fail_kernel(const std::string& what);
uint64_t next_random(Block& block);
/// The current thread waits in `operation` until somebody makes it runnable.
void wait_in(Operation operation, uint32_t line);
void make_runnable(Block& block, const Thread& thread);

/// __syncthreads; `vote` counts threads that say yes, the result is how many of the block did.
int block_barrier(uint32_t line, bool vote = false);
/// bar.sync and bar.arrive of one of the barriers 1..15: `threads` of the block take part, a multiple of 32.
void named_barrier(int id, int threads, bool wait, uint32_t line);
/// __syncwarp.
void warp_barrier(uint32_t mask, uint32_t line);

/// All lanes of `mask` come together with a value each; the last runs `all_here` (may be null) once. Lanes then read from the returned buffer.
struct Met {
  Meeting& meeting;
  int buffer;
};
Met meet(uint32_t mask, Operation operation, uint32_t line, const LaneValue& value, void (*all_here)(Meeting&, int buffer) = nullptr);
LaneValue lane_value(const Met& met, int lane);
/// The lanes of `mask` that vote yes.
uint32_t ballot(uint32_t mask, bool vote, uint32_t line);

/// Runs a grid on the calling thread, block after block. Throws KernelError.
void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel, Order order, uint64_t seed);

/// What a launch returns at once, without running anything.
cudaError_t check_launch(dim3 grid, dim3 block, size_t shared_bytes);
/// Queues a grid on a stream: the settings of now, run when the stream gets there.
cudaError_t enqueue_grid(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes, std::function<void()> kernel);

/// cp.async of 16 bytes, of which 16 or none are read: kept until it is waited for.
void open_copy(void* to, const void* from, int valid);
void commit_copies();
/// The next copy to carry out so that at most `groups` committed groups stay under way; null where none is due.
const Copy* next_copy(size_t groups);
/// mma.m16n8k16 of bf16: this lane's part of a * b, in f32.
void product_16x8x16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, uint32_t line);

/// Shared memory at a shared address, after checks of alignment and bounds; `what` names the access.
unsigned char* shared_at(uint32_t address, size_t bytes, size_t alignment, const char* what);

}  // namespace emulation
