#include "parallel/context_peel.h"

#include <algorithm>
#include <utility>

namespace quire {

PieceLists PeelAndFill::deal(const PeelVariant& variant) {
  variant_ = variant;
  random_.seed(variant.seed);
  begin(variant.fine);
  residue_.clear();
  const auto last = static_cast<size_t>(task_.ranks - 1);
  for (rank_ = 0; rank_ < last; ++rank_) fill_rank();
  for (const DocumentPiece& piece : residue_) give(piece);
  return give_rest();
}

bool PeelAndFill::passes_over() { return variant_.skip > 0 && (random_() >> 32) * 100 < variant_.skip << 32; }

int PeelAndFill::another_for(int pooled) {
  if (pooled < 0 || !passes_over()) return pooled;
  const int shorter = pool_.at_most(pooled - 1);
  return shorter >= 0 ? shorter : pooled;
}

void PeelAndFill::drop_empty() {
  std::erase_if(open_, [](const DocumentPiece& piece) { return piece.tokens() <= 0; });
}

void PeelAndFill::fill_rank() {
  const int64_t left = begin_rank(variant_.eager);
  floor_ = static_cast<int64_t>(std::max<__int128>(cost_left_ - static_cast<__int128>(left - 1) * cap_, -DocumentPool::too_much));
  own_.reset();
  const int64_t start = room_;
  for (const DocumentPiece& piece : std::exchange(residue_, {})) give(piece);
  take_longest();
  complete();
  // A document ended here and nothing whole fits: share the next long one rather than use up its cheap head.
  const int64_t outside = task_.costs.outside_attention() * need_;
  if (!own_ && need_ > task_.shard / 8 && 2 * (task_.costs.until(need_) - outside) < room_ - outside) {
    take_longest();
    complete();
  }
  floor_ -= start - room_;
  top_up();
}

void PeelAndFill::take_longest() {
  const size_t best = longest_open();
  const int pooled = another_for(pool_.longest());
  const bool from_pool = pooled >= 0 && (open_.empty() || pool_.length(pooled) > open_[best].end);
  if (!from_pool && open_.empty()) return;
  const DocumentPiece piece = from_pool ? DocumentPiece{pool_.document(pooled), 0, pool_.length(pooled)} : open_[best];
  if (from_pool) pool_.remove(pooled);
  else open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(best));
  if (piece.tokens() <= need_ + task_.slack / 2 && task_.cost_of(piece) + cheapest(need_ - piece.tokens()) <= room_) give(piece);
  else peel(piece);
}

/// The cheapest way to add so many tokens to a tail: some from the head of the same document, which begins at `begin` and may go up to
/// `limit`, the rest from short ones.
PeelAndFill::Completion PeelAndFill::complete_tail(int64_t begin, int64_t limit, int64_t tokens) const {
  if (tokens <= 0) return {};
  const int64_t most = std::min(tokens, limit - begin);
  int64_t low = std::max<int64_t>(0, tokens - pool_.tokens()), high = most;
  if (low > high) return {DocumentPool::too_much, 0};
  while (low < high) {  // the first length of the head at which its next token is dearer than the pool's next one
    const int64_t head = (low + high) / 2;
    const DocumentPool::Fill fill = pool_.cheapest(tokens - head);
    const bool dearer = fill.cost < DocumentPool::too_much &&
                        static_cast<__int128>(task_.costs.at(begin + head)) * fill.next_length >= static_cast<__int128>(fill.next_cost);
    if (dearer) high = head;
    else low = head + 1;
  }
  if (low < tokens) low = std::min(most, (low + unit_ / 2) / unit_ * unit_);
  return {task_.costs.of(begin, begin + low) + cheapest(tokens - low), low};
}

/// In tokens, a multiple of the unit: the longest tail with which the rank can be completed from the same document and the pool.
int64_t PeelAndFill::longest_tail(const DocumentPiece& from) const {
  int64_t low = 0, high = std::min(need_, from.tokens()) / unit_;
  while (low < high) {
    const int64_t units = (low + high + 1) / 2, cut = from.end - units * unit_;
    const bool fits = task_.costs.of(cut, from.end) + complete_tail(from.begin, cut, need_ - units * unit_).cost <= room_;
    if (fits) low = units;
    else high = units - 1;
  }
  return low * unit_;
}

void PeelAndFill::peel(DocumentPiece from) {
  int64_t tail = longest_tail(from);
  const int64_t over = from.end % unit_;
  if (over > 0 && tail + over - unit_ > 0 && tail > 0) tail += over - unit_;  // the cut falls on a multiple
  int64_t head = tail > 0 ? complete_tail(from.begin, from.end - tail, need_ - tail).head : 0;
  const std::optional<Partner> partner = variant_.mix || tail == 0 ? find_partner(from, tail) : std::nullopt;
  if (partner) {
    tail = partner->tail;
    head = 0;
  }
  give({from.document, from.end - tail, from.end});
  from.end -= tail;
  if (partner) give_head(*partner);
  else give({from.document, from.begin, from.begin + head});
  from.begin += head;
  drop_empty();
  if (from.tokens() <= 0) return;
  own_ = from.document;
  open_.push_back(from);
}

