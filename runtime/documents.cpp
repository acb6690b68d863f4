#include "runtime/documents.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "runtime/digest.h"
#include "runtime/documents_digest.h"
#include "runtime/error.h"

namespace quire {

namespace {

constexpr int64_t most_tokens = std::numeric_limits<int32_t>::max();

}  // namespace

Documents Documents::from_lengths(std::span<const int64_t> lengths) {
  int64_t total = 0;
  for (int64_t length : lengths) {
    if (length < 0) fail<DataError>("documents", "length {} is negative", length);
    if (length > most_tokens - total) fail<DataError>("documents", "more than {} tokens in one microbatch; allowed: below 2^31", most_tokens);
    total += length;
  }
  Documents result;
  result.indices_.resize(static_cast<size_t>(total));
  std::iota(result.indices_.begin(), result.indices_.end(), 0);
  result.starts_.reserve(static_cast<size_t>(total));
  for (int64_t length : lengths) result.starts_.insert(result.starts_.end(), static_cast<size_t>(length), static_cast<int32_t>(result.starts_.size()));
  return result;
}

Documents Documents::from_starts(std::span<const int32_t> starts) {
  if (static_cast<int64_t>(starts.size()) > most_tokens) fail<DataError>("documents", "more than {} tokens in one microbatch; allowed: below 2^31", most_tokens);
  for (size_t i = 0; i < starts.size(); ++i) {
    const int32_t start = starts[i];
    const bool right = start >= 0 && static_cast<size_t>(start) <= i && starts[static_cast<size_t>(start)] == start && (i == 0 || start >= starts[i - 1]);
    if (!right) fail<DataError>("documents", "token {} says that its document starts at {}, which contradicts the tokens before it", i, start);
  }
  Documents result;
  result.starts_.assign(starts.begin(), starts.end());
  result.indices_.resize(starts.size());
  std::iota(result.indices_.begin(), result.indices_.end(), 0);
  return result;
}

Documents Documents::shard(std::vector<int32_t> indices, std::vector<int32_t> starts) {
  if (indices.size() != starts.size()) fail<DataError>("documents", "{} indices but {} starts", indices.size(), starts.size());
  for (size_t i = 0; i < indices.size(); ++i)
    if (starts[i] < 0 || starts[i] > indices[i])
      fail<DataError>("documents", "token {} has index {} and start {}; allowed: 0 <= start <= index", i, indices[i], starts[i]);
  for (size_t i = 1; i < indices.size(); ++i) {
    const bool ascending = indices[i - 1] < indices[i];
    const size_t earlier = ascending ? i - 1 : i, later = ascending ? i : i - 1;
    const bool consecutive = indices[later] == indices[earlier] + 1;
    const bool same = starts[later] == starts[earlier];
    const bool another = consecutive ? starts[later] == indices[later] : starts[later] > indices[earlier];
    if (indices[later] == indices[earlier] || !(same || another))
      fail<DataError>("documents", "tokens {} and {} have indices {} and {} with starts {} and {}, which contradict each other", i - 1, i, indices[i - 1],
                      indices[i], starts[i - 1], starts[i]);
  }
  Documents result;
  result.indices_ = std::move(indices);
  result.starts_ = std::move(starts);
  return result;
}

std::vector<int32_t> Documents::positions() const {
  std::vector<int32_t> result(starts_.size());
  for (size_t i = 0; i < result.size(); ++i) result[i] = indices_[i] - starts_[i];
  return result;
}

std::vector<DocumentRun> Documents::runs() const {
  std::vector<DocumentRun> result;
  for (size_t i = 0; i < starts_.size(); ++i) {
    if (i > 0 && starts_[i] == starts_[i - 1] && indices_[i] == indices_[i - 1] + 1) ++result.back().length;
    else result.push_back({static_cast<int32_t>(i), indices_[i], 1, starts_[i]});
  }
  return result;
}

std::vector<int32_t> Documents::offsets() const {
  std::vector<int32_t> result;
  for (const DocumentRun& run : runs()) result.push_back(run.local);
  result.push_back(static_cast<int32_t>(tokens()));
  return result;
}

int64_t Documents::longest() const {
  int64_t longest = 0;
  for (const DocumentRun& run : runs()) longest = std::max<int64_t>(longest, run.length);
  return longest;
}

int64_t Documents::useful_pairs(int64_t window) const {
  const std::vector<DocumentRun> all = runs();
  int64_t pairs = 0;
  // Runs of one document are adjacent in a whole microbatch and few in a shard; each query run meets every key run of its document.
  std::vector<DocumentRun> sorted = all;
  std::stable_sort(sorted.begin(), sorted.end(), [](const DocumentRun& a, const DocumentRun& b) { return a.start < b.start; });
  for (size_t first = 0; first < sorted.size();) {
    size_t last = first;
    while (last < sorted.size() && sorted[last].start == sorted[first].start) ++last;
    for (size_t q = first; q < last; ++q)
      for (size_t k = first; k < last; ++k) {
        const DocumentRun &query = sorted[q], &key = sorted[k];
        if (q == k && (window == 0 || window >= query.length)) {
          pairs += static_cast<int64_t>(query.length) * (query.length + 1) / 2;
          continue;
        }
        for (int64_t i = query.global; i < query.global + query.length; ++i) {
          const int64_t low = std::max<int64_t>(key.global, window == 0 ? 0 : i - window + 1);
          const int64_t high = std::min<int64_t>(key.global + key.length - 1, i);
          pairs += std::max<int64_t>(0, high - low + 1);
        }
      }
    first = last;
  }
  return pairs;
}

uint64_t digest_of_documents(std::span<const int32_t> indices, std::span<const int32_t> starts) {
  Digest whole;
  whole.update_value(static_cast<int64_t>(indices.size()));
  for (size_t begin = 0; begin < indices.size(); begin += digest_piece) {
    const size_t count = std::min(indices.size() - begin, static_cast<size_t>(digest_piece));
    Digest piece;
    piece.update(std::as_bytes(indices.subspan(begin, count)));
    piece.update(std::as_bytes(starts.subspan(begin, count)));
    whole.update_value(piece.value());
  }
  return whole.value();
}

uint64_t Documents::digest() const { return digest_of_documents(indices_, starts_); }

}  // namespace quire
