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

/// best[k][i]: the least sum of squared costs over the ways to cut layers [i, n) into k stages of at most `limit` each. Infinite where there is none, or where no way to cut
/// the layers before i into the other stages is that cheap.
std::vector<std::vector<double>> best_cuts(const std::vector<double>& before, size_t stages, double limit) {
  const size_t n = before.size() - 1;
  // Between which layers the last k stages can begin: those from there on hold as much as they may, and those before it.
  std::vector<size_t> earliest(stages + 1, n), latest(stages + 1, n);
  for (size_t k = 1; k <= stages; ++k)
    for (earliest[k] = earliest[k - 1]; earliest[k] > 0 && before[earliest[k - 1]] - before[earliest[k] - 1] <= limit;) --earliest[k];
  latest[stages] = 0;
  for (size_t k = stages - 1; k > 0; --k)
    for (latest[k] = latest[k + 1]; latest[k] < n - k && before[latest[k] + 1] - before[latest[k + 1]] <= limit;) ++latest[k];

  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(n + 1, infinite));
  best[0][n] = 0;
  for (size_t k = 1; k <= stages; ++k)
    for (size_t i = earliest[k]; i <= latest[k]; ++i)
      for (size_t j = std::max(i + 1, earliest[k - 1]); j <= latest[k - 1]; ++j) {
        const double cost = before[j] - before[i];
        if (cost > limit || squares(cost, 0) > best[k][i]) break;  // more layers cost more
        best[k][i] = std::min(best[k][i], squares(cost, best[k - 1][j]));
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
