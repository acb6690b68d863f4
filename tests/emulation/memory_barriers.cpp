// Barriers in shared memory, and the copies of tiles that complete on them.
#include <algorithm>
#include <cstring>

#include "hopper.h"
#include "hopper_state.h"

namespace emulation {

namespace {

MemoryBarrier& barrier_at(uint32_t address) {
  auto& barriers = hopper().barriers;
  const auto found = barriers.find(address);
  if (found == barriers.end()) fail_kernel("an mbarrier is used before it was initialised");
  return found->second;
}

void settle(Block& b, MemoryBarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0 || !barrier.under_way.empty()) return;
  barrier.phase ^= 1;
  barrier.pending = barrier.count;
  for (const Thread* const thread : barrier.waiting) make_runnable(b, *thread);
  barrier.waiting.clear();
}

/// Every copy under way on this barrier arrives.
void land(Block& b, MemoryBarrier& barrier) {
  for (const TileCopy& copy : barrier.under_way) {
    move_tile(copy, true);
    barrier.bytes -= int64_t{copy.map.tile_width} * copy.map.tile_height * copy.map.element_bytes;
  }
  barrier.under_way.clear();
  settle(b, barrier);
}

/// No thread can run: the latest moment at which copies arrive.
bool land_all(Block& b) {
  const Quiet quiet;
  bool helped = false;
  for (auto& [address, barrier] : hopper().barriers) {
    if (barrier.under_way.empty()) continue;
    const bool waited_for = !barrier.waiting.empty();
    land(b, barrier);
    helped = helped || (waited_for && barrier.waiting.empty());
  }
  return helped;
}

void check_end_of_thread() {
  const LaneProducts& mine = hopper().lane[static_cast<size_t>(block().current->linear)];
  if (!mine.open_stores.empty() || !mine.stores.empty()) fail_kernel("a thread ends with stores of tiles that it has not waited for");
  if (!mine.open.empty() || !mine.groups.empty()) fail_kernel("a thread ends with products that it has not waited for");
}

}  // namespace

Hopper& hopper() {
  Block& b = block();
  if (b.hopper == nullptr) {
    const Quiet quiet;
    b.hopper = std::make_shared<Hopper>();
    b.hopper->lane.resize(static_cast<size_t>(b.threads));
    b.idle = land_all;
    b.end_of_thread = check_end_of_thread;
  }
  return *b.hopper;
}

TensorMap read_map(const CUtensorMap* map) {
  TensorMap read;
  std::memcpy(&read, map, sizeof read);
  if (read.magic != tensor_map_magic) fail_kernel("a copy of a tile: this is no tensor map");
  return read;
}

void move_tile(const TileCopy& copy, bool to_shared) {
  const TensorMap& map = copy.map;
  const uint32_t row_bytes = map.tile_width * map.element_bytes;
  unsigned char* const shared = block().shared + (copy.shared - shared_base);
  for (uint32_t row = 0; row < map.tile_height; ++row)
    for (uint32_t column = 0; column < map.tile_width; ++column) {
      const uint32_t byte = column * map.element_bytes;
      const uint32_t chunk = map.swizzled != 0 ? byte / 16 ^ (row & 7) : byte / 16;
      unsigned char* const near = shared + row * row_bytes + chunk * 16 + byte % 16;
      const int64_t x = int64_t{copy.x} + column, y = int64_t{copy.y} + row;
      const bool inside = x >= 0 && y >= 0 && x < static_cast<int64_t>(map.width) && y < static_cast<int64_t>(map.height);
      unsigned char* const far = map.base + y * static_cast<int64_t>(map.stride) + x * map.element_bytes;
      if (to_shared && inside) std::memcpy(near, far, map.element_bytes);
      else if (to_shared) std::memset(near, 0, map.element_bytes);
      else if (inside) std::memcpy(far, near, map.element_bytes);
    }
}

void init_memory_barrier(uint32_t barrier, int count) {
  shared_at(barrier, 8, 8, "an mbarrier");
  const Quiet quiet;
  MemoryBarrier& made = hopper().barriers[barrier];
  made = MemoryBarrier{};
  made.count = made.pending = count;
}

void* order_of_memory_barrier(uint32_t barrier) { return &barrier_at(barrier); }

void arrive(uint32_t address, int64_t expected_bytes) {
  MemoryBarrier& barrier = barrier_at(address);
  const Quiet quiet;
  if (barrier.pending <= 0) fail_kernel("an mbarrier gets more arrivals than it expects");
  barrier.bytes += expected_bytes;
  --barrier.pending;
  settle(block(), barrier);
}

void wait_for_phase(uint32_t address, int parity, uint32_t line) {
  MemoryBarrier& barrier = barrier_at(address);
  Block& b = block();
  b.current->line = line;
  {
    const Quiet quiet;
    if (!barrier.under_way.empty() && next_random(b) % 2 == 0) land(b, barrier);  // early, or as late as anything can
    if (barrier.phase != parity) return;
    barrier.waiting.push_back(b.current);
  }
  wait_in(Operation::memory_barrier, line);
}

namespace {

TileCopy checked_copy(uint32_t shared, const CUtensorMap* map, int x, int y) {
  const TileCopy copy{read_map(map), shared, x, y};
  const size_t bytes = size_t{copy.map.tile_width} * copy.map.tile_height * copy.map.element_bytes;
  shared_at(shared, bytes, copy.map.swizzled != 0 ? 1024 : 128, "a copy of a tile");
  return copy;
}

}  // namespace

SharedRange start_tile_load(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t barrier) {
  const Quiet quiet;
  const TileCopy copy = checked_copy(to, map, x, y);
  barrier_at(barrier).under_way.push_back(copy);
  auto* const first = reinterpret_cast<uint32_t*>(block().shared + (to - shared_base));
  return {first, first + size_t{copy.map.tile_width} * copy.map.tile_height * copy.map.element_bytes / sizeof(uint32_t)};
}

void start_tile_store(const CUtensorMap* map, uint32_t from, int x, int y) {
  const Quiet quiet;
  hopper().lane[static_cast<size_t>(block().current->linear)].open_stores.push_back(checked_copy(from, map, x, y));
}

void commit_tile_stores() {
  const Quiet quiet;
  LaneProducts& mine = hopper().lane[static_cast<size_t>(block().current->linear)];
  mine.stores.push_back(std::move(mine.open_stores));
  mine.open_stores.clear();
}

void wait_for_tile_stores(size_t groups) {
  LaneProducts& mine = hopper().lane[static_cast<size_t>(block().current->linear)];
  while (mine.stores.size() > groups) {
    for (const TileCopy& copy : mine.stores.front()) move_tile(copy, false);
    const Quiet quiet;
    mine.stores.erase(mine.stores.begin());
  }
}

}  // namespace emulation
