// Of a block on sm_90: barriers in shared memory, copies of tiles under way, products of warp groups not yet waited for.
#pragma once
#include <cuda.h>

#include <map>
#include <vector>

#include "hopper.h"
#include "machine.h"

namespace emulation {

/// What the emulated cuTensorMapEncodeTiled writes into the 128 opaque bytes of a tensor map: a matrix and the tile that a copy moves.
struct TensorMap {
  uint64_t magic;
  unsigned char* base;
  uint64_t width, height, stride;  ///< elements, rows, bytes between rows
  uint32_t tile_width, tile_height;
  uint32_t element_bytes;
  uint32_t swizzled;  ///< 16-byte chunk c of row r lies at c ^ (r % 8)
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));
constexpr uint64_t tensor_map_magic = 0x7e4502a9b17c3d58;

struct TileCopy {
  TensorMap map;
  uint32_t shared;
  int x, y;
};

struct MemoryBarrier {
  int count = 0, pending = 0, phase = 0;
  int64_t bytes = 0;  ///< expected and not yet there
  std::vector<Thread*> waiting;
  std::vector<TileCopy> under_way;
};

/// wgmma as one lane issued it: its part of the accumulator, n / 2 numbers.
struct WarpgroupProduct {
  ProductOperand a, b;
  int n;
  bool accumulates;
  float* d;
};

struct LaneProducts {
  bool fenced = false;
  std::vector<WarpgroupProduct> open;
  std::vector<std::vector<WarpgroupProduct>> groups;
  std::map<float*, std::vector<float>> values;  ///< of accumulators that show NaN while they are written
  std::vector<TileCopy> open_stores;
  std::vector<std::vector<TileCopy>> stores;
};

struct Hopper {
  std::map<uint32_t, MemoryBarrier> barriers;
  std::vector<LaneProducts> lane;  ///< per thread
};

Hopper& hopper();
TensorMap read_map(const CUtensorMap* map);
/// Moves a tile between the matrix and shared memory; outside the matrix it reads zeros and writes nothing.
void move_tile(const TileCopy& copy, bool to_shared);

}  // namespace emulation
