// The emulated machine as a process finds it.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <stdexcept>

#include "emulation.h"
#include "parallel/communicator.h"

namespace emulation {

Settings settings_of_environment() {
  Settings settings;
  settings.ranks_are_processes = quire::announced_ranks().size > 1;
  int processes = settings.ranks_are_processes, plans = settings.cudnn_plans, memory_mib = static_cast<int>(settings.memory >> 20);
  const std::map<std::string, int*> numbers = {{"devices", &settings.devices},
                                               {"major", &settings.major},
                                               {"memory_mib", &memory_mib},
                                               {"cudnn_plans", &plans},
                                               {"cudnn_version", &settings.cudnn_version},
                                               {"nccl_version", &settings.nccl_version},
                                               {"communication_patience", &settings.communication_patience},
                                               {"ranks_are_processes", &processes}};
  const char* const variable = std::getenv("QUIRE_EMULATION");
  std::string left = variable == nullptr ? "" : variable;
  while (!left.empty()) {
    const size_t comma = std::min(left.find(','), left.size());
    const std::string entry = left.substr(0, comma);
    left.erase(0, comma + 1);
    const size_t equals = std::min(entry.find('='), entry.size());
    const std::string name = entry.substr(0, equals), value = entry.substr(std::min(equals + 1, entry.size()));
    if (name == "missing" && !value.empty()) {
      settings.missing = value;
      continue;
    }
    const auto number = numbers.find(name);
    if (number == numbers.end()) throw std::runtime_error("QUIRE_EMULATION: '" + entry + "' means nothing");
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *number->second);
    if (value.empty() || error != std::errc() || end != value.data() + value.size()) throw std::runtime_error("QUIRE_EMULATION: '" + entry + "' has no number");
  }
  settings.ranks_are_processes = processes != 0;
  settings.cudnn_plans = plans != 0;
  settings.memory = static_cast<size_t>(memory_mib) << 20;
  return settings;
}

}  // namespace emulation
