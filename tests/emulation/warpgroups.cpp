// wgmma: products of four warps, whose operands lie in shared memory.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "hopper.h"
#include "hopper_state.h"

namespace emulation {

namespace {

constexpr int depth = 16;

LaneProducts& products_of(const Thread& thread) { return hopper().lane[static_cast<size_t>(thread.linear)]; }
LaneProducts& mine() { return products_of(*block().current); }

/// wgmma's instructions are executed by all lanes of a warp together.
void meet_warp(uint32_t line) { meet(all_lanes, Operation::warpgroup_product, line, LaneValue{}); }

/// Element (row, k) of an operand: rows of 128 bytes in groups of eight, the swizzle acting on the address. Of a transposed one the rows of memory
/// are steps of k, and 64 rows of the operand lie in each.
const uint16_t* element(const ProductOperand& operand, int row, int k) {
  const uint64_t descriptor = operand.descriptor;
  const auto start = static_cast<uint32_t>(descriptor & 0x3fff) << 4, next = static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4,
             stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  if (descriptor >> 62 != 1) fail_kernel("wgmma: a descriptor without the 128-byte swizzle, which alone is emulated");
  const auto line = static_cast<uint32_t>(operand.transposed ? k : row), column = static_cast<uint32_t>(operand.transposed ? row : k);
  uint32_t address = start + column / 64 * next + line / 8 * stride + line % 8 * 128 + column % 64 * 2;
  address ^= (address >> 7 & 7) << 4;
  return reinterpret_cast<const uint16_t*>(shared_at(address, 2, 2, "wgmma"));
}
float value_at(const ProductOperand& operand, int row, int k) { return std::bit_cast<float>(static_cast<uint32_t>(*element(operand, row, k)) << 16); }

/// Rows 16 w .. 16 w + 15 of the product, w the warp's place in its group: c [16, n].
void product_of_warp(int warp_of_group, const WarpgroupProduct& product, float* c) {
  float a[16][depth];
  std::vector<float> b(static_cast<size_t>(depth * product.n));
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < depth; ++k) a[row][k] = value_at(product.a, warp_of_group * 16 + row, k);
  for (int column = 0; column < product.n; ++column)
    for (int k = 0; k < depth; ++k) b[static_cast<size_t>(k * product.n + column)] = value_at(product.b, column, k);
  std::fill(c, c + 16 * product.n, 0.0f);
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < depth; ++k)
      for (int column = 0; column < product.n; ++column) c[row * product.n + column] += a[row][k] * b[static_cast<size_t>(k * product.n + column)];
}

/// Gives a lane its elements of c: of accumulator quarter j, columns 8 j + 2 (lane % 4) and the next of rows lane / 4 and lane / 4 + 8.
void add_to_lane(int lane_of_warp, const WarpgroupProduct& product, const float* c, float* d) {
  const int g = lane_of_warp / 4, t = lane_of_warp % 4 * 2;
  for (int j = 0; j < product.n / 8; ++j)
    for (int i = 0; i < 4; ++i) {
      const float sum = c[(g + (i >> 1) * 8) * product.n + j * 8 + t + (i & 1)];
      float& to = d[j * 4 + i];
      to = (product.accumulates ? to : 0.0f) + sum;
    }
}

