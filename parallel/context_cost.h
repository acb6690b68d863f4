// What positions of a document cost: sums in closed form, as `balanced` and predictions need them.
#pragma once
#include <cstdint>

#include "parallel/context_plan.h"

namespace quire {

/// Keys that the queries [0, end) of a document read in one layer with this window (0: none).
int64_t window_pairs(int64_t end, int64_t window);

/// A token at position p costs `token_cost` and, for each layer, the keys that it reads. The cost never falls along a document.
class TokenCosts {
 public:
  /// Throws DataError where a microbatch of so many tokens may cost 2^62 or more.
  TokenCosts(const ContextCosts& costs, int64_t tokens);
  /// Of positions [0, end).
  int64_t until(int64_t end) const;
  /// Of positions [begin, end).
  int64_t of(int64_t begin, int64_t end) const { return until(end) - until(begin); }
  int64_t at(int64_t position) const { return of(position, position + 1); }
  int64_t outside_attention() const { return token_cost_; }

 private:
  int64_t full_layers_ = 0, token_cost_ = 0;
  std::vector<LayerWindow> windows_;  ///< those that are one
};

}  // namespace quire
