// Documents in batches of about one length, as libraries take them: a batch has a fixed number of places and a fixed longest length, so that what is prepared
// for it (a plan, compiled kernels) serves every microbatch.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/documents.h"

namespace quire {

/// Up to `places` documents of at most `longest` tokens, which is a power of two. places is a function of longest.
struct DocumentBatch {
  int64_t longest, places;
  int64_t documents;  ///< 1 to places; the places behind them have length 0
  int64_t first;      ///< of the batch's entries in the tables: at least places + 1, a multiple of 4, so that each batch's begin on 16 bytes
};

/// Batches and their tables, in host memory.
struct DocumentTables {
  std::vector<DocumentBatch> batches;
  std::vector<int32_t> begins;   ///< row of each document's first token, ascending in a batch; the end of its last one in the entries behind
  std::vector<int32_t> lengths;  ///< tokens
};

constexpr int64_t shortest_batch = 128;  ///< tokens: the least `longest`
constexpr int64_t batch_tokens = 8192;   ///< places * longest, where that is at least one place

/// Every run is a whole document and a place. Batches of shorter documents come first, and documents keep their order in a batch. A pure function. Throws
/// UnsupportedError for a run that begins inside of its document.
DocumentTables document_tables(std::span<const DocumentRun> runs);

/// The same with tables on a device.
struct DocumentBatches {
  std::span<const DocumentBatch> batches;
  const int32_t* begins;
  const int32_t* lengths;
  int64_t entries;  ///< of either table
};

}  // namespace quire
