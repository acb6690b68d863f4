#include "parallel/context_tails.h"

#include <algorithm>

namespace quire {
namespace {

constexpr size_t most_partners = 8;  // whose heads a rank without any tail looks at

}  // namespace

PieceLists TailsAndHeads::deal(const TailsVariant& variant) {
  variant_ = variant;
  begin(variant.fine);
  for (int i = pool_.longest(); i >= 0 && (pool_.length(i) > variant.whole || pool_.cost(i) > cap_); i = pool_.longest()) {
    open_.push_back({pool_.document(i), 0, pool_.length(i)});
    pool_.remove(i);
  }
  const auto last = static_cast<size_t>(task_.ranks - 1);
  for (rank_ = 0; rank_ < last; ++rank_) fill_rank();
  return give_rest();
}

void TailsAndHeads::fill_rank() {
  begin_rank(variant_.eager);
  while (need_ > short_ && take_longest()) {
  }
}

/// The heaviest document left, whole or its tail. False where nothing is left.
bool TailsAndHeads::take_longest() {
  const size_t best = longest_open();
  const int pooled = pool_.longest();
  if (pooled >= 0 && (open_.empty() || pool_.length(pooled) > open_[best].end)) {
    const DocumentPiece piece{pool_.document(pooled), 0, pool_.length(pooled)};
    heads_.clear();
    if (!pieces_[rank_].empty() && take_documents()) return true;  // rather than begin another heavy one
    pool_.remove(pooled);
    if (piece.tokens() <= need_ + short_ && task_.cost_of(piece) + complete(need_ - piece.tokens(), true).cost <= room_) give(piece);
    else take_tail(piece);
    return true;
  }
  if (open_.empty()) return false;
  const DocumentPiece piece = open_[best];
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(best));
  take_tail(piece);
  return true;
}

/// The longest tail with which the rank can be completed, and what completes it.
void TailsAndHeads::take_tail(const DocumentPiece& from) {
  heads_.assign(1, from);
  int64_t tail = longest_tail(from, true);
  while (!open_.empty() && heads_.size() <= most_partners && tail < std::min(need_, from.tokens()) && (tail == 0 || heads_.size() == 1)) {
    add_partner();
    const int64_t longer = longest_tail(from, true);
    if (tail > 0 && longer * 100 <= tail * (100 + variant_.gain)) {
      open_.push_back(heads_.back());
      heads_.pop_back();
      break;
    }
    tail = longer;
  }
  // Whole documents first; then the tail is what they leave room for.
  const int64_t cost = task_.costs.of(from.end - tail, from.end);
  heads_.front().end = from.end - tail;
  need_ -= tail;
  room_ -= cost;
  take_documents();
  need_ += tail;
  room_ += cost;
  tail = longest_tail(from, false);
  if (const int64_t over = from.end % unit_; over > 0 && tail > 0 && tail + over - unit_ > 0 && tail < from.tokens()) tail += over - unit_;
  give({from.document, from.end - tail, from.end});
  heads_.front().end = from.end - tail;
  if (heads_.front().tokens() > 0) take_heads();
  for (const DocumentPiece& rest : heads_)
    if (rest.tokens() > 0) open_.push_back(rest);
  heads_.clear();
}

/// The document that begins lowest, of these the longest.
void TailsAndHeads::add_partner() {
  size_t best = 0;
  for (size_t k = 1; k < open_.size(); ++k)
    if (open_[k].begin != open_[best].begin ? open_[k].begin < open_[best].begin : open_[k].end > open_[best].end) best = k;
  heads_.push_back(open_[best]);
  open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(best));
}

/// The lowest place up to which heads hold so many tokens.
int64_t TailsAndHeads::level_of(int64_t tokens) const {
  if (heads_.empty()) return 0;
  int64_t low = heads_.front().begin, high = heads_.front().end;
  if (heads_.size() == 1) return std::min(low + tokens, high);
  for (const DocumentPiece& head : heads_) {
    low = std::min(low, head.begin);
    high = std::max(high, head.end);
  }
  while (low < high) {
    const int64_t level = (low + high) / 2;
    int64_t held = 0;
    for (const DocumentPiece& head : heads_) held += std::clamp<int64_t>(level - head.begin, 0, head.tokens());
    if (held >= tokens) high = level;
    else low = level + 1;
  }
  return low;
}

