// `planted_matmul KERNEL BUG` multiplies matrices of bf16 by that kernel on an emulated device, with the bug of that name in it, and on the CPU, in several orders
// of threads. Exit 0 and "right" where all agree, else what was seen and 3.
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "emulation.h"
#include "ops/matmul.h"
#include "runtime/error.h"

namespace {

using namespace quire;

constexpr int64_t m = 17, n = 20, k = 400;

std::vector<float> product(RankOptions options, const std::vector<bf16>& a, const std::vector<bf16>& b) {
  Rank rank(std::move(options));
  const Tensor c = Tensor::empty(rank, {m, n}, DType::f32);
  matmul(rank, Tensor::from<bf16>(rank, {m, k}, a), Transpose::no, Tensor::from<bf16>(rank, {n, k}, b), Transpose::yes, c);
  return c.to_vector<float>();
}

/// "right", or what is wrong.
std::string outcome(const std::string& kernel, const std::vector<bf16>& a, const std::vector<bf16>& b, const std::vector<float>& expected) {
  RankOptions options{.device = {DeviceKind::cuda, 0}, .poison = true};
  options.kernels["matmul"] = kernel;
  try {
    const std::vector<float> seen = product(options, a, b);
    for (size_t i = 0; i < seen.size(); ++i)
      if (!(std::abs(seen[i] - expected[i]) <= 1e-3f)) return "wrong";
    return "right";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::string kernel = count > 1 ? arguments[1] : "mma", bug = count > 2 ? arguments[2] : "none";
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  std::vector<bf16> a(m * k), b(n * k);
  for (bf16& x : a) x = static_cast<bf16>(normal(random));
  for (bf16& x : b) x = static_cast<bf16>(normal(random));
  const std::vector<float> expected = product({}, a, b);
  std::string shown;
  for (const uint64_t seed : {1, 2, 3}) {
    emulation::order(emulation::Order::random, seed);
    const emulation::Planted planted(bug.c_str());
    if (const std::string one = outcome(kernel, a, b, expected); one != "right") shown += one + "\n";
    emulation::recover();
  }
  std::printf("%s", shown.empty() ? "right\n" : shown.c_str());
  return shown.empty() ? 0 : 3;
}
