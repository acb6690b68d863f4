// Ways to deal documents out that cut them as one row, or each by itself.
#include <algorithm>

#include "parallel/context_balance.h"

namespace quire {

DocumentRow::DocumentRow(const BalanceTask& task, std::vector<size_t> order) : task_(task), order_(std::move(order)), starts_{0}, costs_{0} {
  for (const size_t document : order_) {
    starts_.push_back(starts_.back() + task.documents.lengths[document]);
    costs_.push_back(costs_.back() + task.document_costs[document]);
  }
}

size_t DocumentRow::place(int64_t token) const {
  return static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), token) - starts_.begin()) - 1;
}

int64_t DocumentRow::cost_until(int64_t token) const {
  const size_t i = place(token);
  return costs_[i] + task_.costs.until(token - starts_[i]);
}

void DocumentRow::append(int64_t begin, int64_t end, std::vector<DocumentPiece>& out) const {
  for (size_t i = place(begin); i < order_.size() && starts_[i] < end; ++i)
    if (const int64_t first = std::max(begin, starts_[i]), last = std::min(end, starts_[i + 1]); first < last)
      out.push_back({order_[i], first - starts_[i], last - starts_[i]});
}

PieceLists DocumentRow::zigzag() const {
  PieceLists pieces(static_cast<size_t>(task_.ranks));
  const ShardList shards = zigzag_shards(task_.documents.tokens, task_.ranks);
  for (size_t rank = 0; rank < shards.size(); ++rank)
    for (const TokenRange& range : shards[rank]) append(range.begin, range.end, pieces[rank]);
  return pieces;
}

PieceLists DocumentRow::by_cost() const {
  PieceLists pieces(static_cast<size_t>(task_.ranks));
  int64_t begin = 0;
  for (int64_t rank = 0; rank < task_.ranks; ++rank) {
    const int64_t end = rank + 1 < task_.ranks ? cut(begin, task_.ranks - rank) : task_.documents.tokens;
    append(begin, end, pieces[static_cast<size_t>(rank)]);
    begin = end;
  }
  return pieces;
}

/// Where the rank ends that begins at `begin`, with `left` ranks to come, itself included.
int64_t DocumentRow::cut(int64_t begin, int64_t left) const {
  const int64_t tokens = task_.documents.tokens;
  const int64_t earliest = std::max(begin + task_.least_tokens, tokens - (left - 1) * task_.most_tokens);
  const int64_t latest = std::max(earliest, std::min(begin + task_.most_tokens, tokens - (left - 1) * task_.least_tokens));
  const int64_t before = cost_until(begin), target = before + (task_.total_cost - before) / left;
  int64_t low = earliest, high = latest;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (cost_until(middle) >= target) high = middle;
    else low = middle + 1;
  }
  const size_t i = place(low);
  // A document that ends near enough is not cut at all.
  const auto allowed = [&](int64_t end) {
    return end >= earliest && end <= latest && cost_until(end) - before <= task_.cost_cap &&
           task_.total_cost - cost_until(end) <= static_cast<__int128>(left - 1) * task_.cost_cap;
  };
  const int64_t behind = i + 1 < starts_.size() ? starts_[i + 1] : tokens;
  if (allowed(starts_[i]) && (low - starts_[i] <= behind - low || !allowed(behind))) return starts_[i];
  if (allowed(behind)) return behind;
  const int64_t even = starts_[i] + (low - starts_[i] + task_.unit / 2) / task_.unit * task_.unit;
  return even >= earliest && even <= latest && even < behind ? even : low;
}

PieceLists zigzag_of_every_document(const BalanceTask& task) {
  PieceLists pieces(static_cast<size_t>(task.ranks));
  const int64_t parts = 2 * task.ranks;
  int64_t turn = 0;
  for (size_t d = 0; d < task.documents.size(); ++d) {
    const int64_t length = task.documents.lengths[d];
    turn += length % parts;  // the longer parts go round
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = length * part / parts, end = length * (part + 1) / parts;
      if (begin < end) pieces[static_cast<size_t>((std::min(part, parts - 1 - part) + turn) % task.ranks)].push_back({d, begin, end});
    }
  }
  return pieces;
}

}  // namespace quire
