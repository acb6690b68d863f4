// Asynchronous copies and products of matrix fragments: what does not need to be seen by sanitizers.
#include <bit>

#include "machine.h"
#include "sanitizers.h"

namespace emulation {

void open_copy(void* to, const void* from, int valid) {
  if (valid != 0 && valid != 16) fail_kernel("cp.async reads 16 bytes or none, not " + std::to_string(valid));
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) fail_kernel("cp.async: the address in global memory is not a multiple of 16");
  const Quiet quiet;
  block().current->open_copies.push_back({to, from, valid});
}

void commit_copies() {
  const Quiet quiet;
  Thread& me = *block().current;
  me.copy_groups.push_back(std::move(me.open_copies));
  me.open_copies.clear();
}

const Copy* next_copy(size_t groups) {
  Thread& me = *block().current;
  const Quiet quiet;
  while (me.copy_groups.size() > groups) {
    if (me.landed < me.copy_groups.front().size()) return &me.copy_groups.front()[me.landed++];
    me.copy_groups.erase(me.copy_groups.begin());
    me.landed = 0;
  }
  return nullptr;
}

namespace {

float low(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
float high(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }
uint32_t half(const LaneValue& value, int i) { return static_cast<uint32_t>(value.word[i / 2] >> (i % 2 * 32)); }

/// PTX ISA, mma.m16n8k16 of bf16, with g = lane / 4 and t = lane % 4 * 2. A: registers 0 and 1 hold columns t and t + 1 of rows g and g + 8,
/// registers 2 and 3 the same of columns t + 8. B: register 0 holds rows t and t + 1 of column g, register 1 rows t + 8. C and D: 0, 1 columns t and
/// t + 1 of row g; 2, 3 of g + 8.
void product_of_warp(Meeting& meeting, int buffer) {
  float a[16][16], b[16][8];
  auto* const c = reinterpret_cast<float(*)[8]>(meeting.result[buffer]);
  for (int l = 0; l < warp_size; ++l) {
    const LaneValue& value = meeting.value[buffer][l];
    const int g = l / 4, t = l % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const int row = g + (i & 1) * 8, column = t + (i >> 1) * 8;
      a[row][column] = low(half(value, i));
      a[row][column + 1] = high(half(value, i));
    }
    for (int i = 0; i < 2; ++i) {
      b[t + i * 8][g] = low(half(value, 4 + i));
      b[t + i * 8 + 1][g] = high(half(value, 4 + i));
    }
  }
  for (int row = 0; row < 16; ++row) {
    float sum[8] = {};
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) sum[column] += a[row][k] * b[k][column];
    for (int column = 0; column < 8; ++column) c[row][column] = sum[column];
  }
}

}  // namespace

void product_16x8x16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, uint32_t line) {
  const auto pair = [](uint32_t first, uint32_t second) { return first | static_cast<uint64_t>(second) << 32; };
  const Met met = meet(all_lanes, Operation::matrix_product, line, LaneValue{{pair(a[0], a[1]), pair(a[2], a[3]), pair(b0, b1)}}, product_of_warp);
  const auto* const c = reinterpret_cast<const float(*)[8]>(met.meeting.result[met.buffer]);
  const int l = lane(), g = l / 4, t = l % 4 * 2;
  sum[0] = c[g][t];
  sum[1] = c[g][t + 1];
  sum[2] = c[g + 8][t];
  sum[3] = c[g + 8][t + 1];
}

}  // namespace emulation
