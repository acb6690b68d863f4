// Where documents begin and end: the value that travels with every microbatch, activation and key/value message.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace quire {

/// The label of an input that predicts nothing: such a target is not scored.
constexpr int32_t ignored_target = -100;

/// A maximal piece of one document that is contiguous both in the microbatch and in local storage.
struct DocumentRun {
  int32_t local = 0;   ///< first token's place in the local storage
  int32_t global = 0;  ///< first token's global index in the microbatch
  int32_t length = 0;  ///< tokens, at least 1
  int32_t start = 0;   ///< global index of the document's first token (which may lie on another rank)
  bool operator==(const DocumentRun&) const = default;
};

/// For each local token its global index in the microbatch, and the global index of its document's first token.
///
/// Everything else is derived from these two and never stored beside them: token i may attend to token j exactly when
/// `max(start_i, i - window + 1) <= j <= i` (global indices); its rotary position is `i - start_i`.
/// A whole microbatch is the shard that holds every index. A value is immutable and belongs to one microbatch.
class Documents {
 public:
  Documents() = default;
  /// A whole microbatch of documents of these lengths, one after the other. Zero lengths are ignored; negative ones throw DataError.
  static Documents from_lengths(std::span<const int64_t> lengths);
  /// A whole microbatch from `starts[i]`, the index of the first token of token i's document. Throws DataError where
  /// starts[i] > i, starts decrease, or starts[starts[i]] != starts[i].
  static Documents from_starts(std::span<const int32_t> starts);
  /// A shard: global indices in any order, each once, with their documents' starts. Throws DataError where starts[i] > indices[i] or neighbours
  /// contradict each other (an index twice; consecutive ones of different documents of which the later does not begin one).
  static Documents shard(std::vector<int32_t> indices, std::vector<int32_t> starts);

  int64_t tokens() const { return static_cast<int64_t>(starts_.size()); }
  std::span<const int32_t> indices() const { return indices_; }
  std::span<const int32_t> starts() const { return starts_; }

  /// `indices[i] - starts[i]`: positions that restart in each document.
  std::vector<int32_t> positions() const;
  /// Maximal runs in local order.
  std::vector<DocumentRun> runs() const;
  /// Offsets `[runs + 1]` of the runs in local storage (the field's `cu_seqlens`).
  std::vector<int32_t> offsets() const;
  /// Longest run, in tokens.
  int64_t longest() const;
  /// Token pairs (i, j) that attention needs when both sides are this shard. window 0 means none.
  int64_t useful_pairs(int64_t window = 0) const;
  /// 64-bit digest of indices and starts; equal values have equal digests.
  uint64_t digest() const;

  bool operator==(const Documents&) const = default;

 private:
  std::vector<int32_t> indices_, starts_;
};

}  // namespace quire