void carry_out_oldest(Block& b, int warp) {
  const LaneProducts& first = products_of(*b.thread[static_cast<size_t>(warp * warp_size)]);
  const size_t count = first.groups.front().size();
  for (size_t i = 0; i < count; ++i) {
    const WarpgroupProduct& shape = first.groups.front()[i];
    std::vector<float> c(static_cast<size_t>(16 * shape.n));
    product_of_warp(warp % 4, shape, c.data());
    for (int l = 0; l < warp_size; ++l) {
      LaneProducts& lane = products_of(*b.thread[static_cast<size_t>(warp * warp_size + l)]);
      const auto& group = lane.groups.front();
      if (group.size() != count || group[i].a.descriptor != shape.a.descriptor || group[i].b.descriptor != shape.b.descriptor ||
          group[i].n != shape.n)
        fail_kernel("wgmma: the lanes of a warp issue different products");
      add_to_lane(l, group[i], c.data(), lane.values.at(group[i].d).data());
    }
  }
  for (int l = 0; l < warp_size; ++l) {
    LaneProducts& lane = products_of(*b.thread[static_cast<size_t>(warp * warp_size + l)]);
    lane.groups.erase(lane.groups.begin());
    const auto written_later = [&](const float* d) {
      const auto names = [&](const WarpgroupProduct& product) { return product.d == d; };
      return std::any_of(lane.open.begin(), lane.open.end(), names) ||
             std::any_of(lane.groups.begin(), lane.groups.end(), [&](const auto& group) { return std::any_of(group.begin(), group.end(), names); });
    };
    for (auto at = lane.values.begin(); at != lane.values.end();) {
      if (written_later(at->first)) {
        ++at;
      } else {
        std::copy(at->second.begin(), at->second.end(), at->first);
        at = lane.values.erase(at);
      }
    }
  }
}

void carry_out(Meeting& meeting, int buffer) {
  const Quiet quiet;
  Block& b = block();
  const int warp = b.current->warp;
  const size_t keep = meeting.value[buffer][b.current->lane].word[0];
  while (products_of(*b.thread[static_cast<size_t>(warp * warp_size)]).groups.size() > keep) carry_out_oldest(b, warp);
}

}  // namespace

void fence_products(uint32_t line) {
  meet_warp(line);
  const Quiet quiet;
  mine().fenced = true;
}

void start_product(float* d, int n, ProductOperand a, ProductOperand b, bool accumulates, uint32_t line) {
  if (block().current->warp / 4 * 4 + 4 > block().warps) fail_kernel("wgmma: the warp group is not complete");
  meet_warp(line);
  const Quiet quiet;
  LaneProducts& products = mine();
  if (!products.fenced) fail_kernel("wgmma: no wgmma_fence stands before the first product");
  if (products.values.find(d) == products.values.end()) {
    products.values[d].assign(d, d + n / 2);
    std::fill(d, d + n / 2, NAN);
  }
  products.open.push_back({a, b, n, accumulates, d});
}

void commit_products(uint32_t line) {
  meet_warp(line);
  const Quiet quiet;
  LaneProducts& products = mine();
  products.groups.push_back(std::move(products.open));
  products.open.clear();
}

const uint16_t* next_read_of_products(size_t groups, size_t index) {
  const Quiet quiet;
  const auto& waiting = mine().groups;
  const Thread& me = *block().current;
  if (waiting.size() <= groups) return nullptr;
  for (size_t group = 0; group < waiting.size() - groups; ++group)
    for (const WarpgroupProduct& product : waiting[group]) {
      // One row half of a, and both halves of rows of b: all of them are read by the warp's lanes together.
      const auto reads = 1 + static_cast<size_t>(product.n / warp_size) * 2;
      const int first_row = me.warp % 4 * 16, part = static_cast<int>(index - 1), first_column = part / 2 * warp_size, first_step = part % 2 * 8;
      if (index == 0)
        return product.a.transposed ? element(product.a, first_row + me.lane % 2 * 8, me.lane / 2)
                                    : element(product.a, first_row + me.lane / 2, me.lane % 2 * 8);
      if (index < reads)
        return product.b.transposed ? element(product.b, first_column + me.lane % 4 * 8, first_step + me.lane / 4)
                                    : element(product.b, first_column + me.lane, first_step);
      index -= reads;
    }
  return nullptr;
}

void finish_products(size_t groups, uint32_t line) {
  char* const order = &block().warp_order[static_cast<size_t>(block().current->warp)];
  release(order);
  meet(all_lanes, Operation::warpgroup_product, line, LaneValue{{groups}}, carry_out);
  acquire(order);  // when it returns, the whole warp's reads are over
}

}  // namespace emulation