/// The long document with the cheapest head, where that lets the tail be half as long again.
std::optional<PeelAndFill::Partner> PeelAndFill::find_partner(const DocumentPiece& from, int64_t tail) {
  Partner partner;
  for (size_t k = 0; k < open_.size(); ++k)
    if (!partner.open || open_[k].begin < open_[*partner.open].begin) partner.open = k;
  if (partner.open) partner.piece = open_[*partner.open];
  if (const int i = pool_.longest(); i >= 0 && (!partner.open || partner.piece.begin > 0) && pool_.length(i) > unit_) {
    partner.open.reset();
    partner.pooled = i;
    partner.piece = {pool_.document(i), 0, pool_.length(i)};
  }
  if (!partner.open && partner.pooled < 0) return std::nullopt;
  const auto fits = [&](int64_t units) {
    const int64_t cut = from.end - units * unit_, rest = need_ - units * unit_;
    return rest <= partner.piece.tokens() && task_.costs.of(cut, from.end) + task_.costs.of(partner.piece.begin, partner.piece.begin + rest) <= room_;
  };
  int64_t low = 0, high = std::min(need_, from.tokens()) / unit_;
  while (low < high) {
    const int64_t units = (low + high + 1) / 2;
    if (fits(units)) low = units;
    else high = units - 1;
  }
  partner.tail = low * unit_;
  if (low == 0 || !fits(low) || partner.tail <= tail + tail / 2) return std::nullopt;
  return partner;
}

void PeelAndFill::give_head(const Partner& partner) {
  DocumentPiece rest = partner.piece;
  const int64_t tokens = std::min(need_, rest.tokens());
  give({rest.document, rest.begin, rest.begin + tokens});
  rest.begin += tokens;
  if (partner.open) {
    open_[*partner.open] = rest;
  } else {
    pool_.remove(partner.pooled);
    open_.push_back(rest);
  }
}

/// The longest document of the pool, up to `longest`, that leaves room to finish with the cheapest tokens; -1: none.
int PeelAndFill::longest_that_fits(int longest) const {
  int low = -1, high = longest;
  while (low < high) {
    const int i = (low + high + 1) / 2;
    if (pool_.cost(i) + cheapest(need_ - pool_.length(i)) <= room_) low = i;
    else high = i - 1;
  }
  return low;
}

void PeelAndFill::complete() {
  while (need_ > 0 && !pool_.empty()) {
    const int longest = pool_.last_of_at_most(need_ + task_.slack / 2);
    if (longest < 0) break;
    const int fitting = longest_that_fits(longest), i = another_for(fitting < 0 ? -1 : pool_.at_most(fitting));
    const int64_t next = pool_.cheapest(need_).next_length;
    if (i >= 0 && (pool_.length(i) > next || need_ / 4 <= next)) {
      give_whole(i);
      continue;
    }
    // Only short documents are left to take: many at once, and the last few of them chosen for a good fit.
    int shortest = pool_.shortest();
    if (pool_.length(shortest) > need_ + task_.slack / 2) break;
    give_whole(shortest);
    while (need_ / 4 > next && (shortest = pool_.shortest()) < pool_.size() && pool_.length(shortest) <= next) give_whole(shortest);
  }
}

/// More of the split document that this rank reads anyway: its tail where there is room, else its head.
void PeelAndFill::top_up_from_own() {
  for (DocumentPiece& piece : open_) {
    if (piece.document != own_ || need_ <= 0) continue;
    const int64_t tokens = std::min(need_, piece.tokens());
    if (task_.costs.of(piece.end - tokens, piece.end) <= room_) {
      give({piece.document, piece.end - tokens, piece.end});
      piece.end -= tokens;
    } else {
      give({piece.document, piece.begin, piece.begin + tokens});
      piece.begin += tokens;
    }
  }
  drop_empty();
}

/// The earliest place of a document from which the missing tokens cost what has to be taken.
int64_t PeelAndFill::first_reaching_floor(int64_t longest) const {
  int64_t low = 0, high = std::max<int64_t>(0, longest - need_);
  while (low < high) {
    const int64_t place = (low + high) / 2;
    if (task_.costs.of(place, place + need_) >= floor_) high = place;
    else low = place + 1;
  }
  return low;
}

void PeelAndFill::cut_from_pool(int pooled, int64_t first) {
  const int64_t length = pool_.length(pooled), tokens = std::min(need_, length), begin = std::min(first, length - tokens);
  const size_t document = pool_.document(pooled);
  pool_.remove(pooled);
  floor_ -= task_.costs.of(begin, begin + tokens);
  give({document, begin, begin + tokens});
  for (const DocumentPiece& rest : {DocumentPiece{document, 0, begin}, DocumentPiece{document, begin + tokens, length}})
    if (rest.tokens() > 0) (length > task_.shard / 2 ? open_ : residue_).push_back(rest);
}

/// Nothing fits whole any more: tokens that are still missing are cut off something.
void PeelAndFill::top_up() {
  top_up_from_own();
  if (need_ <= short_ && floor_ <= 0) return;
  while (need_ > 0 && (!pool_.empty() || !open_.empty())) {
    if (const int longest = pool_.longest(); longest >= 0) {
      const int64_t first = first_reaching_floor(pool_.length(longest));
      const int i = pool_.first_of_at_least(first + need_);
      cut_from_pool(i < pool_.size() ? i : longest, first);
      continue;
    }
    DocumentPiece& piece = open_.back();
    const DocumentPiece head{piece.document, piece.begin, piece.begin + std::min(need_, piece.tokens())};
    floor_ -= task_.cost_of(head);
    give(head);
    piece.begin = head.end;
    drop_empty();
  }
}

}  // namespace quire
