#include "machine.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "sanitizers.h"
#include "scheduler.h"

namespace emulation {

thread_local constinit Block* current_block = nullptr;
thread_local constinit Position position{};

const char* name_of(Operation operation) {
  static const char* const names[] = {"nothing", "__syncthreads", "a named barrier", "__syncwarp",  "a shuffle",
                                      "a vote",  "mma",           "ldmatrix",        "an mbarrier", "wgmma"};
  return names[static_cast<int>(operation)];
}

void fail_kernel(const std::string& what) {
  Block& b = block();
  throw KernelError(what + " [block " + std::to_string(b.index.x) + "," + std::to_string(b.index.y) + "," + std::to_string(b.index.z) + " thread " +
                    std::to_string(b.current->linear) + " line " + std::to_string(b.current->line) + "]");
}

int block_barrier(uint32_t line, bool vote) {
  Block& b = block();
  Thread& me = *b.current;
  me.line = line;
  if (b.at_barrier > 0 && b.barrier_line != line)
    fail_kernel("threads of one block meet at __syncthreads of different lines: " + std::to_string(b.barrier_line) + " and " + std::to_string(line));
  b.barrier_line = line;
  release(&b.barrier_order);
  b.votes += vote ? 1 : 0;
  if (++b.at_barrier < b.alive) {
    wait_in(Operation::barrier, line);
  } else {
    if (b.alive != b.threads)
      fail_kernel("__syncthreads is reached by " + std::to_string(b.alive) + " of " + std::to_string(b.threads) + " threads; the others have ended");
    b.at_barrier = 0;
    b.vote_result = std::exchange(b.votes, 0);
    for (int i = 0; i < b.threads; ++i)
      if (Thread& other = *b.thread[i]; other.waiting == Operation::barrier) make_runnable(b, other);
    let_others_run(b);
  }
  acquire(&b.barrier_order);
  return b.vote_result;
}

void named_barrier(int id, int threads, bool wait, uint32_t line) {
  Block& b = block();
  Thread& me = *b.current;
  me.line = line;
  if (id < 1 || id > 15) fail_kernel("named barriers have the numbers 1 to 15, not " + std::to_string(id));
  if (threads <= 0 || threads % warp_size != 0) fail_kernel("a named barrier takes a multiple of 32 threads, not " + std::to_string(threads));
  NamedBarrier& barrier = b.named[id];
  if (barrier.arrived > 0 && barrier.expected != threads) fail_kernel("threads come to a named barrier with different counts");
  barrier.expected = threads;
  release(&barrier.order);
  ++barrier.arrived;
  if (barrier.arrived == threads) {
    barrier.arrived = 0;
    for (Thread* const other : barrier.waiting) make_runnable(b, *other);
    barrier.waiting.clear();
    let_others_run(b);
  } else if (wait) {
    {
      const Quiet quiet;
      barrier.waiting.push_back(&me);
    }
    wait_in(Operation::named_barrier, line);
  }
  if (wait) acquire(&barrier.order);
}

void warp_barrier(uint32_t mask, uint32_t line) {
  char* const order = &block().warp_order[block().current->warp];
  release(order);
  meet(mask, Operation::warp_barrier, line, LaneValue{});
  acquire(order);
}

namespace {

Meeting& meeting_of(Block& b, int warp, uint32_t mask) {
  for (auto& known : b.meetings[warp])
    if (known->mask == mask) return *known;
  const Quiet quiet;
  b.meetings[warp].push_back(std::make_unique<Meeting>());
  b.meetings[warp].back()->mask = mask;
  return *b.meetings[warp].back();
}

}  // namespace

Met meet(uint32_t mask, Operation operation, uint32_t line, const LaneValue& value, void (*all_here)(Meeting&, int)) {
  Block& b = block();
  Thread& me = *b.current;
  me.line = line;
  if ((mask >> me.lane & 1) == 0) fail_kernel(std::string(name_of(operation)) + ": the calling lane is not in its own mask");
  const int lanes = std::min(warp_size, b.threads - me.warp * warp_size);
  if (lanes < warp_size && mask >> lanes != 0) {
    if (mask != all_lanes) fail_kernel(std::string(name_of(operation)) + ": the mask names lanes that the warp does not have");
    mask >>= warp_size - lanes;
  }
  Meeting& m = meeting_of(b, me.warp, mask);
  if (m.arrived == 0) {
    m.operation = operation;
    m.line = line;
  } else if (m.operation != operation || m.line != line) {
    fail_kernel(std::string("lanes of one warp meet at ") + name_of(m.operation) + " of line " + std::to_string(m.line) + " and " +
                name_of(operation) + " of line " + std::to_string(line));
  }
  const int buffer = m.generation & 1;
  m.value[buffer][me.lane] = value;
  m.arrived |= 1u << me.lane;
  if (m.arrived == mask) {
    if (all_here != nullptr) all_here(m, buffer);
    m.arrived = 0;
    ++m.generation;
    b.runnable[me.warp] |= mask;
  } else {
    wait_in(operation, line);
  }
  return {m, buffer};
}

LaneValue lane_value(const Met& met, int lane) { return met.meeting.value[met.buffer][lane]; }

uint32_t ballot(uint32_t mask, bool vote, uint32_t line) {
  const Met met = meet(mask, Operation::vote, line, LaneValue{{vote ? uint64_t{1} : uint64_t{0}}});
  uint32_t lanes = 0;
  for (int i = 0; i < warp_size; ++i)
    if ((met.meeting.mask >> i & 1) != 0 && met.meeting.value[met.buffer][i].word[0] != 0) lanes |= 1u << i;
  return lanes;
}

unsigned char* shared_at(uint32_t address, size_t bytes, size_t alignment, const char* what) {
  Block& b = block();
  if (address % alignment != 0)
    fail_kernel(std::string(what) + ": the shared address " + std::to_string(address) + " is not a multiple of " + std::to_string(alignment));
  if (address < shared_base || address - shared_base + bytes > b.shared_bytes)
    fail_kernel(std::string(what) + ": shared address " + std::to_string(address) + " lies outside the block's " + std::to_string(b.shared_bytes) + " bytes");
  return b.shared + (address - shared_base);
}

}  // namespace emulation
