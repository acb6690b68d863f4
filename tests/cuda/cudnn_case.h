// Cases of attention, computed by cuDNN on an emulated device.
#pragma once
#include "cuda/attention_device.h"
#include "cuda/cudnn_there.h"
#include "runtime/accelerator.h"

namespace quire::test {

/// Forward and backward as one process computes them. `batches` and `boundaries`: instead of the documents' own.
inline AttentionResult cudnn_both(Rank& rank, const AttentionCase& c, const DocumentBatches* batches = nullptr, const BoundaryTable* boundaries = nullptr) {
  const auto rows = [&](const std::vector<double>& values, int64_t width) { return Rows<bf16>(values, c.documents.indices(), width, c.gap).on(rank); };
  const Tensor q = rows(c.q, c.query_width()), k = rows(c.k, c.key_width()), v = rows(c.v, c.key_width()), dout = rows(c.dout, c.query_width());
  const Rows<bf16> out_rows(c.tokens(), c.query_width(), c.gap);
  const Rows<float> lse_rows(c.tokens(), c.heads, 0), query_rows(c.tokens(), c.query_width(), c.gap), key_rows(c.tokens(), c.key_width(), c.gap);
  const Tensor out = out_rows.on(rank), lse = lse_rows.on(rank), dq = query_rows.on(rank), dk = key_rows.on(rank), dv = key_rows.on(rank);
  const DocumentRuns runs = shared_runs(c.documents);
  if (batches == nullptr) batches = &runs->batches(rank);
  const BoundaryTable table = boundaries != nullptr ? *boundaries : runs->table(rank, c.tokens());
  const int64_t q_row = c.query_width() + c.gap, k_row = c.key_width() + c.gap, tokens = c.tokens();
  dispatch(rank, AttentionForwardArgs{DType::bf16, c.heads, c.kv_heads, c.head_dim, tokens, tokens, *runs, *runs, c.window, c.scale, q.raw(), q_row, k.raw(), k_row, v.raw(), k_row,
                                      out.raw(), q_row, lse.raw(), false, false, table, table, batches});
  dispatch(rank, AttentionBackwardArgs{DType::bf16, c.heads, c.kv_heads, c.head_dim, tokens, tokens, *runs, *runs, c.window, c.scale, q.raw(), q_row, k.raw(), k_row, v.raw(), k_row,
                                       dout.raw(), q_row, lse.raw(), nullptr, dq.raw(), q_row, dk.raw(), k_row, dv.raw(), k_row, false, true, table, table, batches, out.raw(), q_row});
  return {{out_rows.values(out), lse_rows.values(lse)}, {query_rows.values(dq), key_rows.values(dk), key_rows.values(dv)}};
}

inline AttentionCase cudnn_case(std::mt19937_64& random, std::span<const int64_t> lengths, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t gap = 0) {
  AttentionCase c = rounded_case<bf16>(random_case(random, lengths, heads, kv_heads, head_dim));
  c.gap = gap;
  return c;
}

}  // namespace quire::test