int64_t TailsAndHeads::cost_of_heads(int64_t tokens) const {
  if (tokens <= 0) return 0;
  const int64_t level = level_of(tokens);
  int64_t held = 0, cost = 0;
  for (const DocumentPiece& head : heads_) {
    const int64_t part = std::clamp<int64_t>(level - head.begin, 0, head.tokens());
    held += part;
    cost += task_.costs.of(head.begin, head.begin + part);
  }
  if (held < tokens) return DocumentPool::too_much;
  return cost - (held - tokens) * task_.costs.at(std::max<int64_t>(level - 1, 0));
}

TailsAndHeads::Completion TailsAndHeads::complete(int64_t tokens, bool from_pool) const {
  if (tokens <= 0) return {};
  int64_t all = 0;
  for (const DocumentPiece& head : heads_) all += head.tokens();
  int64_t low = std::max<int64_t>(0, tokens - (from_pool ? pool_.tokens() : 0)), high = std::min(tokens, all);
  if (low > high) return {DocumentPool::too_much, 0};
  while (low < high) {  // the first number of tokens from heads at which the next one is dearer than the pool's next one
    const int64_t heads = (low + high) / 2;
    const DocumentPool::Fill fill = pool_.cheapest(tokens - heads);
    const int64_t next = task_.costs.at(std::max<int64_t>(level_of(heads + 1) - 1, 0));
    if (fill.cost < DocumentPool::too_much && static_cast<__int128>(next) * fill.next_length >= static_cast<__int128>(fill.next_cost)) high = heads;
    else low = heads + 1;
  }
  return {cost_of_heads(low) + (low < tokens ? pool_.cheapest(tokens - low).cost : 0), low};
}

/// In tokens, a multiple of the unit or all of the piece: the longest tail with which the rank can be completed.
int64_t TailsAndHeads::longest_tail(const DocumentPiece& from, bool from_pool) {
  const int64_t most = std::max<int64_t>(0, std::min(need_, from.tokens()));  // documents may have overshot
  const auto fits = [&](int64_t tail) {
    heads_.front().end = from.end - tail;
    return task_.costs.of(from.end - tail, from.end) + complete(need_ - tail, from_pool).cost <= room_;
  };
  int64_t low = 0, high = most / unit_;
  while (low < high) {
    const int64_t units = (low + high + 1) / 2;
    if (fits(units * unit_)) low = units;
    else high = units - 1;
  }
  const int64_t tail = low == most / unit_ && fits(most) ? most : low * unit_;
  heads_.front().end = from.end;
  return tail;
}

/// The longest documents that leave room to finish; many at once where only short ones do. False where none was taken.
bool TailsAndHeads::take_documents() {
  const size_t before = pieces_[rank_].size();
  while (need_ > short_ && !pool_.empty()) {
    const int64_t share = need_ - complete(need_, true).heads;  // what documents are to make up
    if (share <= 0) break;
    int low = -1, high = pool_.last_of_at_most(need_ + short_);
    while (low < high) {
      const int i = (low + high + 1) / 2;
      if (pool_.cost(i) + complete(need_ - pool_.length(i), true).cost <= room_) low = i;
      else high = i - 1;
    }
    const int fitting = low < 0 ? -1 : pool_.at_most(low);
    const int64_t next = pool_.cheapest(share).next_length;
    if (fitting >= 0 && (pool_.length(fitting) > next || share / 4 <= next)) {
      give_whole(fitting);
      continue;
    }
    int shortest = pool_.shortest();
    int64_t taken = pool_.length(shortest);
    if (taken > share + short_) break;
    give_whole(shortest);
    while ((share - taken) / 4 > next && (shortest = pool_.shortest()) < pool_.size() && pool_.length(shortest) <= next) {
      taken += pool_.length(shortest);
      give_whole(shortest);
    }
  }
  return pieces_[rank_].size() > before;
}

/// What is missing, from heads: evenly up from the lowest.
void TailsAndHeads::take_heads() {
  if (need_ <= 0) return;
  const int64_t level = level_of(need_);
  for (DocumentPiece& head : heads_) {
    const int64_t part = std::min(need_, std::clamp<int64_t>(level - head.begin, 0, head.tokens()));
    if (part <= 0) continue;
    give({head.document, head.begin, head.begin + part});
    head.begin += part;
  }
}

}  // namespace quire
