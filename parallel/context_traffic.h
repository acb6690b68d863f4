// What a context plan comes to in seconds' ingredients: pairs of each step, bytes and messages of each rank.
#pragma once
#include "parallel/context_plan.h"
#include "runtime/dtype.h"

namespace quire {

/// What of a model decides how much its context-parallel ranks compute and send.
struct ContextModel {
  int64_t heads = 1, kv_heads = 1, head_dim = 0;
  DType dtype = DType::f32;       ///< of keys and values; their gradients travel in its accumulator type
  double token_flops = 0;         ///< of a token outside of attention, forward and backward, all layers
  bool recomputes = false;        ///< attention's forward pass, and with it its exchange, is made again in backward
  ContextCosts costs;             ///< windows; and what `balanced` balances
  int64_t layers() const;
  /// Bytes of a token's keys and values of one layer, in the dtype.
  int64_t row_bytes() const;
  /// Bytes of their gradients.
  int64_t row_gradient_bytes() const;
};

/// Whether heads can be shared out over ranks: heads a multiple of the ranks, and key/value heads a multiple or a divisor of them.
bool heads_fit(int64_t heads, int64_t kv_heads, int64_t ranks);
/// The exchanges that a layout can have with these heads.
bool can_exchange(ContextLayout layout, ContextExchange exchange, int64_t heads, int64_t kv_heads, int64_t ranks);

/// Query-key pairs between queries [queries) and keys [keys) of one document: j <= i, and i - j < window unless that is 0.
int64_t pairs_between(TokenRange queries, TokenRange keys, int64_t window);

/// One rank's part of one step of one layer: 0 is the one in which it meets its own keys.
struct ContextStepLoad {
  int64_t pairs = 0;                         ///< per head, forward
  int64_t received_rows = 0, sent_rows = 0;  ///< keys and values in forward; in backward gradients go the other way
  int64_t received_words = 0, sent_words = 0;  ///< of 4 bytes, of the boundary records that go with them
  int64_t received_messages = 0, sent_messages = 0;
};
/// [ranks][1 + steps] for one layer with this window; for `heads` one step, whose pairs are spread over the heads (a rank's share of all of them), and no rows.
std::vector<std::vector<ContextStepLoad>> step_loads(const ContextPlan& plan, const Documents& whole, int64_t window);

/// Bytes that a rank receives and sends, all layers together.
struct ContextBytes {
  std::vector<int64_t> received_forward, received_backward, sent_forward, sent_backward;  ///< [ranks]
  int64_t messages = 0;  ///< all ranks together, forward and backward
  int64_t total() const;
};
ContextBytes bytes_of(const ContextPlan& plan, const Documents& whole, const ContextModel& model);

}  // namespace quire
