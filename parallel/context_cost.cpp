#include "parallel/context_cost.h"

#include <algorithm>

#include "runtime/error.h"

namespace quire {

int64_t window_pairs(int64_t end, int64_t window) {
  const int64_t rising = window == 0 ? end : std::min(end, window);
  return rising * (rising + 1) / 2 + (end - rising) * window;
}

TokenCosts::TokenCosts(const ContextCosts& costs, int64_t tokens) : token_cost_(costs.token_cost) {
  for (const LayerWindow& each : costs.windows) {
    if (each.window == 0) full_layers_ += each.layers;
    else windows_.push_back(each);
  }
  __int128 most = static_cast<__int128>(tokens) * token_cost_ + static_cast<__int128>(window_pairs(tokens, 0)) * full_layers_;
  for (const LayerWindow& each : windows_) most += static_cast<__int128>(window_pairs(tokens, each.window)) * each.layers;
  if (most >= __int128{1} << 62)
    fail<DataError>("context_plan", "the cost of a document of {} tokens does not fit into 62 bits; take shorter rows, or costs in a larger unit", tokens);
}

int64_t TokenCosts::until(int64_t end) const {
  int64_t sum = end * token_cost_ + full_layers_ * (end * (end + 1) / 2);
  for (const LayerWindow& each : windows_) sum += each.layers * window_pairs(end, each.window);
  return sum;
}

}  // namespace quire
