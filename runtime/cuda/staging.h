// Pinned host memory between the host's values and the device's: asynchronous copies read and write nothing else.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "runtime/accelerator.h"

namespace quire {

/// Pinned memory of a device with the event after which nobody copies from or to it. Made, and used, where the device is current.
class PinnedBlock {
 public:
  explicit PinnedBlock(int64_t bytes);
  ~PinnedBlock();
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// Its copies are all those that `stream` was given so far.
  void record(cudaStream_t stream);
  /// Of the last record; true where there is none.
  bool done() const;
  void wait() const;

 private:
  char* data_ = nullptr;
  int64_t bytes_;
  cudaEvent_t copied_ = nullptr;
};

/// Values on their way to the device. Blocks of equal size are filled one after the other and come round again once their copies are over. Where the oldest one's
/// are not, another block is made, up to `most_blocks`: the first steps make as many as a step needs, and later ones wait for none. A large upload (weights that are
/// loaded) makes `most_of_large` at most and waits for its own pieces instead.
class UploadStaging {
 public:
  static constexpr int64_t block_bytes = int64_t{4} << 20;
  static constexpr int most_blocks = 64, most_of_large = 4;

  void upload(const void* host, void* to, int64_t bytes, cudaStream_t stream);
  int64_t waits() const { return waits_; }  ///< how often the host waited for a block
  int64_t bytes() const { return static_cast<int64_t>(blocks_.size()) * block_bytes; }

 private:
  /// Makes another block the one that is filled, at its beginning; a new one only while there are fewer than `most`.
  void next_block(int most, cudaStream_t stream);

  std::deque<std::unique_ptr<PinnedBlock>> blocks_;  ///< the one that is filled stands last, the one longest in use first
  int64_t filled_ = 0;                               ///< bytes of the last block
  int64_t waits_ = 0;
};

/// Pinned blocks of downloads, kept for the next ones.
class DownloadStaging : public std::enable_shared_from_this<DownloadStaging> {
 public:
  static constexpr int64_t piece_bytes = int64_t{4} << 20;
  static constexpr int64_t most_kept = int64_t{64} << 20;

  /// Starts copying what the stream's work so far leaves at `from`.
  std::unique_ptr<Download> start(const void* from, int64_t bytes, cudaStream_t stream);
  /// The same piece by piece into the caller's memory, and waits.
  void copy(const void* from, void* host, int64_t bytes, cudaStream_t stream);
  int64_t blocks_made() const { return blocks_made_; }

 private:
  class Pending;
  std::unique_ptr<PinnedBlock> take(int64_t bytes);
  void give_back(std::unique_ptr<PinnedBlock> block) noexcept;

  std::vector<std::unique_ptr<PinnedBlock>> free_;  ///< their copies may still be under way
  int64_t kept_ = 0, blocks_made_ = 0;
};

}  // namespace quire
