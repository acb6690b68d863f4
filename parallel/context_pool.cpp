#include "parallel/context_pool.h"

#include <algorithm>
#include <numeric>

namespace quire {

DocumentPool::DocumentPool(const std::vector<int64_t>& lengths, const std::vector<int64_t>& costs)
    : documents_(lengths.size()), token_sums_(lengths.size() + 1, 0), cost_sums_(token_sums_), below_(lengths.size() + 1), above_(below_) {
  std::iota(documents_.begin(), documents_.end(), size_t{0});
  std::stable_sort(documents_.begin(), documents_.end(), [&](size_t a, size_t b) { return lengths[a] < lengths[b]; });
  std::iota(below_.begin(), below_.end(), 0);
  std::iota(above_.begin(), above_.end(), 0);
  for (const size_t document : documents_) {
    lengths_.push_back(lengths[document]);
    costs_.push_back(costs[document]);
    tokens_ += lengths[document];
  }
  for (int i = 1; i <= size(); ++i) {
    token_sums_[static_cast<size_t>(i)] += length(i - 1);
    cost_sums_[static_cast<size_t>(i)] += cost(i - 1);
    if (const int up = i + (i & -i); up <= size()) {
      token_sums_[static_cast<size_t>(up)] += token_sums_[static_cast<size_t>(i)];
      cost_sums_[static_cast<size_t>(up)] += cost_sums_[static_cast<size_t>(i)];
    }
  }
  while (2 * top_ <= size()) top_ *= 2;
}

int DocumentPool::find(std::vector<int>& links, int i) {
  auto at = static_cast<size_t>(i);
  while (links[at] != static_cast<int>(at)) {
    links[at] = links[static_cast<size_t>(links[at])];
    at = static_cast<size_t>(links[at]);
  }
  return static_cast<int>(at);
}

int DocumentPool::first_of_at_least(int64_t length) {
  return at_least(static_cast<int>(std::lower_bound(lengths_.begin(), lengths_.end(), length) - lengths_.begin()));
}

int DocumentPool::last_of_at_most(int64_t length) {
  return at_most(static_cast<int>(std::upper_bound(lengths_.begin(), lengths_.end(), length) - lengths_.begin()) - 1);
}

void DocumentPool::remove(int i) {
  for (int k = i + 1; k <= size(); k += k & -k) {
    token_sums_[static_cast<size_t>(k)] -= length(i);
    cost_sums_[static_cast<size_t>(k)] -= cost(i);
  }
  below_[static_cast<size_t>(i) + 1] = i;
  above_[static_cast<size_t>(i)] = i + 1;
  tokens_ -= length(i);
}

DocumentPool::Fill DocumentPool::cheapest(int64_t tokens) const {
  if (tokens <= 0) return {};
  if (tokens > tokens_) return {too_much, std::numeric_limits<int64_t>::max(), too_much};
  int at = 0;
  int64_t taken = 0, cost = 0;
  for (int step = top_; step > 0; step /= 2) {
    if (at + step > size() || taken + token_sums_[static_cast<size_t>(at + step)] > tokens) continue;
    at += step;
    taken += token_sums_[static_cast<size_t>(at)];
    cost += cost_sums_[static_cast<size_t>(at)];
  }
  if (at == size()) return {cost, length(size() - 1), this->cost(size() - 1)};
  int64_t product;
  if (!__builtin_mul_overflow(this->cost(at), tokens - taken, &product)) return {cost + product / length(at), length(at), this->cost(at)};
  return {cost + static_cast<int64_t>(static_cast<__int128>(this->cost(at)) * (tokens - taken) / length(at)), length(at), this->cost(at)};
}

}  // namespace quire
