// What tests of messages between emulated devices share.
#pragma once
#include <array>
#include <vector>

#include "emulation.h"
#include "parallel/nccl.h"
#include "runtime/rank.h"

namespace quire::test {

constexpr emulation::Pace all_paces[] = {emulation::Pace::late, emulation::Pace::early, emulation::Pace::random};

inline RankOptions on_device(int index) { return {.device = {DeviceKind::cuda, index}, .poison = true}; }

inline std::vector<std::array<int, 2>> all_pairs(int ranks) {
  std::vector<std::array<int, 2>> pairs;
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to)
      if (from != to) pairs.push_back({from, to});
  return pairs;
}

template <class Change>
void change_settings(Change&& change) {
  emulation::Settings settings = emulation::settings();
  change(settings);
  emulation::set(settings);
}
inline void set_pace(emulation::Pace pace) {
  change_settings([&](emulation::Settings& settings) { settings.pace = pace; });
}

}  // namespace quire::test
