#include "ops/document_batches.h"

#include <algorithm>
#include <bit>
#include <map>

#include "runtime/error.h"

namespace quire {

DocumentTables document_tables(std::span<const DocumentRun> runs) {
  std::map<int64_t, std::vector<const DocumentRun*>> by_length;
  for (const DocumentRun& run : runs) {
    if (run.global != run.start)
      fail<UnsupportedError>("attention", "a run begins {} tokens inside of its document; needed: whole documents", run.global - run.start);
    by_length[std::max(shortest_batch, static_cast<int64_t>(std::bit_ceil(static_cast<uint32_t>(run.length))))].push_back(&run);
  }
  DocumentTables tables;
  for (const auto& [longest, documents] : by_length) {
    const int64_t places = std::max<int64_t>(batch_tokens / longest, 1), count = static_cast<int64_t>(documents.size());
    for (int64_t begin = 0; begin < count; begin += places) {
      const int64_t here = std::min(places, count - begin);
      tables.batches.push_back({longest, places, here, static_cast<int64_t>(tables.begins.size())});
      for (int64_t i = begin; i < begin + here; ++i) {
        tables.begins.push_back(documents[static_cast<size_t>(i)]->local);
        tables.lengths.push_back(documents[static_cast<size_t>(i)]->length);
      }
      const int32_t end = tables.begins.back() + tables.lengths.back();
      tables.begins.resize(static_cast<size_t>(tables.batches.back().first + (places + 1 + 3) / 4 * 4), end);
      tables.lengths.resize(tables.begins.size(), 0);
    }
  }
  return tables;
}

}  // namespace quire
