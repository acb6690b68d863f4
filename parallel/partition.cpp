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

/// The cost of the dearest stage, at its least. One stage more at a time: what is left costs the less the later it begins, so a stage ends where it costs as much as that.
double least_dearest(const std::vector<double>& before, size_t stages) {
  const size_t n = before.size() - 1;
  std::vector<double> dearest(n + 1), rest;
  for (size_t i = 0; i < n; ++i) dearest[i] = before[n] - before[i];
  for (size_t k = 2; k <= stages; ++k) {
    rest = dearest;
    for (size_t i = 0; i + k <= n; ++i) {
      const size_t most = n - (k - 1);  // each later stage has a layer
      size_t low = i + 1, high = most;
      while (low < high) {
        const size_t middle = (low + high) / 2;
        if (before[middle] - before[i] >= rest[middle]) high = middle;
        else low = middle + 1;
      }
      dearest[i] = std::max(before[low] - before[i], rest[low]);
      if (low > i + 1) dearest[i] = std::min(dearest[i], rest[low - 1]);
    }
  }
  return dearest[0];
}

double squares(double cost, double rest) { return cost * cost + rest; }

/// best[k][i]: the least sum of squared costs over the ways to cut layers [i, n) into k stages of at most `limit` each; infinite where there is none.
std::vector<std::vector<double>> best_cuts(const std::vector<double>& before, size_t stages, double limit) {
  const size_t n = before.size() - 1;
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(n + 1, infinite));
  best[0][n] = 0;
  size_t earliest = n;  // from where on the rest can be cut into k - 1 stages
  for (size_t k = 1; k <= stages; ++k) {
    size_t first = n;
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = std::max(i + 1, earliest); j <= n; ++j) {
        const double cost = before[j] - before[i];
        if (cost > limit || squares(cost, 0) > best[k][i]) break;  // more layers cost more
        best[k][i] = std::min(best[k][i], squares(cost, best[k - 1][j]));
      }
      if (best[k][i] < infinite) first = std::min(first, i);
    }
    earliest = first;
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
  const size_t count = static_cast<size_t>(stages);
  const double limit = least_dearest(before, count) * slack;
  const std::vector<std::vector<double>> best = best_cuts(before, count, limit);

  // Where cuts are equally good the earlier stage gets less: it keeps more microbatches in flight.
  std::vector<int64_t> first = {0};
  size_t i = 0;
  for (size_t k = count; k > 0; --k) {
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
