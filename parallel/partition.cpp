#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel/schedule.h"
#include "runtime/error.h"

namespace quire {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
/// Sums of the same costs in another order differ in their last bits; that must not decide.
constexpr double slack = 1 + 1e-9;

/// best[k][i]: the least of what `combine(cost of one stage, rest)` gives over the ways to cut layers [i, n) into k stages, each costing at most
/// `limit`.
template <class Combine>
std::vector<std::vector<double>> best_cuts(const std::vector<double>& before, int64_t stages, double limit, const Combine& combine) {
  const size_t n = before.size() - 1;
  std::vector<std::vector<double>> best(static_cast<size_t>(stages) + 1, std::vector<double>(n + 1, infinite));
  best[0][n] = 0;
  for (size_t k = 1; k < best.size(); ++k)
    for (size_t i = 0; i < n; ++i)
      for (size_t j = k == 1 ? n : i + 1; j <= n; ++j) {  // the last stage has all that is left
        const double cost = before[j] - before[i];
        if (cost > limit || combine(cost, 0) > best[k][i]) break;  // more layers cost more
        if (best[k - 1][j] < infinite) best[k][i] = std::min(best[k][i], combine(cost, best[k - 1][j]));
      }
  return best;
}

}  // namespace

std::vector<int64_t> partition_layers(const std::vector<double>& costs, int64_t stages) {
  const int64_t layers = static_cast<int64_t>(costs.size());
  if (stages < 1) fail<ConfigError>("pipeline stages", "{} stages, 1 or more are needed", stages);
  if (stages > layers)
    fail<ConfigError>("pipeline stages",
                      "{} stages (distributed.pp x distributed.pp_chunks) for {} layers: every stage needs one; take {} stages or fewer", stages,
                      layers, layers);
  std::vector<double> before(costs.size() + 1, 0);
  for (size_t i = 0; i < costs.size(); ++i) {
    if (!std::isfinite(costs[i]) || costs[i] < 0)
      fail<ConfigError>("pipeline stages", "layer {} costs {}; costs are finite and not negative", i, costs[i]);
    before[i + 1] = before[i] + costs[i];
  }
  const auto larger = [](double cost, double rest) { return std::max(cost, rest); };
  const auto squares = [](double cost, double rest) { return cost * cost + rest; };
  const double limit = best_cuts(before, stages, infinite, larger)[static_cast<size_t>(stages)][0] * slack;
  const std::vector<std::vector<double>> best = best_cuts(before, stages, limit, squares);

  // Where cuts are equally good the earlier stage gets less: it keeps more microbatches in flight.
  std::vector<int64_t> first = {0};
  size_t i = 0;
  for (size_t k = static_cast<size_t>(stages); k > 0; --k) {
    size_t j = i + 1;
    const auto good = [&] {
      const double cost = before[j] - before[i];
      return best[k - 1][j] < infinite && cost <= limit && squares(cost, best[k - 1][j]) <= best[k][i] * slack;
    };
    while (!good()) ++j;
    first.push_back(static_cast<int64_t>(j));
    i = j;
  }
  return first;
}

}  // namespace quire
