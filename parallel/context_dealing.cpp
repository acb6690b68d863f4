#include "parallel/context_dealing.h"

namespace quire {

void Dealing::begin(int fine) {
  pool_ = all_;
  unit_ = std::max<int64_t>(1, task_.unit >> fine);
  pieces_.assign(static_cast<size_t>(task_.ranks), {});
  open_.clear();
  tokens_left_ = task_.documents.tokens;
  cost_left_ = task_.total_cost;
}

int64_t Dealing::begin_rank(int64_t eager) {
  const auto left = task_.ranks - static_cast<int64_t>(rank_);
  // Documents placed whole may overshoot by half the slack; aiming as low as the limit allows lets later ranks win it back.
  need_ = std::clamp((tokens_left_ + left / 2) / left, task_.shard - task_.slack, task_.shard + task_.slack / 2);
  short_ = std::min(task_.slack / 2, need_ - (task_.shard - task_.slack));
  const int64_t mean = cost_left_ / left, tolerance = task_.cost_cap - task_.mean_cost;
  room_ = std::min(cap_, mean + static_cast<int64_t>(static_cast<__int128>(tolerance) * eager / 1000));
  return left;
}

void Dealing::give(const DocumentPiece& piece) {
  if (piece.tokens() <= 0) return;
  const int64_t cost = task_.cost_of(piece);
  pieces_[rank_].push_back(piece);
  need_ -= piece.tokens();
  room_ -= cost;
  tokens_left_ -= piece.tokens();
  cost_left_ -= cost;
}

void Dealing::give_whole(int pooled) {
  give({pool_.document(pooled), 0, pool_.length(pooled)});
  pool_.remove(pooled);
}

size_t Dealing::longest_open() const {
  size_t best = 0;
  for (size_t k = 1; k < open_.size(); ++k)
    if (open_[k].end > open_[best].end) best = k;
  return best;
}

PieceLists Dealing::give_rest() {
  for (const DocumentPiece& piece : open_) give(piece);
  for (int i = pool_.longest(); i >= 0; i = pool_.longest()) give_whole(i);
  return std::move(pieces_);
}

}  // namespace quire
