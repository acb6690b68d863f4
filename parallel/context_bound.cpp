// The least traffic of any plan within the tolerances.
//
// Take a document of length L that can not stay whole, and the m ranks whose last tokens of it lie latest; let b be where the next rank's
// last range ends. Those m ranks hold all of [b, L), at most m x most tokens, and fill up to m x least tokens with others, which cost at
// least as much as the cheapest of the microbatch:
//     cost(b, L) + cheapest(m x least - (L - b)) <= m x cap    and    L - b <= m x most.
// The smallest such b, summed over m, bounds the traffic of this document, and documents add up. For one document and no tolerance it
// reads b >= L (1 - m / 2 ranks), which zigzag meets for every m.
#include <algorithm>

#include "parallel/context_cost.h"
#include "parallel/context_pieces.h"

namespace quire {
namespace {

/// The cheapest tokens of a microbatch: the first ones of all documents.
class CheapestTokens {
 public:
  CheapestTokens(const DocumentTable& documents, const TokenCosts& costs) : lengths_(documents.lengths), costs_(costs) {
    std::sort(lengths_.begin(), lengths_.end());
    for (const int64_t length : lengths_) {
      tokens_.push_back(tokens_.back() + static_cast<double>(length));
      cost_.push_back(cost_.back() + static_cast<double>(costs.until(length)));
    }
  }

  double operator()(double count) const {
    if (count <= 0) return 0;
    const size_t n = lengths_.size();
    size_t low = 0, high = n;  // the first i for which all documents before it, and the rest cut to its length, hold enough
    while (low < high) {
      const size_t i = (low + high) / 2;
      if (tokens_[i] + static_cast<double>(n - i) * static_cast<double>(lengths_[i]) >= count) high = i;
      else low = i + 1;
    }
    if (low == n) return cost_[n];
    // Some of the rest are cut at `whole` and some a token later.
    const double each = (count - tokens_[low]) / static_cast<double>(n - low);
    const auto whole = static_cast<int64_t>(each);
    const double until = static_cast<double>(costs_.until(whole)) + (each - static_cast<double>(whole)) * static_cast<double>(costs_.at(whole));
    return cost_[low] + static_cast<double>(n - low) * until;
  }

 private:
  std::vector<int64_t> lengths_;
  const TokenCosts& costs_;
  std::vector<double> tokens_{0}, cost_{0};
};

}  // namespace

ContextBound context_lower_bound(std::span<const int64_t> lengths, int64_t ranks, const ContextCosts& costs) {
  check_context_request(ranks, ContextLayout::balanced, ContextExchange::ring, costs);
  const DocumentTable documents(lengths);
  const TokenCosts token_costs(costs, documents.tokens);
  const CheapestTokens cheapest(documents, token_costs);
  double total_cost = 0;
  for (const int64_t length : documents.lengths) total_cost += static_cast<double>(token_costs.until(length));
  const double mean = static_cast<double>(documents.tokens) / static_cast<double>(ranks);
  const auto slack = static_cast<double>(token_slack(documents.tokens, ranks, costs));
  const double cap = total_cost / static_cast<double>(ranks) * (1 + static_cast<double>(costs.cost_tolerance) / 1000);
  const double most = mean + slack, least = mean - slack;

  ContextBound bound;
  for (const int64_t whole : documents.lengths) {
    const auto length = static_cast<double>(whole);
    if (length <= most && static_cast<double>(token_costs.until(whole)) + cheapest(least - length) <= cap) continue;
    bound.busiest = std::max(bound.busiest, length - most);
    for (int64_t m = 1; m < ranks; ++m) {
      const auto group = static_cast<double>(m);
      const auto fits = [&](int64_t b) {
        const double tail = static_cast<double>(whole - b);
        return static_cast<double>(token_costs.of(b, whole)) + cheapest(group * least - tail) <= group * cap;
      };
      int64_t low = std::max<int64_t>(0, whole - static_cast<int64_t>(group * most) - 1), high = whole;
      if (!fits(low))
        while (low + 1 < high) {
          const int64_t middle = (low + high) / 2;
          (fits(middle) ? high : low) = middle;
        }
      if (low <= 0) break;
      bound.total += static_cast<double>(low);
    }
  }
  return bound;
}

}  // namespace quire
