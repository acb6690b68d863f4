// Fixed pseudo-random inputs of the wrappers' kernels, and how their outputs come back.
#pragma once
#include <bit>
#include <span>
#include <string>
#include <vector>

#include "bench/gpu/goldens.h"
#include "runtime/tensor.h"

namespace quire::gpu_report {

/// Word `i` of stream `stream` (a mixing function of Murmur's kind).
constexpr uint32_t made_word(uint32_t stream, uint32_t i) {
  uint32_t x = i * 0x9e3779b9u + stream * 0x85ebca6bu + 0x2545f491u;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

/// bf16 numbers as words of two: multiples of 1/8 between -2 and 2, whose products and sums f32 holds exactly.
inline std::vector<int32_t> exact_pairs(uint32_t stream, int64_t words) {
  std::vector<int32_t> pairs;
  for (int64_t i = 0; i < words; ++i) {
    uint32_t pair = 0;
    for (uint32_t half = 0; half < 2; ++half) {
      const float value = static_cast<float>(made_word(stream, static_cast<uint32_t>(2 * i) + half) % 33) / 8 - 2;
      pair |= std::bit_cast<uint32_t>(value) >> 16 << (16 * half);
    }
    pairs.push_back(std::bit_cast<int32_t>(pair));
  }
  return pairs;
}
/// bf16 numbers as words of two: between -2 and 2 with all digits.
inline std::vector<int32_t> rough_pairs(uint32_t stream, int64_t words) {
  std::vector<int32_t> pairs;
  for (int64_t i = 0; i < words; ++i) {
    uint32_t pair = 0;
    for (uint32_t half = 0; half < 2; ++half) {
      const float value = static_cast<float>(made_word(stream, static_cast<uint32_t>(2 * i) + half)) * 0x1p-30f - 2;
      pair |= std::bit_cast<uint32_t>(value) >> 16 << (16 * half);
    }
    pairs.push_back(std::bit_cast<int32_t>(pair));
  }
  return pairs;
}

inline Tensor words_on(Rank& rank, std::span<const int32_t> words) { return Tensor::from<int32_t>(rank, {static_cast<int64_t>(words.size())}, words, Category::workspace); }
/// `count` words that hold 0xcdcdcdcd: what no thread writes shows.
inline Tensor unwritten_words(Rank& rank, int64_t count) { return words_on(rank, std::vector<int32_t>(static_cast<size_t>(count), std::bit_cast<int32_t>(0xcdcdcdcdu))); }
inline uint32_t* words_of(const Tensor& tensor) { return reinterpret_cast<uint32_t*>(tensor.data<int32_t>()); }

inline Golden golden(std::string name, double tolerance, const Tensor& words) {
  Golden result{std::move(name), tolerance, {}};
  for (const int32_t word : words.to_vector<int32_t>()) result.words.push_back(std::bit_cast<uint32_t>(word));
  return result;
}

}  // namespace quire::gpu_report
