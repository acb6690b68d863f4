#include "parallel/zero_bubble.h"

namespace quire {

std::vector<std::vector<Action>> zero_bubble_v(int64_t ranks, int64_t microbatches) {
  std::vector<std::vector<Action>> all(static_cast<size_t>(ranks));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<Action>& actions = all[static_cast<size_t>(rank)];
    const int64_t down = rank, up = 2 * ranks - 1 - rank;
    for (const int64_t stage : {down, up})
      for (int64_t m = 0; m < microbatches; ++m) actions.push_back({ActionKind::forward, stage, m});
    for (const int64_t stage : {up, down})
      for (const ActionKind kind : {ActionKind::backward_input, ActionKind::backward_weight})
        for (int64_t m = 0; m < microbatches; ++m) actions.push_back({kind, stage, m});
  }
  return all;
}

}  // namespace quire
