#include "runtime/cuda/staging.h"

#include <planted.h>

#include <algorithm>
#include <cstring>

#include "runtime/cuda/errors.h"

namespace quire {

namespace {

constexpr int64_t smallest_block = 4096;

int64_t size_class(int64_t bytes) {
  int64_t size = smallest_block;
  while (size < bytes) size *= 2;
  return size;
}

void copy_from_device(const void* from, PinnedBlock& block, int64_t bytes, cudaStream_t stream) {
  check_cuda(cudaMemcpyAsync(block.data(), from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  block.record(stream);
}

}  // namespace

PinnedBlock::PinnedBlock(int64_t bytes) : bytes_(bytes) {
  check_cuda(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  const cudaError_t status = cudaMallocHost(reinterpret_cast<void**>(&data_), static_cast<size_t>(bytes));
  if (status != cudaSuccess) cudaEventDestroy(copied_);
  check_cuda(status, "cudaMallocHost");
}

PinnedBlock::~PinnedBlock() {
  cudaEventSynchronize(copied_);
  cudaEventDestroy(copied_);
  cudaFreeHost(data_);
}

void PinnedBlock::record(cudaStream_t stream) { check_cuda(cudaEventRecord(copied_, stream), "cudaEventRecord"); }

bool PinnedBlock::done() const {
  if (gpu::planted("staging.reused_too_early")) return true;
  const cudaError_t status = cudaEventQuery(copied_);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // it is no error
    return false;
  }
  check_cuda(status, "cudaEventQuery");
  return true;
}

void PinnedBlock::wait() const {
  if (gpu::planted("staging.missing_wait")) return;
  check_cuda(cudaEventSynchronize(copied_), "cudaEventSynchronize");
}

void UploadStaging::upload(const void* host, void* to, int64_t bytes, cudaStream_t stream) {
  const int most = bytes > most_of_large * block_bytes ? most_of_large : most_blocks;
  for (int64_t at = 0; at < bytes;) {
    if (blocks_.empty() || filled_ == block_bytes) next_block(most, stream);
    const int64_t piece = std::min(bytes - at, block_bytes - filled_);
    char* const staged = blocks_.back()->data() + filled_;
    std::memcpy(staged, static_cast<const char*>(host) + at, static_cast<size_t>(piece));
    check_cuda(cudaMemcpyAsync(static_cast<char*>(to) + at, staged, static_cast<size_t>(piece), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    filled_ += piece;
    at += piece;
  }
}

void UploadStaging::next_block(int most, cudaStream_t stream) {
  if (!blocks_.empty()) blocks_.back()->record(stream);
  const bool free = !blocks_.empty() && blocks_.front()->done();
  if (!free && static_cast<int>(blocks_.size()) < most) {
    blocks_.push_back(std::make_unique<PinnedBlock>(block_bytes));
  } else {
    if (!free) {
      ++waits_;
      blocks_.front()->wait();
    }
    std::rotate(blocks_.begin(), blocks_.begin() + 1, blocks_.end());
  }
  filled_ = 0;
}

/// Gives its block back at its end, whether anyone has waited or not: a block is handed out again once its copies are over.
class DownloadStaging::Pending final : public Download {
 public:
  Pending(std::shared_ptr<DownloadStaging> staging, std::unique_ptr<PinnedBlock> block, int64_t bytes)
      : staging_(std::move(staging)), block_(std::move(block)), bytes_(bytes) {}
  ~Pending() override { staging_->give_back(std::move(block_)); }
  bool done() const override { return block_->done(); }
  std::span<const std::byte> wait() override {
    block_->wait();
    return {reinterpret_cast<const std::byte*>(block_->data()), static_cast<size_t>(bytes_)};
  }

 private:
  std::shared_ptr<DownloadStaging> staging_;
  std::unique_ptr<PinnedBlock> block_;
  int64_t bytes_;
};

std::unique_ptr<Download> DownloadStaging::start(const void* from, int64_t bytes, cudaStream_t stream) {
  std::unique_ptr<PinnedBlock> block = take(bytes);
  if (bytes > 0) copy_from_device(from, *block, bytes, stream);
  return std::make_unique<Pending>(shared_from_this(), std::move(block), bytes);
}

void DownloadStaging::copy(const void* from, void* host, int64_t bytes, cudaStream_t stream) {
  // Two blocks in turn: one is copied out of while the device fills the other.
  std::unique_ptr<PinnedBlock> blocks[2];
  const int64_t pieces = (bytes + piece_bytes - 1) / piece_bytes;
  const auto length = [&](int64_t piece) { return std::min(piece_bytes, bytes - piece * piece_bytes); };
  for (int64_t piece = 0; piece <= pieces; ++piece) {
    if (piece < pieces) {
      std::unique_ptr<PinnedBlock>& block = blocks[piece % 2];
      if (!block) block = take(length(piece));
      copy_from_device(static_cast<const char*>(from) + piece * piece_bytes, *block, length(piece), stream);
    }
    if (piece > 0) {
      const PinnedBlock& block = *blocks[(piece - 1) % 2];
      block.wait();
      std::memcpy(static_cast<char*>(host) + (piece - 1) * piece_bytes, block.data(), static_cast<size_t>(length(piece - 1)));
    }
  }
  for (std::unique_ptr<PinnedBlock>& block : blocks)
    if (block) give_back(std::move(block));
}

std::unique_ptr<PinnedBlock> DownloadStaging::take(int64_t bytes) {
  const int64_t size = size_class(bytes);
  const auto fits = [&](const std::unique_ptr<PinnedBlock>& block) { return block->bytes() >= size && block->bytes() <= 4 * size && block->done(); };
  if (const auto found = std::find_if(free_.begin(), free_.end(), fits); found != free_.end()) {
    std::unique_ptr<PinnedBlock> block = std::move(*found);
    free_.erase(found);
    kept_ -= block->bytes();
    return block;
  }
  auto block = std::make_unique<PinnedBlock>(size);
  ++blocks_made_;
  return block;
}

void DownloadStaging::give_back(std::unique_ptr<PinnedBlock> block) noexcept {
  if (kept_ + block->bytes() > most_kept) return;
  kept_ += block->bytes();
  free_.push_back(std::move(block));
}

}  // namespace quire
