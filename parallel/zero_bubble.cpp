#include "parallel/zero_bubble.h"

#include <array>

namespace quire {
namespace {

constexpr ActionKind forward = ActionKind::forward, input = ActionKind::backward_input, weight = ActionKind::backward_weight;

/// A rank's actions as they are put together; microbatches of each stage and kind ascend by themselves.
struct RankOrder {
  int64_t down = 0, up = 0;  ///< its stages
  std::vector<Action> actions;
  std::array<std::array<int64_t, 4>, 2> counts = {};

  int64_t& done(int64_t stage, ActionKind kind) { return counts[stage == up ? 1 : 0][static_cast<size_t>(kind)]; }
  void add(int64_t stage, std::initializer_list<ActionKind> kinds) {
    for (const ActionKind kind : kinds) actions.push_back({kind, stage, done(stage, kind)++});
  }
};

/// Qi et al.'s order by hand, for at least 2 * ranks - 1 microbatches. No rank waits once it has begun where F, I and W cost alike, and none
/// keeps more than 2 * ranks microbatches of a stage.
void add_full_pipe(RankOrder& order, int64_t rank, int64_t ranks, int64_t microbatches) {
  const int64_t down = order.down, up = order.up;
  // Until the first microbatch comes back up.
  for (int64_t i = 0; i < 2 * (ranks - rank) - 1; ++i) order.add(down, {forward});
  // Until its gradient is there.
  for (int64_t i = 0; i < rank; ++i) {
    order.add(up, {forward});
    order.add(down, {forward});
  }
  // Until that reaches the rank's other stage. The rank keeps all that it may, so that a forward frees what it takes.
  for (int64_t i = 0; i < ranks - rank; ++i) order.add(up, {forward, input, weight});
  while (order.done(up, forward) < microbatches) {
    if (order.done(down, forward) < microbatches) order.add(down, {forward});
    order.add(down, {input, weight});
    order.add(up, {forward, input, weight});
  }
  // No forward is left. Ranks that end later wait for gradients: those come before weight gradients, of which the rank saves as many as it takes to
  // wait for others in turn.
  for (int64_t i = 0; i < rank; ++i) {
    order.add(down, {input});
    order.add(up, {input});
  }
  while (order.done(down, input) < microbatches) order.add(down, {input, weight});
  while (order.done(up, weight) < microbatches) order.add(up, {weight});
  while (order.done(down, weight) < microbatches) order.add(down, {weight});
}

/// Too few microbatches to fill the pipe: all ranks in steps of one action, each what helps the others most of what is possible then.
void add_in_steps(std::vector<RankOrder>& orders, int64_t microbatches) {
  const int64_t ranks = static_cast<int64_t>(orders.size()), stages = 2 * ranks;
  struct Done {
    int64_t forwards = 0, inputs = 0, weights = 0;
  };
  std::vector<Done> done(static_cast<size_t>(stages));
  for (int64_t left = 3 * stages * microbatches; left > 0;) {
    const std::vector<Done> before = done;
    const auto at = [&](int64_t stage) { return before[static_cast<size_t>(stage)]; };
    const auto has_forward = [&](int64_t stage) { return at(stage).forwards < (stage == 0 ? microbatches : at(stage - 1).forwards); };
    const auto has_input = [&](int64_t stage) { return at(stage).inputs < (stage == stages - 1 ? at(stage).forwards : at(stage + 1).inputs); };
    const auto has_weight = [&](int64_t stage) { return at(stage).weights < at(stage).inputs; };
    for (RankOrder& order : orders) {
      const int64_t down = order.down, up = order.up;
      const bool has_room = at(down).forwards + at(up).forwards - at(down).weights - at(up).weights < stages;
      const auto add = [&](int64_t stage, ActionKind kind) {
        order.add(stage, {kind});
        Done& counts = done[static_cast<size_t>(stage)];
        ++(kind == forward ? counts.forwards : kind == input ? counts.inputs : counts.weights);
        --left;
      };
      if (has_room && has_forward(up)) add(up, forward);
      else if (has_input(up)) add(up, input);
      else if (has_input(down)) add(down, input);
      else if (has_room && has_forward(down)) add(down, forward);
      else if (has_weight(up)) add(up, weight);
      else if (has_weight(down)) add(down, weight);
    }
  }
}

}  // namespace

std::vector<std::vector<Action>> zero_bubble_v(int64_t ranks, int64_t microbatches) {
  std::vector<RankOrder> orders(static_cast<size_t>(ranks));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    RankOrder& order = orders[static_cast<size_t>(rank)];
    order.down = rank;
    order.up = 2 * ranks - 1 - rank;
    if (microbatches >= 2 * ranks - 1) add_full_pipe(order, rank, ranks, microbatches);
  }
  if (microbatches < 2 * ranks - 1) add_in_steps(orders, microbatches);
  std::vector<std::vector<Action>> actions;
  for (RankOrder& order : orders) actions.push_back(std::move(order.actions));
  return actions;
}

}  // namespace quire
