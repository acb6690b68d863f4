#include "ops/cpu/instruction_set.h"

#include <algorithm>
#include <cctype>

#include "ops/cpu/targets.h"
#include "runtime/error.h"

namespace quire {
namespace {

struct InstructionSet {
  std::string name;
  int64_t target;
};

std::string name_of_target(int64_t target) {
  if (target == HWY_SCALAR || target == HWY_EMU128) return "portable";
  if (target == HWY_AVX3) return "avx512";
  if (target == HWY_AVX2) return "avx2";
  if (target == HWY_NEON) return "neon";
  if (target == int64_t{1} << 14) return "sse";  // SSE2, which Highway 1.0 does not know
  std::string name = hwy::TargetName(target);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

/// Best first: Highway gives better targets lower bits. Constant facts of machine and build.
const std::vector<InstructionSet>& known() {
  static const std::vector<InstructionSet> list = [] {
    std::vector<InstructionSet> result;
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) result.push_back({name_of_target(target), target});
    if (result.empty()) result.push_back({name_of_target(HWY_STATIC_TARGET), HWY_STATIC_TARGET});
    return result;
  }();
  return list;
}

const InstructionSet& chosen(const Rank& rank) {
  const std::string& wanted = rank.options().instruction_set;
  if (wanted.empty()) return known().front();
  for (const InstructionSet& each : known())
    if (each.name == wanted) return each;
  std::string all;
  for (const InstructionSet& each : known()) all += (all.empty() ? "'" : ", '") + each.name + "'";
  const std::string near = nearest(wanted, instruction_sets());
  fail<ConfigError>("instruction set", "'{}' can not run here; this build and machine have {}{}", wanted, all,
                    near.empty() ? "" : "; did you mean '" + near + "'?");
}

}  // namespace

const std::vector<std::string>& instruction_sets() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const InstructionSet& each : known()) result.push_back(each.name);
    return result;
  }();
  return names;
}

std::string_view instruction_set(const Rank& rank) { return chosen(rank).name; }
int64_t highway_target(const Rank& rank) { return chosen(rank).target; }

}  // namespace quire
