// Random values on a device, quickly: a block of them, repeated.
#pragma once
#include <algorithm>
#include <cmath>

#include "runtime/random.h"
#include "runtime/tensor.h"

namespace quire::gpu_report {

/// Normal values times `scale`, in bf16. Only a million of them are drawn: enough that a device's power and clocks are those of real values.
inline Tensor normal_values(Rank& rank, const Shape& shape, double scale, uint64_t stream) {
  constexpr int64_t drawn = (1 << 20) - 3;  // no multiple of a row: rows differ
  const int64_t count = shape.elements();
  std::vector<bf16> block(static_cast<size_t>(std::min(count, drawn)));
  rank.pool().parallel_for(chunks_of(static_cast<int64_t>(block.size()), 4096), [&](int64_t chunk, int) {
    for (int64_t i = chunk * 4096; i < std::min<int64_t>(static_cast<int64_t>(block.size()), (chunk + 1) * 4096); ++i)
      block[static_cast<size_t>(i)] = bf16(static_cast<float>(scale * random_normal(1, stream, 0, static_cast<uint64_t>(i))));
  });
  const Tensor values = Tensor::empty(rank, shape, DType::bf16);
  for (int64_t at = 0; at < count; at += drawn) {
    const int64_t here = std::min(drawn, count - at);
    values.from_host(at * 2, std::as_bytes(std::span(block).first(static_cast<size_t>(here))));
  }
  return values;
}

/// Lengths of documents with a log-normal spread around `mean`, one after the other, that fill `tokens`: the last one is cut.
inline std::vector<int64_t> made_lengths(int64_t tokens, double mean, uint64_t stream) {
  std::vector<int64_t> lengths;
  for (uint64_t i = 0; tokens > 0; ++i) {
    constexpr double sigma = 0.8;
    const double drawn = mean * std::exp(sigma * random_normal(2, stream, 0, i) - sigma * sigma / 2);
    lengths.push_back(std::min(tokens, std::max<int64_t>(1, static_cast<int64_t>(drawn))));
    tokens -= lengths.back();
  }
  return lengths;
}

}  // namespace quire::gpu_report
