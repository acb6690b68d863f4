#include "run/rank_options.h"

#include <algorithm>

#include "parallel/communicator.h"
#include "run/machine.h"

namespace quire {

int first_processor(std::string_view pin_threads, int threads, int local_rank, int local_size, int affine) {
  const bool all_taken = int64_t{threads} * local_size == affine;
  return pin_threads == "always" || (pin_threads == "auto" && all_taken) ? local_rank * threads : -1;
}

RankOptions rank_options(const Config& config) {
  RankOptions options;
  const AnnouncedRanks announced = announced_ranks();
  const int local_size = std::max(announced.local_size, 1), processors = usable_processors();
  options.threads = config.run.threads > 0 ? static_cast<int>(config.run.threads) : std::max(processors / local_size, 1);
  options.first_processor = first_processor(config.run.pin_threads, options.threads, announced.local_rank, local_size, affine_processors());
  options.memory_limit = config.run.memory_limit;
  options.instruction_set = config.run.instruction_set;
  for (const std::string& choice : config.run.kernels) {
    const size_t equals = choice.find('=');
    options.kernels[choice.substr(0, equals)] = choice.substr(equals + 1);
  }
  return options;
}

RankOptions shared_rank_options(const Config& config, int64_t ranks) {
  RankOptions options = rank_options(config);
  options.threads = std::max(1, static_cast<int>(options.threads / ranks));
  options.first_processor = -1;
  return options;
}

}  // namespace quire
