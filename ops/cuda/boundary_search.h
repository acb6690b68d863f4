// How the table of boundaries is made on a CUDA device.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/boundary_table.h"
#include "runtime/documents.h"

namespace quire {

/// The first run that ends beyond `token`, `count` where none does. `end_of(run)` is one past its last token; runs ascend and are apart.
/// Once per tile: together O(tokens) calls, however many runs there are.
template <class EndOf>
constexpr int32_t first_run_beyond(const EndOf& end_of, int32_t count, int64_t token) {
  int32_t begin = 0;
  for (int32_t left = count; left > 0;) {
    const int32_t half = left / 2;
    if (end_of(begin + half) <= token) {
      begin += half + 1;
      left -= half + 1;
    } else {
      left = half;
    }
  }
  return begin;
}

/// BoundaryTableArgs.
void boundary_table(const DocumentRun* runs, int64_t runs_count, int64_t tokens, int32_t* global, int32_t* start, TileBoundaries* tiles, cudaStream_t stream);

}  // namespace quire
