#include "bench/common.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "ops/cpu/instruction_set.h"
#include "run/machine.h"
#include "runtime/error.h"
#include "runtime/random.h"

namespace quire::bench {

std::string machine_name() { return fmt::format("{}, {}", processor_name(), instruction_set(Rank())); }

std::string today() {
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  return date;
}

Tensor random_numbers(Rank& rank, int64_t count, uint64_t stream) {
  std::vector<float> all(static_cast<size_t>(count));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(random_bits(3, stream, 0, i) >> 40) * 0x1p-23f - 1;
  return Tensor::from<float>(rank, {count}, all);
}

void check_names(const char* option, const std::vector<std::string>& given, const std::vector<std::string>& known) {
  const std::string allowed = fmt::format("{}", fmt::join(known, ", "));
  if (given.empty()) fail<ConfigError>("bench", "{} is empty; allowed: {}", option, allowed);
  for (const std::string& name : given)
    if (std::ranges::find(known, name) == known.end()) {
      const std::string near = nearest(name, known);
      fail<ConfigError>("bench", "{} has '{}'; allowed: {}{}", option, name, allowed, near.empty() ? "" : "; nearest: " + near);
    }
}

}  // namespace quire::bench
