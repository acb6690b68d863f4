#include "run/rank_options.h"

#include <algorithm>

#include "parallel/communicator.h"
#include "run/machine.h"

namespace quire {

RankOptions rank_options(const Config& config) {
  RankOptions options;
  options.threads = config.run.threads > 0 ? static_cast<int>(config.run.threads) : std::max(usable_processors() / std::max(announced_ranks().local_size, 1), 1);
  options.pin_threads = config.run.pin_threads;
  options.memory_limit = config.run.memory_limit;
  options.instruction_set = config.run.instruction_set;
  for (const std::string& choice : config.run.kernels) {
    const size_t equals = choice.find('=');
    options.kernels[choice.substr(0, equals)] = choice.substr(equals + 1);
  }
  return options;
}

}  // namespace quire
