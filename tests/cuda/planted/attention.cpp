// `planted_attention NAME` computes attention in bf16 on an emulated device, with the bug of that name in its kernels, and on the CPU. For each head size it says
// whether they agree; exit 0 and "right" where all do, else 3.
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "emulation.h"
#include "ops/attention.h"
#include "runtime/error.h"

namespace {

using namespace quire;

std::vector<bf16> random_values(std::mt19937_64& random, int64_t count) {
  std::normal_distribution<float> normal(0, 1.5f);
  std::vector<bf16> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<bf16>(normal(random)));
  return values;
}

struct Problem {
  int64_t tokens, head_dim;
  std::vector<bf16> q, k, v;
  /// out and lse.
  std::pair<std::vector<float>, std::vector<float>> on(Rank& rank) const {
    const DocumentRuns runs = shared_runs(Documents::from_lengths(std::vector<int64_t>{40, tokens - 40}));
    const auto tensor = [&](const std::vector<bf16>& values) { return Tensor::from<bf16>(rank, {tokens, head_dim}, values); };
    const AttentionPartial result = attention_partial(rank, tensor(q), tensor(k), tensor(v), runs, runs, {.heads = 1, .kv_heads = 1, .head_dim = head_dim});
    return {result.out.to_vector<float>(), result.lse.to_vector<float>()};
  }
};

bool close(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= 0.05f)) return false;
  return true;
}

/// "right", or what is wrong.
std::string outcome(const Problem& problem) {
  Rank host;
  const auto [out, lse] = problem.on(host);
  try {
    Rank device(RankOptions{.device = {DeviceKind::cuda, 0}, .poison = true});
    const auto [device_out, device_lse] = problem.on(device);
    return close(device_out, out) && close(device_lse, lse) ? "right" : "wrong";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::string bug = count > 1 ? arguments[1] : "none";
  std::mt19937_64 random(5);
  std::string shown;
  for (const int64_t head_dim : {64, 128}) {
    const Problem problem{150, head_dim, random_values(random, 150 * head_dim), random_values(random, 150 * head_dim), random_values(random, 150 * head_dim)};
    emulation::order(emulation::Order::random, static_cast<uint64_t>(head_dim));
    const emulation::Planted planted(bug.c_str());
    const std::string one = outcome(problem);
    if (one != "right") shown += std::to_string(head_dim) + ": " + one + "\n";
    emulation::recover();
  }
  std::printf("%s", shown.empty() ? "right\n" : shown.c_str());
  return shown.empty() ? 0 : 3;
}
